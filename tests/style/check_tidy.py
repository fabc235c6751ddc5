#!/usr/bin/env python3
"""What clang-tidy finds in the library, its transports, kolo-perf and the tools.

usage: check_tidy.py ROOT BUILD

With KOLO_TEST_ALL in the environment in all of their files (half an hour); with KOLO_TIDY_BASE in those that differ from this commit, where for a
header one file that includes it is looked at, or those that are compiled together with it; else in a few folders, a smoke. To look at one file:
clang-tidy-14 -p BUILD FILE.
"""
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile

import llvm
import packages

FOLDERS = ("src", "transports", "perf", "tools")
SMOKE = ("src/base/", "src/planner/")


def git(root, *command):
    return subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, check=True).stdout.split()


def changed(root, base):
    """The files that differ from a commit, in the work tree, by their paths from ROOT."""
    return git(root, "diff", "--name-only", "--diff-filter=d", git(root, "merge-base", "HEAD", base)[0])


def compile_commands(build):
    """Those of Meson, with an entry for each file of a unity build: [(object, entry)]."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as text:
        entries = json.load(text)
    found = []
    for entry in entries:
        file = os.path.join(entry["directory"], entry["file"])
        sources = [file]
        if re.search(r"-unity\d+\.c(pp)?$", file):
            with open(file, encoding="utf-8") as text:
                sources = re.findall(r"^#include ?[<\"]([^\">]+)", text.read(), re.M)
        for source in sources:
            path = os.path.normpath(os.path.join(entry["directory"], source))
            found.append((entry["output"], {**entry, "file": path, "command": entry["command"].replace(entry["file"], path)}))
    return found


def includers(build, compiled, headers):
    """For each header those compiled files of one object that include it. compiled: {object: sources}."""
    lines = subprocess.run(["ninja", "-C", build, "-t", "deps"], capture_output=True, text=True, check=True).stdout.splitlines()
    found, sources = {}, None
    for line in lines:
        if not line.startswith(" "):
            sources = compiled.get(line.split(":")[0])
        elif sources and (header := os.path.normpath(os.path.join(build, line.strip()))) in headers:
            found.setdefault(header, sources)
    return set().union(*found.values())


def check(clang_tidy, root, database, path):
    done = subprocess.run(
        [clang_tidy, "-p", database, "--quiet", "--warnings-as-errors=*", "--extra-arg=-Wno-unknown-warning-option", os.path.join(root, path)],
        capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def main():
    root, build = sys.argv[1:]
    everything, base = "KOLO_TEST_ALL" in os.environ, os.environ.get("KOLO_TIDY_BASE")
    commands = compile_commands(build)
    objects = {}
    for built, entry in commands:
        path = os.path.relpath(entry["file"], root)
        if path.startswith(FOLDERS) and path.endswith(".cc"):
            objects.setdefault(built, set()).add(path)
    compiled = set().union(*objects.values())
    assert compiled, f"{build} compiles nothing in {FOLDERS}"
    try:
        paths = compiled
        if not everything and base is None:
            paths = {path for path in compiled if path.startswith(SMOKE)}
        elif not everything:
            differ = changed(root, base)
            headers = {os.path.join(root, path) for path in differ if path.endswith(".h")}
            paths = compiled.intersection(differ) | includers(build, objects, headers)
        clang_tidy = llvm.find("clang-tidy", os.path.join(build, "tests", "style"))
    except packages.Unavailable as why:
        print(f"skipped: {why}")
        return 77
    except (FileNotFoundError, subprocess.CalledProcessError):
        print(f"skipped: {root} is no git repository, or git is not here")
        return 77
    print(f"{len(paths)} of {len(compiled)} files")
    with tempfile.TemporaryDirectory() as database, concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        with open(os.path.join(database, "compile_commands.json"), "w", encoding="utf-8") as text:
            json.dump([entry for _, entry in commands], text)
        found = list(filter(None, pool.map(lambda path: check(clang_tidy, root, database, path), sorted(paths))))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
