#!/usr/bin/env python3
"""Whether each setting earns its place: users are told of it, mostly by a row of README.md's table, and a test sets it.

usage: check_settings.py ROOT

The settings are the rows of the table in src/base/settings.cc. Those named KOLO_TEST_... are for tests and measurements: no document for users
names them. The MPI interposer and the backend for PyTorch read further ones (KOLO_MPI_..., KOLO_TORCH_...), of which their own README.md tells; what
setup.py reads is a build's.
A test sets a setting where its name stands in quotes, or in front of an equals sign.
"""

import re
import sys
from pathlib import Path

NAME = re.compile(r'\{"(KOLO_\w+)", k[A-Z]')
ROW = re.compile(r"^\| `(KOLO_\w+)` \|", re.MULTILINE)
SET = re.compile(r"""["'](KOLO_\w+)["'=]|\b(KOLO_\w+)=""")
FOR_TESTS = "KOLO_TEST_"
CLIENTS = {"mpi": re.compile(r'"(KOLO_MPI_\w+)"'), "torch": re.compile(r'"(KOLO_TORCH_\w+)"')}  # by folder of src


def set_by(tests):
    return {name for pair in SET.findall(tests) for name in pair}


def faults_of_client(where, settings, readme, tests):
    for name in sorted(settings):
        if f"`{name}" not in readme:
            yield f"{where}/README.md does not tell of {name}"
        if name not in set_by(tests):
            yield f"no test sets {name}"


def faults(table, readme, tests):
    settings = NAME.findall(table)
    rows = ROW.findall(readme)
    told = [name for name in settings if not name.startswith(FOR_TESTS)]
    are_set = set_by(tests)
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
    wanted = ["KOLO_B has no row in README.md's table of settings", "README.md has a row of KOLO_TEST_C, which is no setting for users",
              "no test sets KOLO_A", "no test sets KOLO_TEST_D"]
    found += faults_of_client("src/x", CLIENTS["mpi"].findall('get("KOLO_MPI_E"), get("KOLO_MPI_F")'), "`KOLO_MPI_F=1`", "KOLO_MPI_E=1")
    wanted += ["src/x/README.md does not tell of KOLO_MPI_E", "no test sets KOLO_MPI_F"]
    if found != wanted:
        sys.exit(f"of planted faults this was found: {found}")


def main():
    expect_to_find()
    root = Path(sys.argv[1])
    tests = "".join(file.read_text() for file in sorted((root / "tests").rglob("*"))
                    if file.suffix in {".cc", ".h", ".py", ".c", ".build"} and file.parent.name != "style")
    found = list(faults((root / "src/base/settings.cc").read_text(), (root / "README.md").read_text(), tests))
    for folder, pattern in CLIENTS.items():
        where = root / "src" / folder
        read = {name for kind in ("*.cc", "*.h", "*.py") for file in where.rglob(kind) if file.name != "setup.py" for name in pattern.findall(file.read_text())}
        found += faults_of_client(f"src/{folder}", read, (where / "README.md").read_text(), tests)
    print("\n".join(found) or "users are told of each setting, and a test sets it")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
