#!/usr/bin/env python3
"""Compiles the kernels to one image for all architectures, and says what registers, shared memory and stack each function takes.

Called by the build. With --check it compiles to PTX alone, for one architecture, and keeps nothing: that takes a small part of the time.

ptxas counts as spills also what a called function saves of its caller's registers, once at its beginning and end;
reductions are called functions, so for them the number means that.
"""
import argparse
import re
import subprocess
import sys
from pathlib import Path


ASSEMBLY = """\
    .section .rodata
    .balign 64
    .globl koloKernels
    .hidden koloKernels
    .type koloKernels, @object
koloKernels:
    .incbin "{image}"
    .size koloKernels, . - koloKernels
    .section .note.GNU-stack, "", @progbits
"""


def resources(log):
    """{(architecture, function): numbers}, out of what `ptxas -v` prints."""
    found = {}
    where = None
    for line in log.splitlines():
        if match := re.search(r"(?:Function properties for|Compiling entry function) '?([\w$]+)'?(?: for '(\w+)')?", line):
            architecture = match[2] or (where[0] if where else "?")
            where = (architecture, match[1])
            found.setdefault(where, {})
        elif where and (match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)):
            found[where].update(stack=int(match[1]), saved=int(match[2]) + int(match[3]))
        elif where and (match := re.search(r"Used (\d+) registers", line)):
            shared = re.search(r"(\d+) bytes smem", line)
            found[where].update(registers=int(match[1]), shared=int(shared[1]) if shared else 0)
    return found


def short_names(symbols):
    """What people call the functions, in the same order."""
    answer = subprocess.run(["c++filt"], input="\n".join(symbols), capture_output=True, text=True, check=True)
    return [re.sub(r"_INTERNAL_\w+?::|kolo::|executor::cuda::|device::|\(anonymous namespace\)::", "", name) for name in answer.stdout.splitlines()]


COLUMNS = {"registers": 10, "shared": 8, "stack": 7, "saved": 8}   # and their widths


def report(found):
    names = short_names([function for _, function in found])
    lines = ["# What each function takes, by ptxas -v: registers, and bytes of shared memory, of stack, and of registers saved or spilled",
             "# (of a called function: saved for its caller, once for each call, which is a chunk of data).",
             f"{'arch':8}" + "".join(f"{column:>{width}}" for column, width in COLUMNS.items()) + "  function"]
    for ((architecture, _), use), name in zip(found.items(), names):
        use = {"stack": 0, "saved": 0, **use}
        lines.append(f"{architecture:8}" + "".join(f"{use.get(column, '-'):>{width}}" for column, width in COLUMNS.items()) + f"  {name}")
    return "\n".join(lines) + "\n"


def read_report(text):
    """{(architecture, short name): {column: number}} of a report."""
    found = {}
    for line in text.splitlines()[3:]:
        architecture, *numbers, name = line.split(maxsplit=len(COLUMNS) + 1)
        found[architecture, name] = {column: int(number) for column, number in zip(COLUMNS, numbers) if number != "-"}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", required=True)
    parser.add_argument("--architectures", required=True, help="by commas; PTX for the last too")
    parser.add_argument("--include", action="append", default=[])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--depfile")
    parser.add_argument("--image")
    parser.add_argument("--resources")
    parser.add_argument("--assembly", help="source file that holds the image as data")
    parser.add_argument("source")
    options = parser.parse_args()
    architectures = options.architectures.split(",")
    command = [options.nvcc, "-std=c++20", "-O3", "--expt-relaxed-constexpr", "-fmad=false"]
    command += [f"-I{folder}" for folder in options.include]
    if options.check:
        sys.exit(subprocess.run([*command, f"-arch=compute_{architectures[-1]}", "-ptx", "-o", "/dev/null", options.source]).returncode)
    command += ["-fatbin", "--threads", "2", "-Xptxas", "-v", "-MD", "-MF", options.depfile, "-MT", options.image, "-o", options.image]
    for architecture in architectures:
        command += ["-gencode", f"arch=compute_{architecture},code=sm_{architecture}"]
    command += ["-gencode", f"arch=compute_{architectures[-1]},code=compute_{architectures[-1]}", options.source]
    done = subprocess.run(command, capture_output=True, text=True)
    sys.stdout.write(done.stdout)
    if done.returncode != 0:
        sys.exit(done.stderr)
    found = resources(done.stderr)
    for line in done.stderr.splitlines():
        if "warning" in line and "Registers are spilled" not in line:
            print(line, file=sys.stderr)
    Path(options.resources).write_text(report(found))
    # Written anew with each image, so that it is assembled again.
    Path(options.assembly).write_text(ASSEMBLY.format(image=Path(options.image).resolve()))


if __name__ == "__main__":
    main()
