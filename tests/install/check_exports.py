#!/usr/bin/env python3
"""Checks that the header and the library's dynamic symbols name the same functions.

usage: check_exports.py LIBRARY HEADER
"""
import re
import subprocess
import sys

VERSION = "KOLO_0.1"


def declared(header):
    text = re.sub(r"/\*.*?\*/", "", open(header, encoding="utf-8").read(), flags=re.S)
    return set(re.findall(r"^KOLO_API\s[^;(]*?\b(\w+)\(", text, re.M))


def exported(library):
    output = subprocess.run(["nm", "-D", "--defined-only", "--with-symbol-versions", library],
                            check=True, capture_output=True, text=True).stdout
    names = set()
    for line in output.splitlines():
        name = line.split()[-1]
        if name == f"{VERSION}@@{VERSION}" or name == VERSION:  # the version node itself
            continue
        base, _, version = name.partition("@@")
        names.add(base if version == VERSION else name)
    return names


def main():
    library, header = sys.argv[1:]
    sets = {"kolo.h": declared(header), "the library": exported(library)}
    if not sets["kolo.h"]:
        sys.exit("found no function in the header")
    wrong = False
    for one, names in sets.items():
        for other, others in sets.items():
            for name in sorted(names - others):
                print(f"{name} is in {one} and not in {other}")
                wrong = True
    if wrong:
        sys.exit(1)
    print(f"{len(sets['kolo.h'])} functions agree")


main()
