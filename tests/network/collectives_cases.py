"""Collectives and messages between hosts: every value is right, and goes the way that it should."""
from cases import smoke
from jobs import Case, Programs

SIZES = ["8", "1000", "64K", "1M"]
WITH_SIZES = 9  # kolo-perf's collectives but the barrier


def sweep(*more):
    return [Programs.perf, "--buffers", "registered,plain", *more]


class Collectives(Case):
    def expect_all(self, ranks):
        self.expect_sweep(ranks, 2 * WITH_SIZES * len(SIZES) + 1)

    def sweep_all(self, network, **how):
        self.expect_all(self.start(network, sweep("--sizes", ",".join(SIZES), "-n", "5"), **how))

    @smoke
    def test_between_three_hosts_of_one_kernel(self):
        self.sweep_all(self.network(3))

    def test_between_three_hosts_with_kernels_of_their_own(self):
        self.sweep_all(self.network(3), host_ids=True)

    @smoke
    def test_of_ranks_that_share_hosts(self):
        self.sweep_all(self.network(3), per_host=2)
        self.doCleanups()
        self.sweep_all(self.network(2), per_host=3, host_ids=True)

    def test_between_hosts_with_ipv6_alone(self):
        self.sweep_all(self.network(3, ipv4=False))

    def test_of_every_datatype_and_reduction(self):
        ranks = self.start(self.network(2), sweep("all_reduce", "reduce_scatter", "--sizes", "40000", "-n", "1", "-d", "all", "-o", "all"))
        self.expect_right(ranks)

    @smoke
    def test_of_lists_and_axes(self):
        for hosts, per_host in ((3, 1), (2, 2)):
            network = self.network(hosts)
            for words in (self.lists(), self.axes()):
                self.expect_right(self.start(network, words, per_host, host_ids=True))
            self.doCleanups()

    def test_of_every_algorithm(self):
        network = self.network(3)
        for collective, algorithms in (("all_reduce", "line two_shot ring biring recursive tree"), ("broadcast", "line ring tree"),
                                       ("all_gather", "ring biring recursive bruck"), ("all_to_all", "bruck pairwise")):
            for algorithm in algorithms.split():
                with self.subTest(collective=collective, algorithm=algorithm):
                    ranks = self.start(network, sweep(collective, "--algorithm", algorithm, "--sizes", "8,100000", "-n", "3"))
                    self.expect_sweep(ranks, 4)

    def test_over_a_slow_network_are_as_large_as_anywhere(self):
        ranks = self.start(self.network(3, rate="200mbit"), sweep("all_reduce", "all_to_all", "--sizes", "4M", "-n", "2"))
        self.expect_sweep(ranks, 4)

    def test_with_as_many_connections_as_are_asked_for(self):
        network = self.network(2)
        for sockets in ("1", "2", "4"):
            ranks = self.start(network, sweep("all_reduce", "--sizes", "8,4M", "-n", "3"), environment={"KOLO_TCP_SOCKETS": sockets})
            self.expect_sweep(ranks, 4)

    def test_with_checksums_without_copies_and_encrypted(self):
        network = self.network(2)
        for name, value in (("KOLO_TCP_CHECKSUM", "1"), ("KOLO_TEST_TCP_ZEROCOPY_BYTES", "0"), ("KOLO_ENCRYPT", "1")):
            ranks = self.start(network, sweep("all_reduce", "all_to_all", "--sizes", "8,4M", "-n", "3"), environment={name: value})
            self.expect_sweep(ranks, 8)


class Messages(Case):
    def test_between_all_pairs(self):
        self.expect_done(self.start(self.network(3), [Programs.rank, "messages"]))

    @smoke
    def test_of_ranks_that_share_hosts(self):
        self.expect_done(self.start(self.network(2), [Programs.rank, "messages"], per_host=2, host_ids=True))
