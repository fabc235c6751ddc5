#!/usr/bin/env python3
"""Starts kolo-perf and kolo-rank-report under a launcher, as its users do.

usage: check_launchers.py LAUNCHER KOLO_PERF KOLO_RANK_REPORT README [CASE...]

LAUNCHER is shells, torchrun, openmpi, mpich or slurm. The exit status is 77 where the launcher is not installed, or its
daemons do not start here; the last line says why.
"""
import sys

sys.dont_write_bytecode = True

import importlib
import unittest

import guard
from every_launcher import Programs

SKIPPED = 77


class Result(unittest.TextTestResult):
    passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1


def run(launcher, cases):
    module = importlib.import_module(f"{launcher}_cases")
    reason = module.missing()
    if reason is not None:
        print(f"not tried: {reason}")
        return SKIPPED
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{case}*" for case in cases] or None
    runner = unittest.TextTestRunner(stream=sys.stdout, verbosity=2, resultclass=Result)
    done = runner.run(loader.loadTestsFromModule(module))
    if done.wasSuccessful() and done.passed == 0:
        print(f"not tried: {done.skipped[0][1] if done.skipped else 'no case has this name'}")
        return SKIPPED
    return 0 if done.wasSuccessful() else 1


def main():
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    launcher, Programs.perf, Programs.report, Programs.readme, *cases = sys.argv[1:]
    return guard.run_guarded(lambda: run(launcher, cases))


if __name__ == "__main__":
    sys.exit(main())
