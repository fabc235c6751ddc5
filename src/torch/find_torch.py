#!/usr/bin/env python3
"""Prints what an extension for this Python's torch is compiled with, one line each: torch's version, its folder, whether it has
CUDA (yes or no), Python's header folder, and the suffix of Python's extension modules.

torch itself is not imported: that takes seconds, and fails where its libraries are not found. Exit status 1: there is no torch.
"""

import importlib.util
import os
import sys
import sysconfig


def main():
    try:
        found = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        found = None
    if found is None or not found.submodule_search_locations:
        return 1
    folder = found.submodule_search_locations[0]
    headers = os.path.join(folder, "include", "torch", "csrc", "distributed", "c10d", "Backend.hpp")
    python = sysconfig.get_path("include")
    if not os.path.exists(headers) or not os.path.exists(os.path.join(python, "Python.h")):
        return 1
    version = {}
    with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
        exec(file.read(), version)  # pylint: disable=exec-used
    for word in (
        version["__version__"],
        folder,
        "yes" if version.get("cuda") else "no",
        python,
        sysconfig.get_config_var("EXT_SUFFIX"),
    ):
        print(word)
    return 0


if __name__ == "__main__":
    sys.exit(main())
