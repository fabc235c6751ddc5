#!/usr/bin/env python3
"""Compiles the kernels to one image for all architectures and one of PTX, and says what registers, shared memory and stack each function takes.

Called by the build. The code is relocatable (-rdc=true) and linked on the device's side, so that each function exists
once. Without that the assembler makes a copy of every function for each kernel, which takes it ten times as long.

ptxas counts as spills also what a called function saves of its caller's registers, once at its beginning and end;
reductions are called functions, so for them the number means that.
"""
import argparse
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# 445 warns of what withCast() does: lambdas whose template parameters only a call names.
FLAGS = ["-std=c++20", "-O3", "--expt-relaxed-constexpr", "-fmad=false", "-rdc=true", "-diag-suppress=445"]
REGISTERS = 128  # of a thread: a multiprocessor has 65,536 for the 512 threads of a block (kBlockThreads)
AT_ONCE = 2  # architectures; each takes half a gigabyte

ASSEMBLY = """\
    .section .rodata
    .balign 64
    .globl {symbol}
    .hidden {symbol}
    .type {symbol}, @object
{symbol}:
    .incbin "{image}"
    .size {symbol}, . - {symbol}
"""
NO_STACK = """\
    .section .note.GNU-stack, "", @progbits
"""


def resources(log):
    """{function: numbers}, out of what ptxas and nvlink print. Only nvlink knows what a kernel takes with all that it calls."""
    found = {}
    use = None
    for line in log.splitlines():
        if match := re.search(r"Function properties for '?([\w$]+)", line):
            use = found.setdefault(match[1], {})
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            use.update(stack=int(match[1]), saved=int(match[2]) + int(match[3]))
        elif match := re.search(r"nvlink info .*: used (\d+) registers, .*?(\d+) stack, (\d+) bytes smem", line):
            use.update(registers=int(match[1]), stack=int(match[2]), shared=int(match[3]))
    return found


def short_names(symbols):
    """What people call the functions, in the same order."""
    answer = subprocess.run(["c++filt"], input="\n".join(symbols), capture_output=True, text=True, check=True)
    return [re.sub(r"_INTERNAL_\w+?::|kolo::|executor::cuda::|device::|\(anonymous namespace\)::", "", name) for name in answer.stdout.splitlines()]


COLUMNS = {"registers": 10, "shared": 8, "stack": 7, "saved": 8}   # and their widths


def report(found):
    """found: {architecture: {function: numbers}}"""
    lines = ["# What each function takes: registers (of a kernel, with all that it calls), and bytes of shared memory, of stack (of a kernel",
             "# likewise), and of registers saved or spilled (of a called function: saved for its caller, once for each chunk of data).",
             f"{'arch':8}" + "".join(f"{column:>{width}}" for column, width in COLUMNS.items()) + "  function"]
    for architecture, functions in found.items():
        for name, use in zip(short_names(functions), functions.values()):
            lines.append(f"{architecture:8}" + "".join(f"{use.get(column, '-'):>{width}}" for column, width in COLUMNS.items()) + f"  {name}")
    return "\n".join(lines) + "\n"


def read_report(text):
    """{(architecture, short name): {column: number}} of a report."""
    found = {}
    for line in text.splitlines()[3:]:
        architecture, *numbers, name = line.split(maxsplit=len(COLUMNS) + 1)
        found[architecture, name] = {column: int(number) for column, number in zip(COLUMNS, numbers) if number != "-"}
    return found


def run(*command):
    """What the command says."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


def compile_for(architecture, options, folder):
    """Leaves ARCHITECTURE.ptx and ARCHITECTURE.cubin in the folder; what the compiler says, and what the assembler and the linker say."""
    ptx, relocatable, linked = (folder / f"{architecture}.{kind}" for kind in ("ptx", "relocatable.cubin", "cubin"))
    includes = [f"-I{include}" for include in options.include]
    depends = ["-MD", "-MF", options.depfile, "-MT", options.image] if architecture == options.architectures[0] else []
    said = run(options.nvcc, *FLAGS, *includes, *depends, f"-arch=compute_{architecture}", "-ptx", "-o", ptx, options.source)
    target = f"-arch=sm_{architecture}"
    log = run(options.nvcc, *FLAGS, target, f"-maxrregcount={REGISTERS}", "-Xptxas", "-v", "-cubin", "-o", relocatable, ptx)
    return said, log + run(options.nvcc, target, "-dlink", "-cudadevrt=none", "-Xnvlink", "-v", "-cubin", "-o", linked, relocatable)


def put_together(options, folder):
    """The image with the machine code, and that with the last architecture's PTX for GPUs that are newer than all of it, whose driver assembles it.

    The PTX is the text that was assembled above, though it is relocatable. The driver assembles PTX as a whole program,
    in which nothing may be missing; the link above has found that nothing is. The images are not made by that link: nvcc
    would then mark the PTX as --compile-only, and nothing says what a driver makes of that outside of a link.
    """
    first, *others = options.architectures
    last = options.architectures[-1]
    parts = [f"--image3=kind=elf,sm={architecture},file={folder / architecture}.cubin" for architecture in others]
    arguments = folder / "arguments"
    arguments.write_text("\n".join([*parts, "--compress-all"]))  # nvcc would divide them at their commas
    for image, made_of, code, more in (
        (options.image, folder / f"{first}.cubin", f"arch=compute_{first},code=sm_{first}", f"-optf={arguments}"),
        (options.text, folder / f"{last}.ptx", f"arch=compute_{last},code=compute_{last}", "--compress-all"),
    ):
        run(options.nvcc, "-fmad=false", "-gencode", code, "-fatbin", "-Xfatbin", more, "-o", image, made_of)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", required=True)
    parser.add_argument("--architectures", required=True, type=lambda text: text.split(","), help="by commas; PTX for the last too")
    parser.add_argument("--include", action="append", default=[])
    parser.add_argument("--depfile", required=True)
    parser.add_argument("--image", required=True)
    parser.add_argument("--text", required=True, help="the image of PTX")
    parser.add_argument("--resources", required=True)
    parser.add_argument("--assembly", required=True, help="source file that holds both images as data, as SYMBOL and SYMBOLText")
    parser.add_argument("--symbol", default="koloKernels")
    parser.add_argument("source")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        done = list(pool.map(lambda architecture: compile_for(architecture, options, Path(folder)), options.architectures))
        put_together(options, Path(folder))
    sys.stdout.write(done[0][0])  # warnings, which are the same for all
    found = {f"sm_{architecture}": resources(log) for architecture, (_, log) in zip(options.architectures, done)}
    Path(options.resources).write_text(report(found))
    # Written anew with each image, so that it is assembled again.
    images = {options.symbol: options.image, options.symbol + "Text": options.text}
    texts = [ASSEMBLY.format(symbol=symbol, image=Path(image).resolve()) for symbol, image in images.items()]
    Path(options.assembly).write_text("".join(texts) + NO_STACK)


if __name__ == "__main__":
    main()
