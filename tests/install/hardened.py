#!/usr/bin/env python3
"""Checks that the built library has what makes a fault in it harder to use: all symbols bound when it is loaded, so that
tables of functions are read-only; canaries on the stack; checked copies.

usage: hardened.py LIBRARY
"""
import subprocess
import sys


def readelf(option, library):
    return subprocess.run(["readelf", "--wide", option, library], check=True, capture_output=True, text=True).stdout


def problems(library):
    if "GNU_RELRO" not in readelf("--program-headers", library):
        yield "there is no GNU_RELRO segment: expected the linker option -z relro"
    dynamic = readelf("--dynamic", library)
    if "BIND_NOW" not in dynamic and " NOW" not in dynamic:
        yield "the dynamic section has no BIND_NOW: expected the linker option -z now"
    symbols = readelf("--dyn-syms", library)
    if "__stack_chk_fail" not in symbols:
        yield "__stack_chk_fail is not imported: expected -fstack-protector-strong"
    if "_chk@" not in symbols.replace("__stack_chk_fail@", ""):
        yield "no checked function (__memcpy_chk, ...) is imported: expected -D_FORTIFY_SOURCE=2"


def main():
    found = list(problems(sys.argv[1]))
    for problem in found:
        print(f"{sys.argv[1]}: {problem}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
