"""Compares the table in tests/README.md with the names of the tests: the last field of a line's row holds the files in which
some test's name has the line. Usage: check_lines.py SOURCE_ROOT"""
import pathlib
import re
import sys

LINE = r"S[0-4]\.\d+\b"
CASE = re.compile(r'TEST_CASE\(\s*"([^"]*)"')


def files_by_line(tests):
    """For each line in the name of a Catch2 case, the files with such cases, as the table has them."""
    found = {}
    for file in sorted(tests.rglob("*.cc")):
        name = str(file.relative_to(tests).with_suffix("")).removesuffix("_test")
        for line in re.findall(LINE, " ".join(CASE.findall(file.read_text()))):
            found.setdefault(line, set()).add(name)
    return found


def main():
    tests = pathlib.Path(sys.argv[1]) / "tests"
    rows = re.findall(rf"^\| ({LINE}) \| .* \|(.*)\|$", (tests / "README.md").read_text(), re.M)
    told = {line: set(re.findall(r"`([^`]*)`", files)) for line, files in rows}
    have = files_by_line(tests)
    faults = [
        f"{line} is in names of tests in {sorted(have.get(line, set()))}, and tests/README.md says {sorted(told.get(line, set()))}"
        for line in sorted(told.keys() | have.keys())
        if have.get(line, set()) != told.get(line, set())
    ]
    if len(rows) < 40:
        faults.append(f"tests/README.md has {len(rows)} rows of lines, expected one for each of the systems' behaviours")
    print("\n".join(faults) or f"{len(have)} of {len(rows)} lines are in names of tests")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
