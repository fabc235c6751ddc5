"""Whoever ends, the process with the hub too, and whichever host falls silent: those that are left go on, or say why they may not."""
import re
import time

import namespaces
from cases import smoke
from jobs import PORT, Case, Programs

REMOTE, UNREACHABLE = 5, 20
LIMITS = {"KOLO_SILENCE_MS": "3000", "KOLO_INIT_TIMEOUT_MS": "40000"}
BOUND = 30  # seconds until those that may not go on have said so


class Outliving(Case):
    def begin(self, hosts, per_host):
        network = self.network(hosts)
        ranks = self.start(network, [Programs.rank, "outlive"], per_host=per_host, environment=LIMITS)
        self.expect_together(ranks, range(len(ranks)))
        return network, ranks

    def expect_together(self, ranks, left):
        for rank in left:
            self.assertTrue(ranks[rank].has_said(f"\n{len(left)} are together\n"), f"rank {rank} of {list(left)}{self.story(ranks)}")

    def expect_lost(self, ranks, left, since, within, name):
        """Those that are left have noticed in time, and name the culprit."""
        for rank in left:
            at, message = re.findall(r"^lost (\d+) (.*)$", ranks[rank].output(), re.M)[-1]
            self.assertLess(int(at) / 1e3 - since, within, f"rank {rank} took too long{self.story(ranks)}")
            self.assertRegex(message, name, self.story(ranks))

    def expect_cut_off(self, ranks, lost, since):
        for rank in lost:
            self.expect_failure(ranks, rank, since, BOUND, (REMOTE, UNREACHABLE), "cut off|does not answer")

    def end_one_after_the_other(self, ranks, order, pause=0):
        for victim in order:
            time.sleep(pause)  # longer than anything that was begun before may still go on
            since = time.monotonic()
            ranks[victim].kill()
            left = [rank for rank in range(len(ranks)) if ranks[rank].process.poll() is None]
            self.expect_together(ranks, left)
            if len(left) == len(ranks) - 1:
                self.expect_lost(ranks, left, since, 2.5, f"rank {victim} ")
        for rank in left:
            self.assertEqual(ranks[rank].ended(), 0, self.story(ranks))
            self.assertIn("\ndone\n", ranks[rank].output())


class Processes(Outliving):
    @smoke
    def test_that_end_one_after_the_other_leave_the_last_one(self):
        """The hub goes from host to host, and is never where the others think that rank 0 is."""
        self.end_one_after_the_other(self.begin(2, 2)[1], [0, 1, 2])

    @smoke
    def test_that_keep_the_billboard_of_their_host_end_like_others(self):
        """Rank 5 keeps that of the second host, and then rank 6; and rank 1 that of the first one, when the hub is on the other one."""
        self.end_one_after_the_other(self.begin(2, 5)[1], [5, 0, 6, 1, 7, 2, 8, 3, 4])

    @smoke
    def test_whose_connections_to_the_hub_alone_break_are_not_lost(self):
        network, ranks = self.begin(2, 2)
        try:
            network.break_connections(0, 1, PORT)
        except namespaces.Unavailable as reason:
            self.skipTest(str(reason))
        time.sleep(10)  # a rank that does not come back is given up after three seconds
        for rank in ranks:
            self.assertNotIn("\nlost ", rank.output(), self.story(ranks))
        self.end_one_after_the_other(ranks, [0, 1, 2])

    def test_that_end_in_any_order_leave_the_last_one(self):
        self.end_one_after_the_other(self.begin(2, 2)[1], [2, 0, 3])
        self.doCleanups()
        self.end_one_after_the_other(self.begin(4, 1)[1], [3, 0, 1])

    def test_of_a_host_that_finds_its_own_name_at_a_loopback_address_leave_the_last_one(self):
        network = self.network(2)
        with open("/run/hosts_of_host0", "w", encoding="ascii") as file:
            file.write("127.0.0.1 localhost\n127.0.1.1 host0\n")
        there = ["sh", "-c", 'mount --bind /run/hosts_of_host0 /etc/hosts && exec "$@"', "sh"]
        ranks = []
        for only, words in (([0, 1], there), ([2, 3], [])):
            ranks += self.start(network, [*words, Programs.rank, "outlive"], per_host=2, only=only, environment={"KOLO_ROOT": f"host0:{PORT}", **LIMITS})
        self.expect_together(ranks, range(4))
        self.end_one_after_the_other(ranks, [0, 2, 1])


class Hosts(Outliving):
    @smoke
    def test_that_fall_silent_with_the_hub_are_left_behind_by_more_than_half(self):
        network, ranks = self.begin(3, 2)
        since = time.monotonic()
        network.pull_cable(0)
        self.expect_together(ranks, range(2, 6))
        self.expect_cut_off(ranks, (0, 1), since)
        self.end_one_after_the_other(ranks, [2, 3, 4], pause=10)

    def test_that_fall_silent_without_the_hub_are_left_behind_by_more_than_half(self):
        network, ranks = self.begin(3, 2)
        since = time.monotonic()
        network.pull_cable(1)
        self.expect_together(ranks, (0, 1, 4, 5))
        self.expect_cut_off(ranks, (2, 3), since)

    @smoke
    def test_that_are_half_of_all_go_on_with_rank_0_alone(self):
        network, ranks = self.begin(2, 2)
        since = time.monotonic()
        network.pull_cable(1)
        self.expect_together(ranks, (0, 1))
        self.expect_cut_off(ranks, (2, 3), since)
        self.end_one_after_the_other(ranks, [0])
