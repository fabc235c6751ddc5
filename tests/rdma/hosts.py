"""Hosts in a virtual machine with Soft-RoCE: ranks with different host identities share no memory, so that NICs are between them."""
import contextlib
import os
import subprocess

import jobs

SIZES = ["8", "1000", "100K"]
WITH_SIZES = 9  # kolo-perf's collectives but the barrier
# For cases in which a link fails. Soft-RoCE sends again for ever by default; here a lane ends with four seconds of silence. In other cases no lane
# may end, however long a busy machine leaves the virtual one without a processor.
IMPATIENCE = {"KOLO_TEST_IB_RETRIES": "6", "KOLO_IB_TIMEOUT": "17"}


class Hosts:
    """What jobs.Case asks of a network. Host h is on machine h % machines, and all hosts of a machine share its NICs."""

    def __init__(self, hosts):
        self.hosts = hosts
        self.machine = int(os.environ["KOLO_VM"])
        self.machines = 2 if "KOLO_VM_PEER" in os.environ else 1

    def command(self, _, words):
        return [str(word) for word in words]

    def endpoint(self, _, port):
        """The control connections are not what is tested: they keep to a way that stays."""
        return f"{'127.0.0.1' if self.machines == 1 else '10.77.1.1'}:{port}"

    def here(self, per_host):
        """The numbers of the ranks that this machine starts."""
        return [rank for rank in range(self.hosts * per_host) if rank // per_host % self.machines == self.machine]


def set_link(nic, state):
    subprocess.run(["ip", "link", "set", f"eth{nic}", state], check=True)


def port_state(nic):
    with open(f"/sys/class/infiniband/rxe{nic}/ports/1/state", encoding="ascii") as file:
        return file.read()


def packets_sent(nic):
    with open(f"/sys/class/infiniband/rxe{nic}/ports/1/hw_counters/sent_pkts", encoding="ascii") as file:
        return int(file.read())


class Case(jobs.Case):
    environment = {}  # of all ranks of the class's cases

    def start(self, network, words, per_host=1, environment=None, **_):
        """Those of the ranks that belong here, over InfiniBand between hosts."""
        environment = {"KOLO_TRANSPORTS": "ib,shm", **self.environment, **(environment or {})}
        return super().start(network, words, per_host, environment, host_ids=True, only=network.here(per_host))

    def network(self, hosts=2, **_):
        return Hosts(hosts)

    def sweep(self, network, per_host=1, sizes=SIZES, calls=2, environment=None):
        words = [jobs.Programs.perf, "--sizes", ",".join(sizes), "--buffers", "plain", "-n", str(calls), "-w", "1"]
        return self.start(network, words, per_host, environment)

    def expect_all(self, network, ranks, sizes=SIZES):
        """All collectives, all values right; rank 0 has the table."""
        if network.machine == 0:
            return self.expect_sweep(ranks, WITH_SIZES * len(sizes) + 1)
        for rank in ranks:
            self.assertEqual(rank.ended(), 0, self.story(ranks))

    def lose(self, nic, percent, delay="0ms"):
        """So many of the packets that this machine sends, in silence."""
        subprocess.run(["tc", "qdisc", "add", "dev", f"eth{nic}", "root", "netem", "loss", f"{percent}%", "delay", delay], check=True)
        self.addCleanup(subprocess.run, ["tc", "qdisc", "del", "dev", f"eth{nic}", "root"], check=True)

    def pull_cable(self, nic):
        """What the NIC itself notices. On one machine only: where packets wait in an interface that goes down, Linux 6.1 does not come back
        from destroying their queue pair, and ends when the interface is up again (rxe_skb_tx_dtor)."""
        self.addCleanup(self.plug_cable, nic)
        set_link(nic, "down")

    def plug_cable(self, nic):
        set_link(nic, "up")
        self.assertTrue(jobs.soon(lambda: "ACTIVE" in port_state(nic), 10), port_state(nic))

    @contextlib.contextmanager
    def deleted(self, nic):
        """The RDMA device is being deleted meanwhile, and is made again afterwards. While another one goes, too, the command may fail to
        find this one: it is repeated as long as the device is there."""
        name = f"rxe{nic}"
        device = f"/sys/class/infiniband/{name}"
        repeatedly = f"for i in 1 2 3 4 5; do rdma link delete {name} && exit 0; [ -e {device} ] || exit 0; sleep 0.5; done; exit 1"
        with subprocess.Popen(["sh", "-c", repeatedly], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as deletion:
            try:
                yield
            finally:  # else the cases behind this one would lack it
                said, _ = deletion.communicate(timeout=jobs.PATIENCE)
                if not os.path.exists(device):
                    subprocess.run(["rdma", "link", "add", name, "type", "rxe", "netdev", f"eth{nic}"], check=True)
        self.assertEqual(deletion.returncode, 0, said)

    def await_traffic(self, nic, packets):
        """Until this machine has sent so many more."""
        before = packets_sent(nic)
        self.assertTrue(jobs.soon(lambda: packets_sent(nic) > before + packets), f"nothing moves by rxe{nic}")

    def expect_failover(self, ranks):
        for rank in ranks:
            self.assertIn("its rails go by another one", rank.output(), self.story(ranks))

    def expect_tcp_instead(self, ranks):
        for rank in ranks:
            self.assertIn("by ib is lost; they go on by tcp", rank.output(), self.story(ranks))
