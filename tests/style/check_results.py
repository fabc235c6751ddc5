#!/usr/bin/env python3
"""Whether each file under perf/results is cited, each citation has its file, and each table says how it was made.

usage: check_results.py ROOT

A document or a source cites a file by its path below results/, or by its name alone where that begins with a date. What one file of perf/results says
of another is no citation, and neither is a pattern. A table, which is a text file, begins with lines of "#"; among these are the command that made it,
the machine, and the commit.
"""

import itertools
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDERS = ("include", "perf", "src", "tests", "tools", "transports")
CITATION = re.compile(r"(?<![\w-])results/([\w*][\w*./-]*)|(?<![\w/-])(\d{4}-\d\d-\d\d-[\w*.-]+\.(?:txt|json|log))")
IN_HEADS = ("command", "machine", "commit")
NO_TABLES = {"gpu/kernels.txt"}  # of no run: tests/gpu/check_kernels.py writes it, and compares kernels with it


def kept(folder):
    """The files that git has, for a tool may have left others there; or all files, where git has none."""
    try:
        done = subprocess.run(["git", "-C", folder, "ls-files", "-z"], capture_output=True, text=True, check=False)
        tracked = [name for name in done.stdout.split("\0") if (folder / name).is_file()]
    except OSError:
        tracked = []
    return sorted(tracked or [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()])


def texts(root, results):
    """Each document and source outside of the results, and what is in it."""
    files = [*root.iterdir(), *(file for folder in FOLDERS for file in (root / folder).rglob("*"))]
    for file in sorted(files):
        if file.is_file() and file.suffix != ".pyc" and results not in file.parents:
            yield file.relative_to(root), file.read_text(encoding="utf-8", errors="ignore")


def missing_in_head(file):
    with open(file, encoding="utf-8") as lines:
        head = "".join(itertools.takewhile(lambda line: line.startswith("#"), lines))
    return [word for word in IN_HEADS if not re.search(rf"^# {word}: \S", head, re.MULTILINE)]


def faults(root):
    results = root / "perf" / "results"
    names, cited = kept(results), set()
    for file, text in texts(root, results):
        for found in CITATION.finditer(text):
            name = (found[1] or found[2]).rstrip(".")
            cited.add(name)
            if name not in names and not (results / name).is_dir():
                yield f"{file}:{text.count(chr(10), 0, found.start()) + 1}: {name} is not in perf/results"
    for name in names:
        if name not in cited:
            yield f"perf/results/{name}: no document or source cites it"
        if name.endswith(".txt") and name not in NO_TABLES:
            yield from (f'perf/results/{name}: no line "# {word}: ..." in its head' for word in missing_in_head(results / name))


def expect_to_find():
    """That planted faults are found, and nothing where there is none."""
    day, data, head = "2026-01-02", "a.json", "# Title\n# command: x\n# machine: y\n# commit: z\n"
    table, other, deep = f"{day}-a.txt", f"{day}-b.txt", f"b/{data}"
    for what, changes, count in (
        ("no fault", {}, 0),
        ("a table that another table alone names", {f"perf/results/{table}": head + other, f"perf/results/{other}": head}, 1),
        ("data that nobody names", {f"perf/results/{data}": "{}"}, 1),
        ("data in a folder", {f"perf/results/{deep}": "{}", "src/a.h": f"See perf/results/{deep}."}, 0),
        ("a name without a file", {"src/a.h": f"// {other}"}, 1),
        ("a path without a file", {"src/a.h": f"// results/{data}"}, 1),
        ("a pattern", {"src/a.h": f"// results/{'*'}-a.txt"}, 1),
        ("a table without its machine", {f"perf/results/{table}": head.replace("# machine", "#")}, 1),
        ("a head behind a row", {f"perf/results/{table}": "row\n" + head}, len(IN_HEADS)),
    ):
        with tempfile.TemporaryDirectory() as place:
            for name, text in {f"perf/results/{table}": head, "README.md": f"`{table}`", **changes}.items():
                (Path(place) / name).parent.mkdir(parents=True, exist_ok=True)
                (Path(place) / name).write_text(text)
            found = list(faults(Path(place)))
            if len(found) != count:
                sys.exit(f"{what}: expected {count} faults, found {found}")


def main():
    expect_to_find()
    root = Path(sys.argv[1]).resolve()
    found = list(faults(root))
    print("\n".join(found) or f"{len(kept(root / 'perf' / 'results'))} files, each cited, and no other is")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
