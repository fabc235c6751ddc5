#!/usr/bin/env python3
"""Whether clang-format would leave all C, C++ and CUDA files of the repository as they are, and no line of them is longer than 120 columns, nor a
line of prose in its documents.

usage: check_format.py ROOT FOLDER        FOLDER: where clang-format is put, where this machine has none of the right release

To format a file: clang-format-14 -i FILE.
"""
import subprocess
import sys

import llvm
import packages

ENDINGS = ("*.h", "*.cc", "*.c", "*.cu", "*.cuh")
COLUMNS = 120


def listed(root, *endings):
    command = ["git", "ls-files", "-z", "-co", "--exclude-standard", "--", *endings]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split("\0") if name]


def lines_of(root, name):
    """The numbered lines that are not to be long: of a document, those outside of tables and code."""
    is_document, is_code = name.endswith(".md"), False
    with open(f"{root}/{name}", encoding="utf-8") as text:
        for number, line in enumerate(text, 1):
            if is_document and line.startswith("```"):
                is_code = not is_code
            if not (is_document and (is_code or line.startswith(("|", "    ")))):
                yield number, line.rstrip("\n")


def main():
    root, folder = sys.argv[1:]
    try:
        clang_format = llvm.find("clang-format", folder)
        files, documents = listed(root, *ENDINGS), listed(root, "*.md")
    except packages.Unavailable as why:
        print(f"skipped: {why}")
        return 77
    except (FileNotFoundError, subprocess.CalledProcessError):
        print(f"skipped: {root} is no git repository, or git is not here")
        return 77
    assert files and documents, "the repository has no sources, or no documents"
    done = subprocess.run([clang_format, "--dry-run", "-Werror", *files], cwd=root, capture_output=True, text=True, check=False)
    print(done.stderr, end="")
    long = 0
    for name in files + documents:
        for number, line in lines_of(root, name):
            if len(line) > COLUMNS:
                print(f"{name}:{number}: {len(line)} columns, and {COLUMNS} are the most")
                long += 1
    return 1 if done.returncode != 0 or long else 0


if __name__ == "__main__":
    sys.exit(main())
