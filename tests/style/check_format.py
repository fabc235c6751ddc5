#!/usr/bin/env python3
"""Whether clang-format would leave all C, C++ and CUDA files of the repository as they are, and no line of them is longer than 120 columns.

usage: check_format.py ROOT FOLDER        FOLDER: where clang-format is put, where this machine has none of the right release

To format a file: clang-format-14 -i FILE.
"""
import subprocess
import sys

import llvm
import packages

ENDINGS = ("*.h", "*.cc", "*.c", "*.cu", "*.cuh")
COLUMNS = 120


def main():
    root, folder = sys.argv[1:]
    try:
        clang_format = llvm.find("clang-format", folder)
        files = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard", "--", *ENDINGS], cwd=root, capture_output=True, text=True, check=True).stdout
    except packages.Unavailable as why:
        print(f"skipped: {why}")
        return 77
    except (FileNotFoundError, subprocess.CalledProcessError):
        print(f"skipped: {root} is no git repository, or git is not here")
        return 77
    files = [name for name in files.split("\0") if name]
    assert files, "the repository has no sources"
    done = subprocess.run([clang_format, "--dry-run", "-Werror", *files], cwd=root, capture_output=True, text=True, check=False)
    print(done.stderr, end="")
    long = 0
    for name in files:
        with open(f"{root}/{name}", encoding="utf-8") as text:
            for number, line in enumerate(text, 1):
                if len(line.rstrip("\n")) > COLUMNS:
                    print(f"{name}:{number}: {len(line) - 1} columns, and {COLUMNS} are the most")
                    long += 1
    return 1 if done.returncode != 0 or long else 0


if __name__ == "__main__":
    sys.exit(main())
