#!/usr/bin/env python3
"""Ranks on several hosts, which are network namespaces of this machine: what works there, and how it fails.

usage: check_network.py CASES KOLO_PERF KOLO_NETWORK_RANK [CASE...]

CASES is collectives, traps, failures or rendezvous. The exit status is 77 where namespaces cannot be made; the last line says why.
"""
import sys

sys.dont_write_bytecode = True

import importlib
import pathlib
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))

import namespaces
from jobs import Programs


def run(name, cases):
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{case}*" for case in cases] or None
    done = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(loader.loadTestsFromModule(importlib.import_module(f"{name}_cases")))
    if done.wasSuccessful() and done.testsRun == len(done.skipped):
        print(f"not tried: {done.skipped[0][1] if done.skipped else 'no case has this name'}")
        return namespaces.SKIPPED
    return 0 if done.wasSuccessful() else 1


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    name, Programs.perf, Programs.rank, *cases = sys.argv[1:]
    return namespaces.run(lambda: run(name, cases))


if __name__ == "__main__":
    sys.exit(main())
