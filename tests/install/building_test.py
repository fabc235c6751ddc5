#!/usr/bin/env python3
"""Whether tools/building.py shows how far a build is, hides no output, and tells success from failure.

usage: building_test.py BUILDING
"""

import subprocess
import sys
import tempfile
from pathlib import Path

COMMANDS = 25
RULE = "rule run\n  command = $what\n  description = working on $out\n"


def write(folder):
    """Of 25 commands one prints a line; "bad" fails, and its line has no end."""
    steps = {f"step{i}": f"touch step{i}" for i in range(COMMANDS)}
    steps["step7"] += " && echo a warning"
    texts = [f"build {name}: run\n  what = {what}\n" for name, what in steps.items()]
    texts.append("build bad: run\n  what = printf 'first\\nwithout an end'; exit 3\n")
    (folder / "build.ninja").write_text(RULE + "".join(texts) + f"default {' '.join(steps)}\n")


def run(*arguments):
    """Exit status and lines."""
    done = subprocess.run([sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout.splitlines()


def main():
    building = sys.argv[1]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "house"
        folder.mkdir()
        write(folder)
        status, lines = run(building, folder)
        assert status == 0, lines
        assert lines.count("a warning") == 1, lines
        told = [line for line in lines if line != "a warning"]
        assert [line.split("%")[0] for line in told] == [f"building house: {ten}0" for ten in range(1, 11)], lines
        assert told[3] == "building house: 40% (10 of 25)" and told[-1].endswith("(25 of 25)"), lines
        assert run(building, folder) == (0, []), "something is said of nothing to do"
        (folder / "step3").unlink()
        status, lines = run(building, "-j", "1", "--nice", "1", folder, "bad", "step3")
        assert status == 1, lines
        assert all(line in lines for line in ("FAILED: bad ", "first", "without an end")), lines
    print("ok")


if __name__ == "__main__":
    main()
