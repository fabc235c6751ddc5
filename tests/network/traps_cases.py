"""Interfaces that seem to be a way, and are none; packets that are too large for the way."""
import time

from cases import smoke
from jobs import Case, Programs

UNREACHABLE, TIMEOUT, REMOTE = 20, 7, 5
BYTES, TIMES = 1 << 20, 5


class Traps(Case):
    def expect_way(self, network, ranks, wrong):
        """It worked, the data went through eth0, and next to nothing through the wrong interface."""
        self.expect_done(ranks)
        for sent in self.sent(network, "eth0"):
            self.assertGreater(sent, BYTES * TIMES, self.story(ranks))
        for sent in self.sent(network, wrong):
            self.assertLess(sent, 100000, self.story(ranks))

    def loop(self, network, **how):
        return self.start(network, [Programs.rank, "loop", str(BYTES), str(TIMES)], **how)

    def test_a_bridge_with_the_same_address_on_every_host_is_not_taken_for_a_way(self):
        for host_ids in (False, True):
            network = self.network(3, traps=["bridge"])
            self.expect_way(network, self.loop(network, host_ids=host_ids), "docker0")
            self.doCleanups()

    def test_a_fast_interface_that_leads_nowhere_is_given_up_soon(self):
        for host_ids in (False, True):
            network = self.network(3, traps=["unreachable"])
            since = time.monotonic()
            ranks = self.loop(network, host_ids=host_ids)
            self.expect_way(network, ranks, "eth1")
            self.assertLess(time.monotonic() - since, 20, self.story(ranks))
            self.doCleanups()

    @smoke
    def test_all_traps_at_once_and_ipv6(self):
        network = self.network(3, ipv4=False, traps=["bridge", "unreachable", "mtu"])
        self.expect_way(network, self.loop(network), "eth1")

    def test_one_host_with_larger_packets_than_the_others(self):
        network = self.network(3, traps=["mtu"])
        self.expect_way(network, self.loop(network), "lo")

    def test_packets_that_are_too_large_for_the_way_are_an_error_that_says_so(self):
        since = time.monotonic()
        ranks = self.loop(self.network(3, traps=["jumbo"]), environment={"KOLO_INIT_TIMEOUT_MS": "8000"})
        for rank in range(3):
            self.expect_failure(ranks, rank, since, 20, (UNREACHABLE, TIMEOUT, REMOTE), "rank [012]")
        self.assertRegex(self.story(ranks), "packet|MTU")

    def test_interfaces_that_the_user_forbids_are_not_used(self):
        network = self.network(3, traps=["unreachable"])
        ranks = self.loop(network, environment={"KOLO_TCP_INTERFACES": "^eth1"})
        self.expect_way(network, ranks, "eth1")

    def test_an_interface_that_the_user_asks_for_and_that_leads_nowhere_is_an_error_that_says_so(self):
        since = time.monotonic()
        ranks = self.loop(self.network(2, traps=["unreachable"]),
                          environment={"KOLO_TCP_INTERFACES": "eth1", "KOLO_INIT_TIMEOUT_MS": "5000"})
        for rank in range(2):
            self.expect_failure(ranks, rank, since, 15, (UNREACHABLE, TIMEOUT, REMOTE), f"rank {1 - rank}")
        self.assertRegex(self.story(ranks), r"10\.66\.0\.[12]")

    def test_an_interface_that_does_not_exist_is_an_error_that_names_it(self):
        since = time.monotonic()
        ranks = self.loop(self.network(2), environment={"KOLO_TCP_INTERFACES": "eth7", "KOLO_INIT_TIMEOUT_MS": "5000"})
        for rank in range(2):
            self.expect_failure(ranks, rank, since, 15, range(1, 30), f"rank {1 - rank}")
            self.assertRegex(ranks[rank].output(), '"eth7"; there are: .*eth0')
