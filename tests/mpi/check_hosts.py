#!/usr/bin/env python3
"""MPI programs under kolo-mpirun on two hosts, which are network namespaces of this machine.

usage: check_hosts.py FAMILY KOLO_MPIRUN RANDOM_COLLECTIVES MEMORY [CASE...]

FAMILY is openmpi or mpich. The exit status is 77 where its mpirun is not installed or namespaces cannot be made; the last line says why.
"""
import sys

sys.dont_write_bytecode = True

import glob
import os
import re
import subprocess
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
for folder in (os.path.join(HERE, os.pardir, "launchers"), os.path.join(HERE, os.pardir, "support"), os.path.join(HERE, os.pardir, os.pardir, "tools")):
    sys.path.insert(0, folder)

import cases
import launchers
import namespaces
import seeds

BOUND = 120  # seconds for one job
LAUNCHERS = {"openmpi": launchers.OpenMpi, "mpich": launchers.Mpich}
# The MPIs' own messages: through the network of the test, which they would not all find by themselves.
OPTIONS = {"openmpi": lambda subnet: ["--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", "tcp,vader,self", "--mca",
                                      "btl_tcp_if_include", subnet, "--mca", "oob_tcp_if_include", subnet],
           "mpich": lambda _: ["-iface", "eth0"]}
SETTINGS = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0", "KOLO_MPI_COMM_AFTER": "0"}


# Printed by the first rank when Kolo has ended there, at the beginning of MPI_Finalize. MPICH's own end hangs in one job of five here, by UCX's TCP
# between two hosts, with Kolo or without it.
COUNTED = "calls accelerated and passed on:"
FINALIZING = 10
KOLO_THREADS = {"kolo-net", "kolo-shm"}  # of communicators; the root's bootstrap has one that stays


class Given:
    family = wrapper = random = memory = launcher = None


def threads_of(program):
    """The names of all threads of the processes that run it."""
    names = set()
    for process in glob.glob("/proc/[0-9]*"):
        try:
            with open(f"{process}/cmdline", encoding="utf-8", errors="replace") as file:
                if file.read().split("\0")[0] != program:
                    continue
            for path in glob.glob(f"{process}/task/*/comm"):
                with open(path, encoding="utf-8", errors="replace") as file:
                    names.add(file.read().strip())
        except OSError:
            pass  # it has ended
    return names


def read(file):
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


class Hosts(unittest.TestCase):
    def setUp(self):
        try:
            self.network = namespaces.Network(2)
        except namespaces.Unavailable as reason:
            self.skipTest(str(reason))
        self.addCleanup(self.network.close)

    def job(self, words, settings=None, wrapper=None, options=()):
        """What four ranks print, two on each host."""
        launcher, network = Given.launcher, self.network
        there = launcher.over_hosts([namespaces.name_of(host) for host in range(2)], network.agent, 2)
        command = launcher.command(4, words, [*OPTIONS[Given.family](network.subnet()), *there, *options])
        environment = {**os.environ, **launcher.environment(), **SETTINGS, "KOLO_MPIRUN": launcher.program, "KOLO_MPI_STATISTICS": "1",
                       **(settings or {})}
        with tempfile.TemporaryFile() as file:
            with subprocess.Popen(network.command(0, [wrapper or Given.wrapper, *command[1:]]), env=environment, stdin=subprocess.DEVNULL,
                                  stdout=file, stderr=subprocess.STDOUT) as running:
                status = self.wait(running, file, words[0])
            output = read(file)
        self.assertEqual(status, 0, f"KOLO_TEST_SEED={seeds.run_seed()}\n{output}")
        return output

    def wait(self, running, file, program):
        """The exit status; what would be that of a rank that hangs in MPICH is 0."""
        end, counted = time.monotonic() + BOUND, None
        while running.poll() is None:
            now = time.monotonic()
            if counted is None and COUNTED in read(file):
                counted = now
            if counted is not None and Given.family == "mpich" and now > counted + FINALIZING:
                threads = threads_of(program)
                self.stop(running)
                self.assertFalse(threads & KOLO_THREADS, f"Kolo has not ended on all ranks: {read(file)}")
                return 0
            if now > end:
                self.stop(running)
                self.fail(f"not ended after {BOUND} s: {read(file)}")
            time.sleep(0.05)
        return running.returncode

    def stop(self, running):
        """With its ranks, if mpirun still can."""
        running.terminate()
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            running.kill()

    def counts(self, output):
        """(calls accelerated, calls passed on) of rank 0, over all functions."""
        line = re.search(r"calls accelerated and passed on:(.*)", output)
        self.assertIsNotNone(line, output)
        pairs = re.findall(r"=(\d+),(\d+)", line.group(1))
        return sum(int(a) for a, _ in pairs), sum(int(p) for _, p in pairs)

    @cases.smoke
    def test_collectives_agree_with_the_mpi_s_own(self):
        output = self.job([Given.random, "60", str(seeds.run_seed())])
        self.assertIn("60 rounds agree", output)
        accelerated, passed = self.counts(output)
        self.assertGreater(accelerated, 2 * passed, output)

    def test_the_interposer_alone_preloaded(self):
        library = os.path.join(os.path.dirname(os.path.dirname(Given.wrapper)), "src", "mpi", f"libkolo-mpi-{Given.family}.so")
        option = {"openmpi": ["-x", f"LD_PRELOAD={library}"], "mpich": ["-genv", "LD_PRELOAD", library]}[Given.family]
        secret = {"openmpi": ["-x", "KOLO_SECRET=of the tests"], "mpich": ["-genv", "KOLO_SECRET", "of the tests"]}[Given.family]
        # Without a secret every call is left to the MPI, and the random calls keep clear of what MPICH gets wrong.
        left = {"openmpi": ["-x", "KOLO_TEST_PASSED_ON=1"], "mpich": ["-genv", "KOLO_TEST_PASSED_ON", "1"]}[Given.family]
        for more in (secret, left):
            output = self.job([Given.random, "20", str(seeds.run_seed())], wrapper=Given.launcher.program, options=option + more)
            self.assertIn("20 rounds agree", output)
            self.assertEqual(self.counts(output)[0] > 0, more == secret, output)
            self.assertEqual("KOLO_SECRET is not set" in output, more != secret, output)

    def test_memory_of_the_mpi_s(self):
        output = self.job([Given.memory, "some"])
        self.assertIn("some: ok", output)
        self.assertNotRegex(output, "registrations=[1-9]")  # no rank maps what is on the other host

    def test_where_kolo_cannot_reach_the_other_host_the_program_runs_with_one_warning(self):
        unreached = {"no transport leads there": {"KOLO_TRANSPORTS": "shm"},
                     "ranks listen where nobody else can call": {"KOLO_INTERFACE": "lo", "KOLO_INIT_TIMEOUT_MS": "2000"}}
        for why, settings in unreached.items():
            with self.subTest(why):
                output = self.job([Given.memory, "some"], settings)  # the first collective is all ranks'
                self.assertIn("some: ok", output)
                self.assertEqual(output.count("kolo-mpi: Kolo did not start"), 1, output)
                self.assertEqual(self.counts(output)[0], 0, output)


def run(names):
    reason = Given.launcher.missing()
    if reason is not None:
        print(f"not tried: {reason}")
        return namespaces.SKIPPED
    return cases.run([Hosts], names)


def main():
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    Given.family, Given.wrapper, Given.random, Given.memory, *names = sys.argv[1:]
    Given.launcher = LAUNCHERS[Given.family]()
    return namespaces.run(lambda: run(names))


if __name__ == "__main__":
    sys.exit(main())
