"""How ranks on several hosts find each other, and what they say when they do not."""
import subprocess
import time

from cases import smoke
from jobs import PORT, Case, Programs

REMOTE, TIMEOUT, UNREACHABLE = 5, 7, 20
FAILED = range(1, 30)


class Rendezvous(Case):
    def join(self, network, only=None, **environment):
        environment.setdefault("KOLO_INIT_TIMEOUT_MS", "5000")
        return self.start(network, [Programs.rank, "join"], environment=environment, only=only)

    @smoke
    def test_by_the_name_of_a_host(self):
        self.expect_done(self.join(self.network(3), KOLO_ROOT=f"host0:{PORT}"))

    def test_by_the_name_of_a_host_that_has_ipv6_alone(self):
        self.expect_done(self.join(self.network(3, ipv4=False), KOLO_ROOT=f"host0:{PORT}"))

    def test_of_ranks_that_come_before_the_root(self):
        network = self.network(3)
        early = self.join(network, only=[1, 2], KOLO_INIT_TIMEOUT_MS="20000")
        time.sleep(2)
        self.expect_done(early + self.join(network, only=[0], KOLO_INIT_TIMEOUT_MS="20000"))

    def test_with_a_name_that_nobody_has(self):
        since = time.monotonic()
        ranks = self.join(self.network(3), KOLO_ROOT=f"nobody.invalid:{PORT}")
        for rank in (1, 2):
            self.expect_failure(ranks, rank, since, 8, (UNREACHABLE,), "nobody.invalid", "KOLO_ROOT", "KOLO_INIT_TIMEOUT_MS")
        self.expect_failure(ranks, 0, since, 8, FAILED, r"\b1-2\b")

    def test_by_a_name_that_comes_late(self):
        network = self.network(3)
        # A resolver that reaches no server may take ten seconds to say so.
        ranks = self.join(network, KOLO_ROOT=f"late:{PORT}", KOLO_INIT_TIMEOUT_MS="60000")
        for rank in ranks[1:]:
            self.assertTrue(rank.has_said('"late" does not resolve'), self.story(ranks))
        network.also_name(0, "late")
        self.expect_done(ranks)

    def test_with_a_root_that_cannot_be_reached_at_first(self):
        network = self.network(2)
        for root, how, words in ((network.endpoint(0, PORT), "unreachable", "No route to host"), (f"host0:{PORT}", "throw", "Network is unreachable"),
                                 ("", "unreachable", "No route to host")):  # the last one: the address is in a file
            with self.subTest(root=root):
                network.hide(1, 0, how)
                ranks = self.join(network, KOLO_ROOT=root, KOLO_INIT_TIMEOUT_MS="20000")
                self.assertTrue(ranks[1].has_said(words), self.story(ranks))
                network.show(1, 0)
                self.expect_done(ranks)

    def test_by_a_name_that_is_of_another_host_at_first(self):
        network = self.network(3)
        network.also_name(1, "moving")
        ranks = self.join(network, KOLO_ROOT=f"moving:{PORT}", KOLO_INIT_TIMEOUT_MS="20000")
        for rank in ranks[1:]:
            self.assertTrue(rank.has_said("Connection refused"), self.story(ranks))
        network.also_name(0, "moving")
        self.expect_done(ranks)

    def test_by_a_name_that_is_of_a_host_without_an_answer_at_first(self):
        network = self.network(3)
        network.block(1, 2)
        network.also_name(2, "moving")
        late = self.join(network, only=[1], KOLO_SIZE="2", KOLO_ROOT=f"moving:{PORT}", KOLO_INIT_TIMEOUT_MS="20000")
        self.assertTrue(late[0].has_said("timed out"), self.story(late))
        network.also_name(0, "moving")
        self.expect_done(late + self.join(network, only=[0], KOLO_SIZE="2", KOLO_ROOT=f"moving:{PORT}", KOLO_INIT_TIMEOUT_MS="20000"))

    def test_with_a_root_that_is_never_there(self):
        network = self.network(2)
        network.hide(1, 0, "unreachable")
        since = time.monotonic()
        ranks = self.join(network, KOLO_INIT_TIMEOUT_MS="1500")
        self.expect_failure(ranks, 1, since, 8, (UNREACHABLE,), "No route to host", "1500 ms .KOLO_INIT_TIMEOUT_MS")
        self.expect_failure(ranks, 0, since, 8, (TIMEOUT,), "rank 1", "1500 ms .KOLO_INIT_TIMEOUT_MS")

    def through_firewalls(self, **environment):
        network = self.network(3)
        for host in range(3):
            network.open_only(host, "18000-18005")
        since = time.monotonic()
        return since, self.start(network, [Programs.rank, "loop", "100000", "3"], environment=environment, host_ids=True, per_host=2)

    @smoke
    def test_through_a_firewall_that_lets_some_ports_through(self):
        root = f"10.77.0.1:{18005}"
        self.expect_done(self.through_firewalls(KOLO_PORT_RANGE="18000-18004", KOLO_ROOT=root)[1])
        self.doCleanups()
        self.expect_done(self.through_firewalls(KOLO_PORT_RANGE="18000-18005", KOLO_ROOT="")[1])

    def test_through_a_firewall_that_lets_as_many_ports_through_as_data_needs(self):
        for ports, root in (("18000-18001", "10.77.0.1:18005"), ("18000-18002", "")):  # without a root, rank 0 has one more
            with self.subTest(ports=ports):
                ranks = self.through_firewalls(KOLO_PORT_RANGE=ports, KOLO_ROOT=root)[1]
                self.expect_done(ranks)
                self.assertRegex(ranks[0].output(), f"no other process can take the place of .*KOLO_PORT_RANGE={ports}")
                self.doCleanups()

    def test_through_a_firewall_that_does_not_let_them_through(self):
        since, ranks = self.through_firewalls(KOLO_ROOT="", KOLO_INIT_TIMEOUT_MS="1500")
        for rank in range(2, 6):
            self.expect_failure(ranks, rank, since, 8, (UNREACHABLE, TIMEOUT), "KOLO_PORT_RANGE", "KOLO_INIT_TIMEOUT_MS")
        self.doCleanups()
        since, ranks = self.through_firewalls(KOLO_ROOT="10.77.0.1:18005", KOLO_INIT_TIMEOUT_MS="3000")
        for rank in range(6):
            self.expect_failure(ranks, rank, since, 10, FAILED, "KOLO_PORT_RANGE")

    def test_at_an_address_where_the_root_is_not(self):
        network = self.network(3)
        since = time.monotonic()
        ranks = self.join(network, KOLO_ROOT=network.endpoint(2, PORT))
        for rank in (1, 2):
            self.expect_failure(ranks, rank, since, 15, (TIMEOUT, UNREACHABLE), r"10\.77\.0\.3")
        self.expect_failure(ranks, 0, since, 15, FAILED, r"\b[12]\b")

    def test_at_a_port_that_is_taken(self):
        network = self.network(2)
        taken = subprocess.Popen(network.command(0, ["python3", "-c", f"""
import socket, time
listener = socket.create_server(("", {PORT}))
print("taken", flush=True)
while True:
    listener.accept()[0].sendall(b"SSH-2.0-not Kolo at all, and longer than any hello would be" * 9)
"""]), stdout=subprocess.PIPE, text=True)
        self.addCleanup(taken.stdout.close)
        self.addCleanup(taken.wait)
        self.addCleanup(taken.kill)
        self.assertEqual(taken.stdout.readline(), "taken\n")
        ranks = self.join(network, KOLO_INIT_TIMEOUT_MS="20000")
        self.expect_done(ranks)
        self.assertRegex(ranks[0].output(), f"{PORT}: Address already in use .*; rank 0 listens at port {PORT + 1} instead")

    @smoke
    def test_with_secrets_that_differ(self):
        network = self.network(2)
        since = time.monotonic()
        ranks = self.join(network, only=[0]) + self.join(network, only=[1], KOLO_SECRET="another")
        self.expect_failure(ranks, 0, since, 15, FAILED, r"\b1\b")
        self.expect_failure(ranks, 1, since, 15, FAILED, "KOLO_SECRET")

    def test_without_a_root_through_a_file_that_all_see(self):
        self.expect_done(self.join(self.network(3), KOLO_ROOT=""))

    @smoke
    def test_of_hosts_whose_address_is_on_the_loopback_interface(self):
        network = self.network(3, announced=True)
        for how in ({"KOLO_ROOT": ""}, {}, {"KOLO_ROOT": "", "KOLO_INTERFACE": "lo", "KOLO_TCP_INTERFACES": "lo"}):
            for host_ids in (False, True):
                with self.subTest(how=how, host_ids=host_ids):
                    ranks = self.start(network, [Programs.rank, "loop", "1000000", "3"], environment={"KOLO_INIT_TIMEOUT_MS": "20000", **how},
                                       host_ids=host_ids)
                    self.expect_done(ranks)

    @smoke
    def test_of_hosts_with_many_bridges_of_equal_addresses_and_no_default_route(self):
        network = self.network(2, traps=["bridges"])
        self.expect_done(self.join(network, KOLO_ROOT=""))

    def test_of_hosts_that_share_all_their_addresses(self):
        network = self.network(2, traps=["bridges"])
        for host in range(2):
            network.take_down(host)
        since = time.monotonic()
        ranks = self.join(network, KOLO_ROOT="", KOLO_INIT_TIMEOUT_MS="60000")
        for rank, code in ((0, REMOTE), (1, UNREACHABLE)):
            self.expect_failure(ranks, rank, since, 20, (code,), "this host has itself, too, as bridges of containers do", "KOLO_INTERFACE")

    def test_at_an_interface_that_the_user_names(self):
        network = self.network(2, traps=["bridge"])
        self.expect_done(self.join(network, KOLO_INTERFACE="eth0"))
