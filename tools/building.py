#!/usr/bin/env python3
"""Builds with ninja, and shows that a long build goes on.

usage: building.py [-j JOBS] [--nice N] FOLDER [TARGET...]

On a terminal that is ninja's own line. Elsewhere it is a line for each tenth of the build, "building build: 40% (123 of
307)", and whatever the commands print; for a command that fails, ninja also says which.
"""

import argparse
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True

STATUS = "kolo-building %f/%t "  # before each command that has ended: how many have, of how many
ENDED = re.compile(r"kolo-building (\d+)/(\d+) ")
OF_NO_INTEREST = re.compile(r"ninja: (Entering directory|no work to do)")


def ninja(folder, targets=(), jobs=None, nice=0, output=None):
    """Whether the targets are built, or everything. output: where the lines go; default: standard output."""
    output = output or sys.stdout
    command = ["ninja", "-C", folder, *([f"-j{jobs}"] if jobs else []), *targets]
    if nice:
        command = ["nice", "-n", str(nice), *command]
    if output.isatty():
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, check=False).returncode == 0
    with subprocess.Popen(
        command,
        env={**os.environ, "NINJA_STATUS": STATUS},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        for line in in_tenths(process.stdout, os.path.basename(os.path.abspath(folder))):
            output.write(line)
            output.flush()
    return process.returncode == 0


def in_tenths(lines, name):
    """What is shown of ninja's lines."""
    shown = 0
    for line in lines:
        if found := ENDED.match(line):
            ended, of = map(int, found.groups())
            if (tenths := 10 * ended // of) > shown:
                shown = tenths
                yield f"building {name}: {10 * tenths}% ({ended} of {of})\n"
        elif not OF_NO_INTEREST.match(line):
            yield line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-j", type=int, metavar="JOBS")
    parser.add_argument("--nice", type=int, default=0, metavar="N")
    parser.add_argument("folder")
    parser.add_argument("targets", nargs="*")
    options = parser.parse_args()
    return 0 if ninja(options.folder, options.targets, options.j, options.nice) else 1


if __name__ == "__main__":
    sys.exit(main())
