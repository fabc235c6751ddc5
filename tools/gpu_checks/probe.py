#!/usr/bin/env python3
"""Says what is on this machine: the system, tools and their versions, interfaces and NICs. Fails for no lack."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

TOOLS = {
    "g++": ["--version"],
    "gcc": ["-dumpfullversion"],
    "nvcc": ["--version"],
    "meson": ["--version"],
    "ninja": ["--version"],
    "git": ["--version"],
    "compute-sanitizer": ["--version"],
    "cuobjdump": ["--version"],
    "nvdisasm": ["--version"],
    "strip": ["--version"],
    "nvidia-cuda-mps-control": [],
}


def version_of(tool, arguments):
    if shutil.which(tool) is None:
        return "is not there"
    if not arguments:
        return "is there"
    try:
        said = subprocess.run(
            [tool, *arguments], capture_output=True, text=True, timeout=5, stdin=subprocess.DEVNULL
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as problem:
        return str(problem)
    lines = said.splitlines() or [""]
    return next((line for line in lines if "release" in line), lines[0])


def text_of(file):
    try:
        return file.read_text().strip()
    except OSError:
        return "?"


def main():
    print(
        f"system: {platform.platform()}, {platform.libc_ver()}, Python {platform.python_version()}, "
        f"{os.cpu_count()} processors"
    )
    for tool, arguments in TOOLS.items():
        print(f"{tool}: {version_of(tool, arguments)}")
    for interface in sorted(Path("/sys/class/net").glob("*")):
        print(f"interface {interface.name}: {text_of(interface / 'operstate')}, speed {text_of(interface / 'speed')}")
    nics = sorted(Path("/sys/class/infiniband").glob("*"))
    print(f"NICs with verbs: {', '.join(nic.name for nic in nics) or 'none'}")
    print(f"devices: {' '.join(sorted(file.name for file in Path('/dev').glob('nvidia*'))) or 'none of NVIDIA'}")
    print(
        f"/dev/shm: {shutil.disk_usage('/dev/shm').free >> 20} MiB free"
        if Path("/dev/shm").exists()
        else "/dev/shm: none"
    )
    print(f"ptrace_scope: {text_of(Path('/proc/sys/kernel/yama/ptrace_scope'))}; locked memory: {memory_lock()}")


def memory_lock():
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return "unlimited" if soft == resource.RLIM_INFINITY else f"{soft >> 10} KiB"


if __name__ == "__main__":
    main()
