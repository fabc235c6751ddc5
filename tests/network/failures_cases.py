"""What ends in the middle: ranks, cables, and ways that a firewall keeps shut. Nobody waits for ever, and everybody names the culprit."""
import os
import signal
import time

from cases import smoke
from jobs import Case, Programs

REMOTE, TIMEOUT, UNREACHABLE = 5, 7, 20
MUCH, ENDLESS = str(64 << 20), "1000000"


class Firewalls(Case):
    INIT = {"KOLO_INIT_TIMEOUT_MS": "6000"}

    @smoke
    def test_between_two_that_are_not_the_root(self):
        network = self.network(3)
        network.block(1, 2)
        since = time.monotonic()
        ranks = self.start(network, [Programs.rank, "join"], environment=self.INIT)
        for rank in range(3):
            self.expect_failure(ranks, rank, since, 16, (REMOTE, TIMEOUT, UNREACHABLE), "rank 1", "rank 2")
        self.assertRegex(self.story(ranks[1:]), r"10\.77\.0\.[23]")
        # What went wrong comes before what could not have worked: these hosts are of one kernel.
        self.assertRegex(self.story(ranks), "by any transport that both have; transport tcp: .*; transport shm: ")

    def test_between_one_and_the_root(self):
        network = self.network(3)
        network.block(1, 0)
        since = time.monotonic()
        ranks = self.start(network, [Programs.rank, "join"], environment=self.INIT)
        self.expect_failure(ranks, 1, since, 16, (REMOTE, TIMEOUT, UNREACHABLE), r"10\.77\.0\.1")
        for rank in (0, 2):
            self.expect_failure(ranks, rank, since, 16, (REMOTE, TIMEOUT), r"\b1\b")

    def test_that_come_up_while_it_runs(self):
        network = self.network(3)
        ranks = self.start(network, [Programs.rank, "loop", "100000", ENDLESS], environment={"KOLO_TIMEOUT_MS": "3000", **self.INIT})
        self.wait_until_said(ranks, "ready")
        since = time.monotonic()
        network.block(1, 2)
        for rank in range(3):
            # Rank 0 waits too, but for those two, and says what they found.
            self.expect_failure(ranks, rank, since, 10, (REMOTE, TIMEOUT, UNREACHABLE),
                                "^koloAllReduce: rank (1 (waited|has no) .*rank 2|2 (waited|has no) .*rank 1)")


class Partitions(Case):
    def in_the_middle(self, network, environment=None):
        ranks = self.start(network, [Programs.rank, "loop", MUCH, ENDLESS], environment=environment, host_ids=True)
        self.wait_until_said(ranks, "ready")
        time.sleep(0.3)
        return ranks

    @smoke
    def test_that_heal_go_unnoticed(self):
        network = self.network(3, rate="1gbit")
        ranks = self.start(network, [Programs.rank, "loop", MUCH, "4"], host_ids=True)
        self.wait_until_said(ranks, "ready")
        network.pull_cable(1)
        time.sleep(3)
        network.plug_cable(1)
        self.expect_done(ranks)

    def test_that_do_not_heal_end_with_the_time_of_an_operation(self):
        network = self.network(3, rate="1gbit")
        ranks = self.in_the_middle(network, {"KOLO_TIMEOUT_MS": "4000"})
        since = time.monotonic()
        network.pull_cable(1)
        for rank in (0, 2):
            self.expect_failure(ranks, rank, since, 9, (REMOTE, TIMEOUT, UNREACHABLE), "rank 1")
        self.expect_failure(ranks, 1, since, 9, (REMOTE, TIMEOUT, UNREACHABLE), "rank [02]")

    def test_that_do_not_heal_are_noticed_by_silence_as_soon_as_the_user_says(self):
        network = self.network(3, rate="1gbit")
        ranks = self.in_the_middle(network, {"KOLO_SILENCE_MS": "2000"})
        since = time.monotonic()
        network.pull_cable(1)
        for rank in (0, 2):
            self.expect_failure(ranks, rank, since, 8, (REMOTE, TIMEOUT, UNREACHABLE), "rank 1")
        self.expect_failure(ranks, 1, since, 8, (REMOTE, TIMEOUT, UNREACHABLE), "rank [02]")

    def test_that_heal_late_go_unnoticed_if_the_user_says_so(self):
        network = self.network(3, rate="1gbit")
        ranks = self.start(network, [Programs.rank, "loop", MUCH, "4"], host_ids=True, environment={"KOLO_SILENCE_MS": "60000"})
        self.wait_until_said(ranks, "ready")
        network.pull_cable(1)
        time.sleep(11.5)  # longer than the setting's default
        network.plug_cable(1)
        self.expect_done(ranks)

    def test_of_the_root_are_noticed_by_silence(self):
        network = self.network(3, rate="1gbit")
        ranks = self.in_the_middle(network)
        since = time.monotonic()
        network.pull_cable(0)
        for rank in (1, 2):
            self.expect_failure(ranks, rank, since, 25, (REMOTE, TIMEOUT, UNREACHABLE), "rank 0")
        self.expect_failure(ranks, 0, since, 25, (REMOTE, TIMEOUT, UNREACHABLE), "rank [12]")

    def test_of_the_root_are_the_cause_where_a_rank_gave_up_before(self):
        """Rank 1 waits for rank 2, and rank 2 for rank 0. Rank 2 loses patience before the system notices that rank 0 is silent."""
        network = self.network(3)
        ranks = [self.start(network, [Programs.rank, "circle"], host_ids=True, only=[rank],
                            environment={"KOLO_TIMEOUT_MS": "2500" if rank == 2 else "60000"})[0] for rank in range(3)]
        self.wait_until_said(ranks, "ready")
        since = time.monotonic()
        network.pull_cable(0)
        gave_up = self.expect_failure(ranks, 2, since, 9, (TIMEOUT,), "rank 2 waited .* rank 0")
        hears = self.expect_failure(ranks, 1, since, 25, (REMOTE, TIMEOUT, UNREACHABLE), "rank 0")
        self.assertGreater(hears.at, gave_up.at + 2, self.story(ranks))


class Deaths(Case):
    def kill(self, victim, size, per_host=1):
        network = self.network(3)
        ranks = self.start(network, [Programs.rank, "loop", size, ENDLESS], per_host=per_host)
        self.wait_until_said(ranks, "ready")
        time.sleep(0.2)
        since = time.monotonic()
        os.kill(ranks[victim].process.pid, signal.SIGKILL)
        for rank in range(len(ranks)):
            if rank != victim:
                self.expect_failure(ranks, rank, since, 2.5, (REMOTE,), f"rank {victim}")
        self.doCleanups()

    @smoke
    def test_of_any_rank_in_small_operations(self):
        for victim in (0, 1, 2):
            self.kill(victim, "8")

    def test_of_any_rank_in_large_operations(self):
        for victim in (0, 1, 2):
            self.kill(victim, MUCH)

    def test_where_ranks_share_hosts(self):
        self.kill(3, "1000000", per_host=2)

    def test_of_a_process_that_stops(self):
        ranks = self.start(self.network(3), [Programs.rank, "loop", "100000", ENDLESS], environment={"KOLO_TIMEOUT_MS": "3000"})
        self.wait_until_said(ranks, "ready")
        since = time.monotonic()
        self.stop(ranks[1])
        for rank in (0, 2):
            self.expect_failure(ranks, rank, since, 6.5, (TIMEOUT, REMOTE), "^koloAllReduce: rank [02] waited .* rank 1 ", "rank 1 does not answer")

    def test_of_a_root_that_stops(self):
        ranks = self.start(self.network(3), [Programs.rank, "loop", "100000", ENDLESS], environment={"KOLO_TIMEOUT_MS": "3000"})
        self.wait_until_said(ranks, "ready")
        since = time.monotonic()
        self.stop(ranks[0])
        for rank in (1, 2):
            self.expect_failure(ranks, rank, since, 9.5, (TIMEOUT, REMOTE), "process that made the unique id")
