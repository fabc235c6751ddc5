#!/usr/bin/env python3
"""Whether files, functions and classes of the library are small: at most 500 lines, 60 lines and 30 public functions.

usage: check_sizes.py ROOT

It relies on the form that clang-format gives: what begins at some depth of indentation ends with a brace at that depth. Constructors, destructors and
operators are not counted among a class's functions, and declarations of one name are one function.
"""

import re
import sys
from pathlib import Path

MOST_LINES, MOST_OF_A_FUNCTION, MOST_PUBLIC = 500, 60, 30
CLASS = re.compile(r"^( *)(?:template <.*> )?(class|struct) (?:\[\[\w+\]\] )?(?:alignas\(\w+\) )?(\w+)[^;()]*\{$")
NO_FUNCTION = re.compile(r'^ *(?:namespace|enum|union|extern "C" \{|class|struct|template <.*> (?:class|struct))|[=(,]\s*\{$|^ *\{$')
BEGIN = re.compile(r"^( *)[^ #/}].*$")
CALLED = re.compile(r"([~\w]+|operator\W+)\(")


def end_of(lines, begin, depth):
    """Where the block ends that begins in a line of this indentation."""
    return next(i for i in range(begin + 1, len(lines)) if lines[i].startswith(depth + "}"))


def functions(lines):
    """(name, lines) of each function with a body of its own: at the depth of a file, or in a class."""
    depths, after = {""}, 0
    for i, line in enumerate(lines):
        if found := CLASS.match(line):
            depths.add(found[1] + "  ")
        elif i >= after and (found := BEGIN.match(line)) and found[1] in depths:
            after = i  # where the head ends, which may be of several lines
            while not re.search(r"[;{}:>]$", lines[after]) and after + 1 < len(lines):
                after += 1
            name = CALLED.search(" ".join(lines[i : after + 1]))
            if lines[after].endswith("{") and name and not NO_FUNCTION.search(line) and not NO_FUNCTION.search(lines[after]):
                after = end_of(lines, after, found[1])
                yield name[1], after - i + 1
            after += 1


def public_functions(lines):
    """(class, number of names) of each class."""
    for i, line in enumerate(lines):
        if not (found := CLASS.match(line)):
            continue
        depth, is_public, names = found[1] + "  ", found[2] == "struct", set()
        for inner in lines[i + 1 : end_of(lines, i, found[1])]:
            if label := re.match(found[1] + r" (public|private|protected):", inner):
                is_public = label[1] == "public"
            elif is_public and re.match(depth + r"[\w\[]", inner) and (name := CALLED.search(re.sub(r"\[\[.*?\]\]", "", inner))):
                names.add(name[1])
        yield found[3], len({name for name in names if name.lstrip("~") != found[3] and not name.startswith("operator")})


def faults_in(name, text):
    lines = [re.sub(r"\{  //.*$", "{", line) for line in text.split("\n")]
    if text.count("\n") > MOST_LINES:
        yield f"{name}: {text.count(chr(10))} lines, expected {MOST_LINES} at most"
    for function, size in functions(lines):
        if size > MOST_OF_A_FUNCTION:
            yield f"{name}: {function} has {size} lines, expected {MOST_OF_A_FUNCTION} at most"
    for of, count in public_functions(lines):
        if count > MOST_PUBLIC:
            yield f"{name}: {of} has {count} public functions, expected {MOST_PUBLIC} at most"


def check_itself():
    """Each fault is found in a text that has it."""
    long = "int f(int a,\n      int b) {\n" + "  g();\n" * 58 + "}\n"
    wide = "class A {\n public:\n  A();\n" + "".join(f"  int f{i}() const;\n" for i in range(31)) + " private:\n  void g();\n};\n"
    inner = "class B {\n" + long.replace("\n", "\n  ").rstrip(" ").replace("int f", "  int f", 1) + "};\n"
    for text, count in ((long, 1), (wide, 1), (inner, 1), ("\n" * 501, 1), (long.replace("  g();\n", "", 1), 0), (wide.replace("  int f0() const;\n", ""), 0)):
        found = list(faults_in("text", text))
        assert len(found) == count, f"expected {count} faults, found {found}, in\n{text}"


def main():
    check_itself()
    root = Path(sys.argv[1])
    files = sorted(file for folder in ("src", "transports") for pattern in ("*.h", "*.cc", "*.cu") for file in (root / folder).rglob(pattern))
    assert len(files) > 200, f"{len(files)} files in {root}"
    faults = [fault for file in files for fault in faults_in(file.relative_to(root), file.read_text())]
    print("\n".join(faults) or f"{len(files)} files")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
