#!/usr/bin/env python3
"""Runs kolo-perf --list or --axis several times, and prints the medians: the calls of one run are more alike than several runs are.

usage: median_of_runs.py RUNS KOLO-PERF --list FILE|--axis AXES [OPTION...]

A ratio is another way's time over that of the list (or the axis form), in one run; behind its median stand the least and the most of the runs.
"""
import csv
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tools"))
from comparing import head, typed


def measured(command):
    """By collective, ranks and buffers, what was measured, and its way, the median time."""
    with tempfile.TemporaryDirectory() as folder:
        table = pathlib.Path(folder, "perf.csv")
        done = subprocess.run([*command, "--csv", table], stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"median_of_runs.py: exit status {done.returncode} from {' '.join(command)}\n{done.stdout}")
        with open(table, encoding="utf-8") as rows:
            times = {}
            for row in csv.DictReader(rows):
                line = (row["collective"], row["what"], row["ranks"], row["datatypes"], row["buffers"])
                times.setdefault(line, {})[row["way"]] = float(row["time_us_median"])
            return times


def main():
    if len(sys.argv) < 4 or not sys.argv[1].isdigit() or int(sys.argv[1]) < 1 or not os.access(sys.argv[2], os.X_OK):
        sys.exit(__doc__)
    runs = [measured(sys.argv[2:]) for _ in range(int(sys.argv[1]))]
    print(head(f"medians of {len(runs)} runs, the least and the most behind them", typed()))
    ways = list(next(iter(runs[0].values())))
    others = ways[1:]
    ratios = "".join(f"{f'{other}/{ways[0]}':>24}" for other in others)
    print(f"# {'collective':<15}{'what':<29}{'ranks':>5} {'type':<10}{'buffers':<11}" + "".join(f"{f'{way} us':>12}" for way in ways) + ratios)
    for line in runs[0]:
        collective, what, ranks, datatypes, buffers = line
        times = "".join(f"{statistics.median(run[line][way] for run in runs):12.1f}" for way in ways)
        cells = ""
        for other in others:
            found = [run[line][other] / run[line][ways[0]] for run in runs]
            cells += f"{f'{statistics.median(found):.2f} ({min(found):.2f}-{max(found):.2f})':>24}"
        print(f"  {collective:<15}{what:<29}{ranks:>5} {datatypes:<10}{buffers:<11}{times}{cells}", flush=True)


if __name__ == "__main__":
    main()
