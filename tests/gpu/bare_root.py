#!/usr/bin/env python3
"""Runs a command where little is installed: a root like this machine's without git and what building Kolo needs.

usage: unshare --mount --propagation private bare_root.py FOLDER TREE COMMAND...

FOLDER, which is empty, becomes the root, for this namespace of mounts only; TREE is there as /tree, where the command
runs. Exit status 77 if the kernel allows no such root.
"""

import glob
import os
import subprocess
import sys

HIDDEN = [
    "usr/bin/git*",
    "usr/bin/pkg*conf*",
    "usr/bin/x86_64*pkg*",
    "usr/bin/mpicc*",
    "usr/include/catch2*",
    "usr/include/hwloc*",
    "usr/include/infiniband*",
    "usr/include/fmt*",
    "usr/include/sodium*",
    "usr/include/nlohmann*",
    "usr/include/CLI*",
    "root/.pyenv",
    "work",
]
LIBRARIES = ["hwloc", "ibverbs", "fmt", "sodium", "udev"]
DESCRIPTIONS = ["catch2", "hwloc", "libibverbs", "fmt", "libsodium", "nlohmann_json", "CLI11"]
BARE = 77


def mount(*arguments):
    if subprocess.run(["mount", *arguments]).returncode != 0:
        sys.exit(BARE)


def hide(root):
    patterns = HIDDEN + [f"usr/lib/x86_64-linux-gnu/lib{name}*" for name in LIBRARIES]
    patterns += [
        f"usr/{folder}/pkgconfig/{name}*"
        for folder in ["lib/x86_64-linux-gnu", "lib", "share"]
        for name in DESCRIPTIONS
    ]
    for pattern in patterns:
        for path in glob.glob(os.path.join(root, pattern)):
            if os.path.isdir(path) and not os.path.islink(path):
                mount("-t", "tmpfs", "none", path)  # empty; to delete what may be large takes minutes
            else:
                os.unlink(path)


def main():
    folder, tree, *command = sys.argv[1:]
    mount("-t", "tmpfs", "none", folder)
    upper, work, root = (os.path.join(folder, name) for name in ["upper", "work", "root"])
    for path in [upper, work, root]:
        os.mkdir(path)
    mount("-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={upper},workdir={work}", root)
    hide(root)
    os.makedirs(f"{root}/tree", exist_ok=True)
    mount("--bind", tree, f"{root}/tree")
    for path in ["/proc", "/dev", "/sys"]:
        mount("--rbind", path, root + path)
    os.chroot(root)
    os.chdir("/tree")
    os.environ["PATH"] = "/usr/local/bin:/usr/bin:/bin"
    os.execvp(command[0], command)


main()
