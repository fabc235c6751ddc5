#!/usr/bin/env python3
"""Ranks of several hosts over Soft-RoCE, on one virtual machine or on two: what works there, and how it fails.

usage: check_jobs.py CASES KOLO_PERF KOLO_NETWORK_RANK [CASE...]

CASES is one_machine or two_machines. The cases run inside: on both of two machines, in the same order, each with its own ranks. The
exit status is 77 where no machine can be booted; the last line says why.
"""
import sys

sys.dont_write_bytecode = True

import os
import subprocess
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
MACHINES = {"one_machine": 1, "two_machines": 2}
SECONDS = 900
PASSED = ("KOLO_VM_CACHE", "KOLO_TEST_SMOKE")


def boot(name, words):
    command = [TOP / "tools" / "rdma-vm", "--vms", str(MACHINES[name]), "--nics", "2", "--memory", "2G", "--timeout", str(SECONDS)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KOLO_") or name in PASSED}
    return subprocess.run([*command, "--", sys.executable, Path(__file__).resolve(), name, *words], env=environment, check=False).returncode


def run_inside(name, words):
    sys.path[1:1] = [str(TOP / "tests" / folder) for folder in ("network", "support")] + [str(TOP / "tools")]
    import cases
    from jobs import Programs

    Programs.perf, Programs.rank, *names = words
    return cases.run([f"{name}_cases"], names)


def main():
    if len(sys.argv) < 4 or sys.argv[1] not in MACHINES:
        sys.exit(__doc__)
    name, *words = sys.argv[1:]
    if "KOLO_VM" in os.environ:
        return run_inside(name, words)
    return boot(name, [*map(os.path.abspath, words[:2]), *words[2:]])


if __name__ == "__main__":
    sys.exit(main())
