#!/usr/bin/env python3
"""Ranks on several hosts, which are network namespaces of this machine: what works there, and how it fails.

usage: check_network.py CASES KOLO_PERF KOLO_NETWORK_RANK [CASE...]

CASES is collectives, traps, failures, succession, rendezvous or scarce. The exit status is 77 where namespaces cannot be made; the last line says why.
"""
import sys

sys.dont_write_bytecode = True

import pathlib

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tools"), str(TOP / "tests" / "support")]

import cases
import namespaces
from jobs import Programs


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    name, Programs.perf, Programs.rank, *names = sys.argv[1:]
    return namespaces.run(lambda: cases.run([f"{name}_cases"], names))


if __name__ == "__main__":
    sys.exit(main())
