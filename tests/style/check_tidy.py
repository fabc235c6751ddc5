#!/usr/bin/env python3
"""What clang-tidy finds in the library, its transports, kolo-perf and the tools.

usage: check_tidy.py ROOT BUILD

With KOLO_TEST_ALL in the environment in all of their files (ten minutes); with KOLO_TIDY_BASE in those that differ from this commit, where for a
header one file that includes it is looked at, or those that are compiled together with it; else in a few folders, a smoke. To look at one file:
clang-tidy-14 -p BUILD FILE.

Most of the time goes into matching what the headers of other projects declare. So files that are compiled by the same command are looked at together:
one text with the files behind each other.
"""
import bisect
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

import llvm
import packages

FOLDERS = ("src", "transports", "perf", "tools")
SMOKE = ("src/base/", "src/planner/")
TOGETHER = 12
# A path is followed through a function for so many steps; with the usual 225,000 ten functions take most of the time.
STEPS = 20000
OPTIONS = ["--quiet", "--warnings-as-errors=*", "--extra-arg=-Wno-unknown-warning-option", "--extra-arg=-Xclang", "--extra-arg=-analyzer-config",
           "--extra-arg=-Xclang", f"--extra-arg=max-nodes={STEPS}"]


def git(root, *command):
    return subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, check=True).stdout.split()


def changed(root, base):
    """The files that differ from a commit, in the work tree, by their paths from ROOT."""
    return git(root, "diff", "--name-only", "--diff-filter=d", git(root, "merge-base", "HEAD", base)[0])


def compiled(root, build):
    """The files of FOLDERS that BUILD compiles: [(object, arguments of the compiler but for input and output, folder, path from ROOT)]."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as text:
        entries = json.load(text)
    found = []
    for entry in entries:
        if not entry["output"].startswith(FOLDERS):  # another version of the library, for tests
            continue
        file = os.path.join(entry["directory"], entry["file"])
        sources = [file]
        if re.search(r"-unity\d+\.c(pp)?$", file):
            with open(file, encoding="utf-8") as text:
                sources = re.findall(r"^#include ?[<\"]([^\">]+)", text.read(), re.M)
        arguments = [argument for argument in shlex.split(entry["command"])[1:]
                     if argument not in ("-o", "-c", "-MD", "-MQ", "-MF", entry["file"]) and not argument.startswith(entry["output"])]
        for source in sources:
            path = os.path.relpath(os.path.join(entry["directory"], source), root)
            if path.startswith(FOLDERS) and path.endswith(".cc"):
                found.append((entry["output"], arguments, entry["directory"], path))
    return found


def includers(build, objects, headers):
    """For each header those compiled files of one object that include it. objects: {object: sources}."""
    lines = subprocess.run(["ninja", "-C", build, "-t", "deps"], capture_output=True, text=True, check=True).stdout.splitlines()
    found, sources = {}, None
    for line in lines:
        if not line.startswith(" "):
            sources = objects.get(line.split(":")[0])
        elif sources and (header := os.path.normpath(os.path.join(build, line.strip()))) in headers:
            found.setdefault(header, sources)
    return set().union(*found.values())


def batches(files, paths):
    """Files of a folder that one command compiles, TOGETHER at a time: [(arguments, the compiler's work folder, paths)]."""
    same = {}
    for _, arguments, folder, path in files:
        if path in paths:
            same.setdefault((tuple(arguments), folder, os.path.dirname(path)), set()).add(path)
    return [(arguments, folder, sorted(group)[start:start + TOGETHER])
            for (arguments, folder, _), group in same.items() for start in range(0, len(group), TOGETHER)]


def check(clang_tidy, root, batch):
    """What clang-tidy says of a batch; nothing, if it finds nothing."""
    arguments, folder, paths = batch
    begins, lines = [], []  # at which line of the text a file begins
    for path in paths:
        begins.append(len(lines))
        with open(os.path.join(root, path), encoding="utf-8") as source:
            lines += source.read().splitlines()
    with tempfile.TemporaryDirectory() as together:
        text = os.path.join(together, "together.cc")
        with open(text, "w", encoding="utf-8") as out:
            out.write("\n".join(lines) + "\n")
        done = subprocess.run([clang_tidy, f"--config-file={root}/.clang-tidy", *OPTIONS, text, "--", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if "[clang-diagnostic-error]" in done.stdout and len(paths) > 1:  # two files have a name in common
        return "".join(check(clang_tidy, root, (arguments, folder, [path])) for path in paths)

    def at_home(place):
        line = int(place[1])
        file = bisect.bisect_left(begins, line) - 1
        return f"{paths[file]}:{line - begins[file]}:"
    return "" if done.returncode == 0 else re.sub(rf"{re.escape(text)}:(\d+):", at_home, done.stdout + done.stderr)


def main():
    root, build = sys.argv[1:]
    everything, base = "KOLO_TEST_ALL" in os.environ, os.environ.get("KOLO_TIDY_BASE")
    files = compiled(root, build)
    objects = {}
    for built, _, _, path in files:
        objects.setdefault(built, set()).add(path)
    known = {path for _, _, _, path in files}
    assert known, f"{build} compiles nothing in {FOLDERS}"
    try:
        paths = known
        if not everything and base is None:
            paths = {path for path in known if path.startswith(SMOKE)}
        elif not everything:
            differ = changed(root, base)
            headers = {os.path.join(root, path) for path in differ if path.endswith(".h")}
            paths = known.intersection(differ) | includers(build, objects, headers)
        clang_tidy = llvm.find("clang-tidy", os.path.join(build, "tests", "style"))
    except packages.Unavailable as why:
        print(f"skipped: {why}")
        return 77
    except (FileNotFoundError, subprocess.CalledProcessError):
        print(f"skipped: {root} is no git repository, or git is not here")
        return 77
    print(f"{len(paths)} of {len(known)} files")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        found = list(filter(None, pool.map(lambda batch: check(clang_tidy, root, batch), batches(files, paths))))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
