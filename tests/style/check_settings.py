#!/usr/bin/env python3
"""Whether each setting earns its place: users are told of it, by a row of README.md's table, and a test sets it.

usage: check_settings.py ROOT

The settings are the rows of the table in src/base/settings.cc. Those named KOLO_TEST_... are for tests and measurements: no document for users
names them. A test sets a setting where its name stands in quotes, or in front of an equals sign.

The clients (src/mpi with kolo-mpirun, src/torch) read variables of their own. Each has to be named in the client's README.md, and a test has to
set it. What setup.py reads belongs to the build.
"""

import re
import sys
from pathlib import Path

NAME = re.compile(r'\{"(KOLO_\w+)", k[A-Z]')
ROW = re.compile(r"^\| `(KOLO_\w+)` \|", re.MULTILINE)
SET = re.compile(r"""["'](KOLO_\w+)["'=]|\b(KOLO_\w+)=""")
READ = re.compile(r"""["'](KOLO_\w+)["']|\$\{(KOLO_\w+)""")
TOLD = re.compile(r"`(KOLO_\w+)\b")
FOR_TESTS = "KOLO_TEST_"
CLIENTS = {"src/mpi/README.md": ("src/mpi/*.cc", "src/mpi/*.h", "tools/kolo-mpirun.in"),
           "src/torch/README.md": ("src/torch/*.cc", "src/torch/*.h", "src/torch/kolo_torch*.py", "src/torch/kolo_torch/*.py")}


def names(pattern, text):
    return {name for pair in pattern.findall(text) for name in pair if name}


def faults_of_client(table, page, readme, code, tests):
    for name in sorted(names(READ, code) - set(NAME.findall(table))):
        if name not in TOLD.findall(readme):
            yield f"{name} is not named in {page}"
        if name not in names(SET, tests):
            yield f"no test sets {name}"


def faults(table, readme, tests):
    settings = NAME.findall(table)
    rows = ROW.findall(readme)
    told = [name for name in settings if not name.startswith(FOR_TESTS)]
    are_set = names(SET, tests)
    for name in told:
        if name not in rows:
            yield f"{name} has no row in README.md's table of settings"
    for name in rows:
        if name not in told:
            yield f"README.md has a row of {name}, which is no setting for users"
    for name in settings:
        if name not in are_set:
            yield f"no test sets {name}"


def expect_to_find():
    """That the faults are found."""
    table = "".join(f'{{"{name}", kText, "", "meaning"}},\n' for name in ("KOLO_A", "KOLO_B", "KOLO_TEST_C", "KOLO_TEST_D"))
    found = list(faults(table, "| `KOLO_A` | a |\n| `KOLO_TEST_C` | c |\n", 'set("KOLO_B"), run KOLO_TEST_C=1, never KOLO_TEST_D'))
    found += faults_of_client(table, "a page", "`KOLO_X_A=1`", 'getenv("KOLO_A") environ.get("KOLO_X_A") ${KOLO_X_B:-1}', "KOLO_X_B=1")
    wanted = ["KOLO_B has no row in README.md's table of settings", "README.md has a row of KOLO_TEST_C, which is no setting for users",
              "no test sets KOLO_A", "no test sets KOLO_TEST_D", "no test sets KOLO_X_A", "KOLO_X_B is not named in a page"]
    if found != wanted:
        sys.exit(f"of planted faults this was found: {found}")


def main():
    expect_to_find()
    root = Path(sys.argv[1])
    tests = "".join(file.read_text() for file in sorted((root / "tests").rglob("*"))
                    if file.suffix in {".cc", ".h", ".py", ".c", ".build"} and file.parent.name != "style")
    table = (root / "src/base/settings.cc").read_text()
    found = list(faults(table, (root / "README.md").read_text(), tests))
    for page, patterns in CLIENTS.items():
        code = "".join(file.read_text() for pattern in patterns for file in sorted(root.glob(pattern)))
        if not names(READ, code) - set(NAME.findall(table)):
            sys.exit(f"found no variable that the client of {page} reads")
        found += faults_of_client(table, page, (root / page).read_text(), code, tests)
    print("\n".join(found) or "each setting is documented, and a test sets it")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
