#!/usr/bin/env python3
"""Starts kolo-perf and kolo-rank-report under a launcher, as its users do.

usage: check_launchers.py LAUNCHER KOLO_PERF KOLO_RANK_REPORT README [CASE...]

LAUNCHER is shells, torchrun, openmpi, mpich or slurm. The exit status is 77 where the launcher is not installed, or its
daemons do not start here; the last line says why.
"""
import sys

sys.dont_write_bytecode = True

import importlib
import os

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import cases
import guard
from every_launcher import Programs

SKIPPED = 77


def run(launcher, names):
    module = importlib.import_module(f"{launcher}_cases")
    reason = module.missing()
    if reason is not None:
        print(f"not tried: {reason}")
        return SKIPPED
    return cases.run([module], names)


def main():
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    launcher, Programs.perf, Programs.report, Programs.readme, *names = sys.argv[1:]
    return guard.run_guarded(lambda: run(launcher, names))


if __name__ == "__main__":
    sys.exit(main())
