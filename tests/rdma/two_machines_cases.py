"""The same between two machines, whose NICs are joined by cables: packets are lost, late, or sent to nobody.

Both machines run these cases, in the same order, and meet in each of them as their ranks find each other. Machine 1 makes the trouble.
"""
import time

import hosts
from cases import smoke
from jobs import PATIENCE, Programs

REMOTE, TIMEOUT, UNREACHABLE = 5, 7, 20
MUCH, ENDLESS = str(1 << 20), "1000000"


class Collectives(hosts.Case):
    @smoke
    def test_of_2_hosts(self):
        network = self.network(2)
        self.expect_all(network, self.sweep(network))

    def test_of_4_ranks(self):
        network = self.network(2)
        self.expect_all(network, self.sweep(network, per_host=2))

    def test_of_lists_and_axes(self):
        network = self.network(2)
        # Few items: each is an operation of its own too, which takes a third of a second in a machine beside others, and
        # seconds where the host is busy.
        patience = 3 * PATIENCE
        items = ((1, "float32"), (37, "bfloat16"), (5000, "int32"), (20_000, "float32"))
        for words in (self.lists(items), self.axes("12x36,60x120")):
            ranks = self.start(network, words, per_host=2)
            if network.machine == 0:
                self.expect_right(ranks, patience)
            for rank in ranks:
                self.assertEqual(rank.ended(patience), 0, self.story(ranks))

    def test_with_loss_and_delay(self):
        network = self.network(3)
        for nic in (0, 1):
            self.lose(nic, 1, "1ms")
        self.expect_all(network, self.sweep(network))


class Trouble(hosts.Case):
    environment = hosts.IMPATIENCE

    def begin(self, network, times=ENDLESS, environment=None):
        ranks = self.start(network, [Programs.rank, "loop", MUCH, times], environment=environment)
        self.wait_until_said(ranks, "ready")
        return ranks

    def test_a_link_goes_silent_in_the_middle_of_an_all_reduce(self):
        network = self.network(3)
        ranks = self.begin(network, "20")
        if network.machine == 1:
            self.await_traffic(0, 200)
            self.lose(0, 100)
        self.expect_done(ranks)
        self.expect_failover(ranks)

    def test_the_only_link_goes_silent(self):
        network = self.network(2)
        # Half of the time for joining is what a transport may take to take its leave.
        ranks = self.begin(network, environment={"KOLO_IB_DEVICES": "rxe0", "KOLO_INIT_TIMEOUT_MS": "10000"})
        since = time.monotonic()
        if network.machine == 1:
            self.await_traffic(0, 200)
            self.lose(0, 100)
        self.expect_failure(ranks, 0, since, 30, (REMOTE, TIMEOUT, UNREACHABLE), f"rank {1 - network.machine}")

    def test_the_only_link_goes_silent_and_tcp_has_another(self):
        network = self.network(3)
        ranks = self.begin(network, "20", {"KOLO_TRANSPORTS": "ib,tcp", "KOLO_IB_DEVICES": "rxe0", "KOLO_TCP_INTERFACES": "eth1"})
        if network.machine == 1:
            self.await_traffic(0, 200)
            self.lose(0, 100)
        self.expect_done(ranks)
        self.expect_tcp_instead(ranks)

    def test_a_killed_rank(self):
        network = self.network(4)
        ranks = self.begin(network)
        since = time.monotonic()
        if network.machine == 1:
            ranks.pop(1).kill()  # rank 3
        for at in range(len(ranks)):
            self.expect_failure(ranks, at, since, 20, (REMOTE,), "rank 3")
