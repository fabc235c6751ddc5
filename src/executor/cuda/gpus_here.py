#!/usr/bin/env python3
"""Prints the architectures of this machine's GPUs as nvcc names them, one a line: 90 for compute capability 9.0.

usage: gpus_here.py NVCC

The driver's library is asked: containers may lack nvidia-smi. Nothing is printed where there is no driver or no GPU. A
GPU whose architecture NVCC does not know gets the newest one below it, whose code it runs or whose PTX its driver can
assemble. A GPU that is too old for NVCC is left out.
"""

import ctypes
import re
import subprocess
import sys

CAPABILITY = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


def capabilities():
    """Of each GPU, ten times its compute capability."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    count, device, major, minor = (ctypes.c_int() for _ in range(4))
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return
    for ordinal in range(count.value):
        asked = [driver.cuDeviceGet(ctypes.byref(device), ordinal)]
        for number, attribute in zip((major, minor), CAPABILITY):
            asked.append(driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device))
        if not any(asked):
            yield 10 * major.value + minor.value


def main():
    here = set(capabilities())
    if not here:
        return
    listed = subprocess.run([sys.argv[1], "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout
    known = sorted(map(int, re.findall(r"compute_(\d+)$", listed, re.M)))
    print(*sorted({max(below) for each in here if (below := [number for number in known if number <= each])}), sep="\n")


if __name__ == "__main__":
    main()
