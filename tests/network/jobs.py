"""Ranks on the hosts of a Network, as a test sees them."""
import os
import re
import signal
import subprocess
import tempfile
import time
import unittest

import namespaces
import stops

PATIENCE = 90.0  # seconds; on a busy machine with two cores ranks take a while
PORT = 17171
# Of a list: tensors short and long, of several datatypes.
ITEMS = [(count, datatype) for count in (1, 37, 5000, 300_000) for datatype in ("float32", "bfloat16", "int32")]
OURS = re.compile("KOLO_|OMPI_|PMI|SLURM|RANK$|WORLD_SIZE$|LOCAL_|MASTER_|TORCHELASTIC_")


class Programs:
    """Where the programs under test are; set by the main program."""
    perf = ""
    rank = ""


def soon(condition, seconds=PATIENCE):
    """What condition() gives, as soon as that is true; its last result when the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result or time.monotonic() > deadline:
            return result
        time.sleep(0.02)


class Failure:
    """What a rank said last: the code, when (seconds of the monotonic clock) and the message."""

    def __init__(self, output):
        found = re.search(r"^failed (\d+) (\d+) (.*)$", output, re.M)
        self.code, self.at, self.message = (int(found[1]), int(found[2]) / 1e3, found[3]) if found else (None, None, "")


class Rank:
    def __init__(self, network, host, words, environment):
        self.output_file = tempfile.NamedTemporaryFile(prefix="kolo-network-")
        self.process = subprocess.Popen(network.command(host, words), env=environment, stdin=subprocess.DEVNULL,
                                        stdout=self.output_file, stderr=subprocess.STDOUT)

    def output(self):
        with open(self.output_file.name, encoding="utf-8", errors="replace") as file:
            return file.read()

    def has_said(self, text, seconds=PATIENCE):
        """Whether it prints this before it ends."""
        soon(lambda: text in self.output() or self.process.poll() is not None, seconds)
        return text in self.output()

    def ended(self, seconds=PATIENCE):
        """Its exit status; None if it still runs."""
        return soon(lambda: (self.process.poll() is not None) or None, seconds) and self.process.returncode

    def kill(self):
        self.process.kill()
        self.process.wait()


class Case(unittest.TestCase):
    """What all tests between hosts have in common."""

    def network(self, hosts=3, **how):
        try:
            network = namespaces.Network(hosts, **how)
        except namespaces.Unavailable as reason:
            self.skipTest(str(reason))
        self.addCleanup(network.close)
        return network

    def start(self, network, words, per_host=1, environment=None, host_ids=False, only=None):
        """A rank on each host, or several. environment: for all of them. only: these ranks alone."""
        common = {name: value for name, value in os.environ.items() if not OURS.match(name)}
        common.update(KOLO_ROOT=network.endpoint(0, PORT), KOLO_SECRET="of the tests", KOLO_JOB=self.id(), KOLO_DEBUG="info",
                      KOLO_INTERFACE="any")  # without a root a job is one of this host, which listens to no other
        ranks = []
        for rank in range(network.hosts * per_host) if only is None else only:
            own = {"KOLO_RANK": str(rank), "KOLO_SIZE": str(network.hosts * per_host)}
            if host_ids:
                own["KOLO_HOST_ID"] = namespaces.name_of(rank // per_host)
            ranks.append(Rank(network, rank // per_host, words, {**common, **own, **(environment or {})}))
            self.addCleanup(ranks[-1].kill)
        return ranks

    def sent(self, network, interface):
        """Bytes that each host has sent through it so far."""
        found = []
        for host in range(network.hosts):
            done = subprocess.run(network.command(host, ["cat", f"/sys/class/net/{interface}/statistics/tx_bytes"]),
                                  stdout=subprocess.PIPE, text=True, check=True)
            found.append(int(done.stdout))
        return found

    # ---- what ranks are held to

    def story(self, ranks):
        return "\n" + "\n".join(f"---- rank {number}, {'running' if rank.process.poll() is None else rank.process.returncode}\n"
                                f"{rank.output()}" for number, rank in enumerate(ranks))

    def expect_done(self, ranks, seconds=PATIENCE):
        for rank in ranks:
            rank.ended(seconds)
        for rank in ranks:
            self.assertEqual(rank.process.returncode, 0, self.story(ranks))
            self.assertTrue("\ndone\n" in rank.output(), self.story(ranks))

    def expect_sweep(self, ranks, lines):
        """kolo-perf printed so many lines of results, all values right."""
        for rank in ranks:
            rank.ended()
        for rank in ranks:
            self.assertEqual(rank.process.returncode, 0, self.story(ranks))
        output = ranks[0].output()
        self.assertTrue("# Wrong values: 0 OK" in output, self.story(ranks))
        self.assertEqual(len(re.findall(r"^ +\d+ +\d+ +\w+ .* (?:registered|plain) ", output, re.M)), lines, output)

    def lists(self, items=ITEMS):
        """What kolo-perf is to be told for a list of tensors. items: elements and datatype of each."""
        file = tempfile.NamedTemporaryFile("w", suffix=".txt")
        self.addCleanup(file.close)
        file.writelines(f"{count} {datatype}\n" for count, datatype in items)
        file.flush()
        return [Programs.perf, "--list", file.name, "--caps", "64K,16M", "--buffers", "plain", "-n", "1", "-w", "0"]

    @staticmethod
    def axes(shapes="12x36,600x1200"):
        """Likewise for arrays: rows shorter than a cache line, and long ones."""
        return [Programs.perf, "--axis", "0,1", "--shape", shapes, "--buffers", "plain", "-n", "1", "-w", "0"]

    def expect_right(self, ranks, seconds=PATIENCE):
        """kolo-perf compared values on all ranks, and all were right. ranks: with rank 0."""
        for rank in ranks:
            self.assertEqual(rank.ended(seconds), 0, self.story(ranks))
        self.assertIn("# Wrong values: 0 OK", ranks[0].output())
        self.assertNotIn("# Not verified", ranks[0].output())

    def expect_failure(self, ranks, number, since, within, codes, *names):
        """This rank failed in time, for one of these reasons, and its message has all these words; then it left in time, too."""
        rank = ranks[number]
        status = rank.ended(max(0.0, since + within + 6 - time.monotonic()))  # leaving waits two seconds for a root that is silent
        failure = Failure(rank.output())
        self.assertIsNotNone(failure.code, f"rank {number} has not failed{self.story(ranks)}")
        self.assertIn(failure.code, codes, self.story(ranks))
        self.assertLess(failure.at - since, within, f"rank {number} took too long{self.story(ranks)}")
        for name in names:
            self.assertTrue(re.search(name, failure.message), f'no "{name}" of rank {number}{self.story(ranks)}')
        self.assertEqual(status, 0, f"rank {number} did not leave in time{self.story(ranks)}")
        return failure

    def wait_until_said(self, ranks, text):
        for rank in ranks:
            self.assertTrue(rank.has_said(text), self.story(ranks))

    def stop(self, rank):
        stops.stop(rank.process.pid)
