"""Several hosts in one machine with two NICs."""
import time

import hosts
from cases import smoke
from jobs import Programs

SYSTEM, REMOTE, TIMEOUT, UNREACHABLE = 1, 5, 7, 20
MUCH, ENDLESS = str(4 << 20), "1000000"


class Collectives(hosts.Case):
    def of(self, count, per_host=1):
        network = self.network(count)
        self.expect_all(network, self.sweep(network, per_host))

    @smoke
    def test_of_2_hosts(self):
        self.of(2)

    def test_of_3_hosts(self):
        self.of(3)

    def test_of_4_hosts(self):
        self.of(4)

    def test_of_ranks_that_share_hosts(self):
        self.of(2, per_host=2)


class Messages(hosts.Case):
    @smoke
    def test_between_all_pairs(self):
        self.expect_done(self.start(self.network(3), [Programs.rank, "messages"]))


class NearNics(hosts.Case):
    def test_ranks_of_a_host_begin_with_different_ones(self):
        """With one rail, all that a rank sends goes by the NIC with which it begins."""
        before = [hosts.packets_sent(nic) for nic in (0, 1)]
        ranks = self.start(self.network(2), [Programs.rank, "loop", MUCH, "3"], per_host=2, environment={"KOLO_IB_RAILS": "1"})
        self.expect_done(ranks)
        for number, rank in enumerate(ranks):
            self.assertIn(f"rank {(number + 2) % 4} by 1 rail of rxe{number % 2} port 1", rank.output(), self.story(ranks))
        for nic in (0, 1):
            self.assertGreater(hosts.packets_sent(nic) - before[nic], 1000, f"rxe{nic}{self.story(ranks)}")


class Limits(hosts.Case):
    """Rank 1 may lock little of its memory (root could all the same, by a capability), or open few files."""

    def begin(self, limit, environment=None):
        words = ["setpriv", "--bounding-set=-ipc_lock", "sh", "-c", f"[ $KOLO_RANK = 0 ] || ulimit {limit}; exec {Programs.rank} loop 100000 3"]
        return self.start(self.network(2), words, environment=environment)

    def expect_named(self, limit, text):
        since = time.monotonic()
        ranks = self.begin(limit)
        for number in (0, 1):
            self.expect_failure(ranks, number, since, 30, (SYSTEM, UNREACHABLE), "on rank 1" if number == 0 else "", text)

    def test_a_full_limit_of_locked_memory_is_named_on_all_ranks(self):
        for kibibytes in (64, 7000):  # too little for what a rank receives in; for what it sends from
            self.expect_named(f"-l {kibibytes}", f"this process may lock {kibibytes} KiB; raise that with ulimit -l")

    def test_tcp_locks_nothing(self):
        ranks = self.begin("-l 64", {"KOLO_TRANSPORTS": "ib,tcp", "KOLO_TCP_INTERFACES": "lo"})
        self.expect_done(ranks)
        self.assertIn("this process may lock 64 KiB", ranks[1].output(), self.story(ranks))

    def test_too_few_files_are_named_on_all_ranks(self):
        for files in (10, 14):  # too few for the rank's own memory, or to look for NICs; to use them
            self.expect_named(f"-n {files}", f"limit of {files} open files[:;] raise it .ulimit -n")


class Failover(hosts.Case):
    environment = hosts.IMPATIENCE

    def test_in_the_middle_of_an_all_reduce(self):
        ranks = self.start(self.network(3), [Programs.rank, "loop", MUCH, "6"])
        self.wait_until_said(ranks, "ready")
        self.await_traffic(0, 200)
        self.pull_cable(0)
        self.expect_done(ranks)
        self.expect_failover(ranks)

    def test_in_the_middle_of_all_collectives(self):
        network = self.network(2)
        ranks = self.sweep(network, sizes=["100K"], calls=100)
        self.await_traffic(1, 3000)
        self.pull_cable(1)
        self.expect_all(network, ranks, sizes=["100K"])
        self.expect_failover(ranks)


class FailoverToTcp(hosts.Case):
    """All NICs are lost while TCP has a way that stays, the loopback, which ranks of one machine reach each other by."""

    environment = hosts.IMPATIENCE
    WAYS = {"KOLO_TRANSPORTS": "ib,tcp", "KOLO_TCP_INTERFACES": "lo"}

    def lose_all(self, ranks):
        """In the middle of operations."""
        for nic in (0, 1):
            self.await_traffic(nic, 200)
        for nic in (0, 1):
            self.pull_cable(nic)
        self.assertTrue(all(rank.process.poll() is None for rank in ranks), self.story(ranks))

    def test_devices_that_are_deleted(self):
        """Linux 6.1 deletes a Soft-RoCE device when the last program that uses it has ended; until then nothing may change for that program."""
        ranks = self.start(self.network(3), [Programs.rank, "loop", MUCH, "6"], environment=self.WAYS)
        self.wait_until_said(ranks, "ready")
        self.await_traffic(0, 200)
        with self.deleted(0), self.deleted(1):
            self.assertTrue(all(rank.process.poll() is None for rank in ranks), self.story(ranks))
            self.expect_done(ranks)

    def test_in_the_middle_of_an_all_reduce(self):
        ranks = self.start(self.network(3), [Programs.rank, "loop", MUCH, "6"], environment=self.WAYS)
        self.wait_until_said(ranks, "ready")
        self.lose_all(ranks)
        self.expect_done(ranks)
        self.expect_tcp_instead(ranks)

    def test_in_the_middle_of_all_collectives(self):
        network = self.network(2)
        ranks = self.sweep(network, sizes=["100K"], calls=100, environment=self.WAYS)
        self.lose_all(ranks)
        self.expect_all(network, ranks, sizes=["100K"])
        self.expect_tcp_instead(ranks)

    def test_in_the_middle_of_messages_between_windows(self):
        """These are written by the NIC straight from the one into the other."""
        ranks = self.start(self.network(3), [Programs.rank, "windows", MUCH, "20"], environment=self.WAYS)
        self.wait_until_said(ranks, "ready")
        self.lose_all(ranks)
        self.expect_done(ranks)
        self.expect_tcp_instead(ranks)

    def test_of_one_nic_in_the_middle_of_messages_between_windows(self):
        """What it was writing is not repeated by the other one: TCP takes over, if there was any."""
        ranks = self.start(self.network(3), [Programs.rank, "windows", MUCH, "20"], environment=self.WAYS)
        self.wait_until_said(ranks, "ready")
        self.await_traffic(0, 200)
        self.pull_cable(0)
        self.expect_done(ranks)

    def test_in_the_middle_of_messages(self):
        ranks = self.start(self.network(3), [Programs.rank, "messages"], environment=self.WAYS)
        self.wait_until_said(ranks, "joined")
        self.lose_all(ranks)
        self.expect_done(ranks)
        self.expect_tcp_instead(ranks)


class Endings(hosts.Case):
    environment = hosts.IMPATIENCE

    def begin(self, size, environment=None):
        ranks = self.start(self.network(3), [Programs.rank, "loop", size, ENDLESS], environment=environment)
        self.wait_until_said(ranks, "ready")
        return ranks

    def test_of_the_only_link(self):
        ranks = self.begin(MUCH, {"KOLO_IB_DEVICES": "rxe0"})
        self.await_traffic(0, 200)
        since = time.monotonic()
        self.pull_cable(0)
        for rank in range(3):
            self.expect_failure(ranks, rank, since, 15, (REMOTE, TIMEOUT, UNREACHABLE), r"rank \d", "rxe0")

    def kill(self, size):
        ranks = self.begin(size)
        since = time.monotonic()
        ranks[1].kill()
        for rank in (0, 2):
            self.expect_failure(ranks, rank, since, 10, (REMOTE,), "rank 1")

    def test_of_a_rank_in_small_operations(self):
        self.kill("8")

    def test_of_a_rank_in_large_operations(self):
        self.kill(MUCH)
