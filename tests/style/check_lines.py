"""Compares the table in tests/README.md with the names of the tests: a line is marked "named" if, and only if, the name of
some test has it. Usage: check_lines.py SOURCE_ROOT"""
import pathlib
import re
import sys

LINE = r"S[0-4]\.\d+\b"


def named(tests):
    """The lines in names of Catch2 cases."""
    cases = re.compile(r'TEST_CASE\(\s*"([^"]*)"')
    return {line for file in tests.rglob("*.cc") for name in cases.findall(file.read_text()) for line in re.findall(LINE, name)}


def main():
    tests = pathlib.Path(sys.argv[1]) / "tests"
    rows = re.findall(rf"^\| ({LINE}) \| .* \| (named|unnamed) \|$", (tests / "README.md").read_text(), re.M)
    told = {line for line, state in rows if state == "named"}
    have = named(tests)
    faults = [f"{line} is named by a test, and tests/README.md does not say so" for line in sorted(have - told)]
    faults += [f"{line} is said to be named, and no test's name has it" for line in sorted(told - have)]
    if len(rows) < 40:
        faults.append(f"tests/README.md has {len(rows)} rows of lines, expected one for each of the systems' behaviours")
    print("\n".join(faults) or f"{len(have)} of {len(rows)} lines are in names of tests")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
