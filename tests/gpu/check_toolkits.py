#!/usr/bin/env python3
"""Whether the host's side of the GPU compiles with the headers of the oldest CUDA toolkit that is supported.

usage: check_toolkits.py --packages FOLDER SOURCES COMPILER...

The headers come from the Python package index, into FOLDER; exit status 77 where they cannot be had.
"""
import argparse
import re
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from packages import Unavailable, install

SKIPPED = 77
DOWNLOAD = 120  # seconds
TOOLKIT, PACKAGE = "12040", "nvidia-cuda-runtime-cu12==12.4.127"
FOLDERS = "src/drivers/cuda", "src/memory", "src/executor/cuda", "src/gpu", "tests/mock_cuda"


def headers(folder):
    place = folder / "nvidia-cuda-12.4"
    if not place.exists():
        install(PACKAGE, place, DOWNLOAD)
    found = next(place.glob("**/include/cuda.h"), None)
    version = re.search(r"#define CUDA_VERSION (\d+)", found.read_text()) if found else None
    if version is None or version[1] != TOOLKIT:
        sys.exit(f"{PACKAGE} has no cuda.h of version {TOOLKIT}")
    return found.parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", required=True, type=Path)
    parser.add_argument("sources", type=Path)
    parser.add_argument("compiler", nargs="+")
    options = parser.parse_args()
    try:
        include = headers(options.packages.absolute())
    except Unavailable as reason:
        print(f"skipped: {reason}")
        sys.exit(SKIPPED)
    folders = [f"-I{options.sources / part}" for part in ("src", "include", "tests")]
    flags = ["-std=c++20", "-fsyntax-only", "-DKOLO_HAVE_CUDA=1", f"-isystem{include}", *folders]
    files = sorted(file for folder in FOLDERS for file in (options.sources / folder).glob("*.cc"))
    failed = [file for file in files if subprocess.run([*options.compiler, *flags, file], check=False).returncode != 0]
    if failed or not files:
        sys.exit(f"{len(failed)} of {len(files)} files do not compile with the headers of {PACKAGE}")
    print(f"{len(files)} files compile with the headers of {PACKAGE}")


if __name__ == "__main__":
    main()
