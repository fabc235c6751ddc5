#!/usr/bin/env python3
"""Instructions of small operations, and bytes of the structures that they touch, beside what perf/results/yardsticks.json has: what was saved last,
and the instructions of "base", an old commit, which saving leaves alone, so that a little more each time is seen, too.

valgrind's callgrind counts what rank 0 executes from a call of kolo.h to its return, in calls that repeat and find their peer there already. That
number does not depend on the machine's load or speed, so a change of 1% can be seen. It depends on the compiler and its options.
"""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

OPERATIONS = ("all_reduce", "broadcast_root", "broadcast_leaf", "send", "receive", "list_of_1", "list_of_32", "gather_block", "gather_list",
              "gather_columns", "exchange_axes")  # of calls.c
CALLS = 400  # on a busy machine the peer is late for many
ALLOWED = 1.05


def instructions(program, operation):
    """The least that rank 0 executes in one call of `operation`: a call for which the peer was not there yet executes more."""
    job = {"KOLO_SIZE": "2", "KOLO_JOB": f"yardstick-{os.getpid()}-{random.random()}", "KOLO_TRANSPORTS": "shm", "HWLOC_COMPONENTS": "-x86"}
    command = [program, operation, str(CALLS)]
    with tempfile.TemporaryDirectory() as folder:
        counted = ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={folder}/call", "--toggle-collect=counted", "--dump-after=counted"]
        with subprocess.Popen(command, env={**os.environ, **job, "KOLO_RANK": "1"}) as peer:
            done = subprocess.run([*counted, *command], env={**os.environ, **job, "KOLO_RANK": "0"}, check=False)
            if done.returncode != 0:
                peer.kill()
        if done.returncode != 0 or peer.returncode != 0:
            raise SystemExit(f"{operation}: rank 0 ended with {done.returncode}, rank 1 with {peer.returncode}")
        counts = [total(os.path.join(folder, name)) for name in os.listdir(folder)]
    return min(count for count in counts if count > 0)


def least(program, operation, enough):
    """The least of up to four runs, for in some every call executes 28 instructions more; `enough` ends them."""
    found = instructions(program, operation)
    for _ in range(3):
        if found <= enough:
            break
        found = min(found, instructions(program, operation))
    return found


def total(path):
    with open(path, encoding="utf-8") as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith(("totals:", "summary:"))), 0)


def measure(calls, sizes, saved):
    found = {"instructions": {}, "bytes": {}}
    for operation in OPERATIONS:
        found["instructions"][operation] = least(calls, operation, saved.get(operation, 0))
    for line in subprocess.run([sizes], capture_output=True, text=True, check=True).stdout.splitlines():
        name, size = line.split()
        found["bytes"][name] = int(size)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("calls"), parser.add_argument("sizes"), parser.add_argument("saved")
    parser.add_argument("--compiled-by", required=True, help="compiler and options: figures of others are not compared")
    parser.add_argument("--save", action="store_true", help="write what was found to the saved figures")
    parser.add_argument("--check", action="store_true", help=f"exit with 1 if something is more than {ALLOWED} of what is saved")
    args = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("skipped: valgrind is not here (Debian package valgrind)")
        return 77 if args.check else 2
    with open(args.saved, encoding="utf-8") as text:
        saved = json.load(text)
    comparable = saved["compiled_by"] == args.compiled_by
    if args.check and not comparable:
        print(f"skipped: compiled by {args.compiled_by}; the saved figures by {saved['compiled_by']}")
        return 77
    found = measure(args.calls, args.sizes, saved["instructions"] if args.check else {})
    worse = []
    for kind, unit in (("instructions", "instructions"), ("bytes", "bytes")):
        for name, value in found[kind].items():
            before = saved[kind].get(name) if comparable else None
            print(f"{name:42} {value:8} {unit:12}" + (f" {value / before:6.3f} of {before}" if before else ""))
            if before and value > before * ALLOWED:
                worse.append(name)
            base = saved["base"].get(name) if comparable else None
            if base and value > base * ALLOWED:
                worse.append(f"{name} (base: {base})")
    if args.save:
        with open(args.saved, "w", encoding="utf-8") as text:
            kept = {"base": saved["base"], "base_commit": saved["base_commit"]}
            json.dump({"command": "ninja -C BUILD save-yardsticks", "compiled_by": args.compiled_by, **kept, **found}, text, indent=2)
            text.write("\n")
    if args.check and worse:
        print(f"more than {ALLOWED} of what is saved: {', '.join(worse)}. If that is wanted: ninja -C BUILD save-yardsticks, and say why")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
