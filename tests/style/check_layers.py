#!/usr/bin/env python3
"""Whether folders of src include one another in one direction only, and only those that their meson.build names; and whether no file of src
or transports includes itself by way of others.

usage: check_layers.py ROOT

A folder may include what its meson.build names as a dependency, and what those folders may include. No folder may come to include itself by
way of others: then neither could be understood, or tested, without the other.
"""

import re
import sys
import tempfile
from pathlib import Path

SUFFIXES = {".h", ".cc", ".cu", ".inc"}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"/]+)/[^"]*"', re.MULTILINE)
FILE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
DEPENDENCY = re.compile(r"\b(\w+)_dep\b")
OTHER_NAMES = {"cuda_executor": "executor"}  # dependencies that are not called as their folder
# Parts of libkolo that are clients of kolo/kolo.h, and all that they include besides: folders and headers.
CLIENTS = {"buckets": {"common", "base", "api/client.h"}}


def folders_of(root):
    return sorted(each.name for each in (root / "src").iterdir() if (each / "meson.build").exists())


def included(root, folder, folders):
    """By each other folder that `folder` includes, a file that does so."""
    found = {}
    for file in sorted((root / "src" / folder).rglob("*")):
        if file.suffix in SUFFIXES:
            for name in INCLUDE.findall(file.read_text()):
                if name in folders and name != folder:
                    found.setdefault(name, file)
    return found


def named(root, folder, folders):
    """The folders that the build files of `folder` name."""
    text = "".join(file.read_text() for file in sorted((root / "src" / folder).rglob("meson.build")))
    names = {OTHER_NAMES.get(name, name) for name in DEPENDENCY.findall(text)}
    return names & set(folders) - {folder}


def beyond_clients(root):
    """What clients include and may not."""
    for folder, allowed in CLIENTS.items():
        for file in sorted((root / "src" / folder).rglob("*")):
            for name in FILE.findall(file.read_text()) if file.suffix in SUFFIXES else []:
                if not allowed & {name, name.partition("/")[0]} and not name.startswith((f"{folder}/", "kolo/")):
                    yield f"{file}: includes {name}, which is none of {', '.join(sorted(allowed))}"


def reached(start, edges):
    seen, left = set(), list(edges[start])
    while left:
        one = left.pop()
        if one not in seen:
            seen.add(one)
            left += edges[one]
    return seen


def faults(root):
    folders = folders_of(root)
    includes = {folder: included(root, folder, folders) for folder in folders}
    may = {folder: named(root, folder, folders) for folder in folders}
    for folder in folders:
        allowed = reached(folder, may)
        if folder in reached(folder, includes):
            yield f"{folder} includes itself by way of {', '.join(sorted(reached(folder, includes) - {folder}))}"
        for other, file in includes[folder].items():
            if other not in allowed:
                yield f"{file}: includes {other}, which src/{folder}/meson.build does not name"


def circles(root):
    """Files that include themselves by way of others. Paths in includes begin at src, at the root or beside the file."""
    files = {file for top in ("src", "transports") for file in (root / top).rglob("*") if file.suffix in SUFFIXES}
    edges = {}
    for file in files:
        places = [[(root / "src" / name), (root / name), file.parent / name] for name in FILE.findall(file.read_text())]
        edges[file] = {place.resolve() for each in places for place in each if place.resolve() in files}
    for file in sorted(files):
        if file in reached(file, edges):
            yield f"{file.relative_to(root)} includes itself by way of others"


def expect_to_find():
    """That the faults are found."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        for folder, needs, text in (("low", "", '#include "high/a.h"\n'), ("high", "low_dep", '#include "low/a.h"\n')):
            (root / "src" / folder).mkdir(parents=True)
            (root / "src" / folder / "meson.build").write_text(f"dependencies: [{needs}]\n")
            (root / "src" / folder / "a.h").write_text(text)
        found = [fault.rpartition("/")[2] if "meson" not in fault else "not named" for fault in faults(root)]
        found += circles(root.resolve())
        (root / "src/buckets").mkdir()
        (root / "src/buckets/a.h").write_text('#include "base/a.h"\n#include "api/client.h"\n#include "buckets/b.h"\n#include "api/guard.h"\n')
        found += [fault.partition(": ")[2] for fault in beyond_clients(root)]
    wanted = ["high includes itself by way of low", "low includes itself by way of high", "not named"]
    wanted += [f"src/{folder}/a.h includes itself by way of others" for folder in ("high", "low")]
    wanted.append("includes api/guard.h, which is none of api/client.h, base, common")
    if found != wanted:
        sys.exit(f"of planted faults this was found: {found}")


def main():
    expect_to_find()
    root = Path(sys.argv[1]).resolve()
    found = [*faults(root), *beyond_clients(root), *circles(root)]
    print("\n".join(found) or "folders, and files, include one another in one direction, as build files say")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
