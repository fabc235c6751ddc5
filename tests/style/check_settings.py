#!/usr/bin/env python3
"""Whether each setting earns its place: users are told of it, by a row of README.md's table, and a test sets it.

usage: check_settings.py ROOT

The settings are the rows of the table in src/base/settings.cc. Those named KOLO_TEST_... are for tests and measurements: no document for users
names them. A test sets a setting where its name stands in quotes, or in front of an equals sign.
"""

import re
import sys
from pathlib import Path

NAME = re.compile(r'\{"(KOLO_\w+)", k[A-Z]')
ROW = re.compile(r"^\| `(KOLO_\w+)` \|", re.MULTILINE)
SET = re.compile(r"""["'](KOLO_\w+)["'=]|\b(KOLO_\w+)=""")
FOR_TESTS = "KOLO_TEST_"


def faults(table, readme, tests):
    settings = NAME.findall(table)
    rows = ROW.findall(readme)
    told = [name for name in settings if not name.startswith(FOR_TESTS)]
    are_set = {name for pair in SET.findall(tests) for name in pair}
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
    if found != wanted:
        sys.exit(f"of planted faults this was found: {found}")


def main():
    expect_to_find()
    root = Path(sys.argv[1])
    tests = "".join(file.read_text() for file in sorted((root / "tests").rglob("*"))
                    if file.suffix in {".cc", ".h", ".py", ".c", ".build"} and file.parent.name != "style")
    found = list(faults((root / "src/base/settings.cc").read_text(), (root / "README.md").read_text(), tests))
    print("\n".join(found) or "each setting has a row in README.md, and a test that sets it")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
