#!/usr/bin/env python3
"""Looks at the machine code of the kernels: whether what copies and reduces does it by 16 bytes, and what its functions take.

usage: check_kernels.py [--renew] --resources FILE --table FILE --nvcc NVCC --packages FOLDER IMAGE

IMAGE and --resources are what the build has made. Main loops are those that load or store 16 bytes at once; each function that copies or reduces
must have one that loads and one that stores, and these must access nothing narrower than 4 bytes, nor registers that were put into memory. That
holds for every compiler. So do the limits of FOLDS: instructions for each 16 bytes of a source that the main loop of a plain sum reads, and how many
such loads it has under way, of several sources; and LOCAL: the memory that a kernel takes on a device. The table keeps for each function what the
compiler that is named in it has made of it: none of the numbers may grow, and no main loop may have fewer accesses under way. The functions are those
of the table, and each is there once. Another compiler's numbers are printed beside the table's and not judged. Architectures that are not in both are
passed over.

--renew writes the table, after a look at what has changed and why; rows of other architectures stay if they are of the same compiler. The disassemblers come from PATH, from beside NVCC, or, into FOLDER, from the
Python package index; exit status 77 where they cannot be had.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, os.pardir, os.pardir, "src", "executor", "cuda"), os.path.join(HERE, os.pardir, "support")]

import build_image
import disassembly
from packages import Unavailable, install

SKIPPED = 77
DOWNLOAD = 120  # seconds for a package
MOST_LINES = 20
PACKAGES = {"cuobjdump": "nvidia-cuda-cuobjdump", "nvdisasm": "nvidia-cuda-nvdisasm"}
MOVERS = re.compile(r"\b(blockCopy|copyShifted|reduceAs|foldShifted|foldWithTerms)<")   # the functions whose main loops are judged
# Of plain sums: (instructions for each load of 16 bytes, loads under way) of the loop that loads the most. Architectures without a conversion of
# float8 take more instructions for that.
FOLDS = {"float": (10, 16), "Bfloat16": (22.5, 16), "Float16": (22.5, 16), "Float8E4m3": (55, 8), "Float8E5m2": (70, 8), "int": (10.25, 16)}
WITHOUT_FLOAT8 = {"sm_80", "sm_86"}
# The most MiB of local memory that a kernel takes on a device of so many multiprocessors, each of which runs a block: the stack of each thread, with all
# that is called. Most of a stack is what functions save of their callers' registers. A driver that makes room for all 2,048 threads that a
# multiprocessor can hold takes four times as much. nvcc 13.0's kernels take 113.4 MiB, and 162 with lists, on sm_90; the rest is for other compilers.
MULTIPROCESSORS, BLOCK_THREADS = 132, 512
LOCAL = {"koloRunFew": 115, "koloRunBlocks": 115, "koloRunLists": 164}
COLUMNS = ["registers", "stack", "saved", "narrow", "fences", "divisions", "loads", "stores"]
MAY_NOT_GROW, MAY_NOT_SHRINK = COLUMNS[:6], COLUMNS[6:]
HEAD = """\
# The kernels' machine code: of each function the registers (of a kernel, with all that it calls), the bytes of stack (of a kernel likewise), the
# bytes that it spills or saves for its caller (a function that moves data is called once for a chunk of it), its loads and stores of 1 or 2 bytes,
# its fences for the whole system, its divisions of 64 bits, and the loads and stores of 16 bytes that its best main loop has under way at once.
# tests/gpu/check_kernels.py --renew writes this, by the build's arguments (see tests/gpu/meson.build).
"""


def tool(name, nvcc, folder):
    """Where a disassembler is."""
    beside = os.path.join(os.path.dirname(os.path.realpath(nvcc)), name)
    for place in (shutil.which(name), beside if os.access(beside, os.X_OK) else None, packaged(name, folder)):
        if place is not None:
            return place
    install(PACKAGES[name], folder / PACKAGES[name], DOWNLOAD)
    place = packaged(name, folder)
    if place is None:
        raise Unavailable(f"{PACKAGES[name]} has no {name} for this machine")
    return place


def packaged(name, folder):
    return next((str(file) for file in sorted(folder.glob(f"{PACKAGES[name]}/**/bin/{name}"))), None)


def said(*command, cwd=None):
    done = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def disassembled(image, cuobjdump, nvdisasm):
    """{architecture: {symbol: disassembly.Function}}"""
    with tempfile.TemporaryDirectory() as folder:
        said(cuobjdump, "-xelf", "all", os.path.abspath(image), cwd=folder)
        found = {}
        for file in sorted(Path(folder).glob("*.cubin")):
            architecture = re.search(r"sm_\w+?(?=\.)", file.name)[0]
            found[architecture] = disassembly.functions(said(nvdisasm, "-c", file))
    return found


class Measured:
    """One function: its row of the table, and what is wrong with its main loops."""

    def __init__(self, function):
        loops = [(opcodes, disassembly.accesses(opcodes)) for opcodes in function.loops()]
        main = [loop for _, loop in loops if any(bits == 128 and kind != "local" for kind, bits in loop)]
        self.row = {"narrow": function.narrow(), "fences": function.fences(), "divisions": function.divisions(),
                    "loads": max((loop["load", 128] for loop in main), default=0),
                    "stores": max((loop["store", 128] for loop in main), default=0)}
        self.faults = [f"has no loop that {kind}s 16 bytes at once" for kind in ("load", "store") if self.row[f"{kind}s"] == 0]
        for loop in main:
            narrow = {f"{kind}s of {bits} bits": count for (kind, bits), count in loop.items() if kind != "local" and bits < 32}
            if narrow:
                self.faults.append(f"has a main loop with {narrow}")
            if any(kind == "local" for kind, _ in loop):
                self.faults.append("has a main loop that puts registers into memory")
        # Of the loop that loads the most, and of several the longest.
        self.reading = max(((loop["load", 128], len(opcodes)) for opcodes, loop in loops), default=(0, 0))

    def fold_faults(self, instructions, loads):
        """What is wrong with it as a plain sum."""
        has, takes = self.reading
        if has < loads:
            yield f"has {has} loads of 16 bytes under way, and not {loads}"
        elif takes > instructions * has:
            yield f"takes {takes} instructions for {has} loads of 16 bytes, and not at most {instructions} for each"


def fold_limits(architecture, name):
    """The limits of FOLDS for a function, or None."""
    match = re.search(r"\breduceAs<(\w+), \(ReduceOp\)0>", name)
    if match is None or (match[1] == "Float8E4m3" and architecture in WITHOUT_FLOAT8):
        return None
    return FOLDS.get(match[1])


def local_faults(rows):
    """Of {name: row} of one architecture, what takes more local memory than LOCAL says, or is not there, as text."""
    for kernel, most in LOCAL.items():
        if kernel not in rows or not rows[kernel]["stack"]:
            yield f"nothing says what stack {kernel} takes"
        elif (takes := rows[kernel]["stack"] * BLOCK_THREADS * MULTIPROCESSORS / 2**20) > most:
            yield f"{kernel} takes {takes:.1f} MiB of local memory on {MULTIPROCESSORS} multiprocessors, and not at most {most}"


def measure(image, resources, cuobjdump, nvdisasm):
    """{architecture: {name: row}}, and faults of main loops, as text."""
    used = build_image.read_report(Path(resources).read_text())
    rows, faults, judged = {}, [], set()
    for architecture, functions in disassembled(image, cuobjdump, nvdisasm).items():
        names = build_image.short_names(re.sub(r"\$\d+$", "", symbol) for symbol in functions)  # numbers of the module's local functions
        faults += [f"{architecture}: {name} is there {times} times" for name, times in Counter(names).items() if times > 1]
        rows[architecture] = {}
        for name, function in zip(names, functions.values()):
            measured = Measured(function)
            rows[architecture][name] = {**{"registers": 0, "stack": 0, "saved": 0}, **used.get((architecture, name), {}), **measured.row}
            rows[architecture][name].pop("shared", None)
            if MOVERS.search(name):
                faults += [f"{architecture}: {name} {fault}" for fault in measured.faults]
            if limits := fold_limits(architecture, name):
                judged.add((architecture, name))
                faults += [f"{architecture}: {name} {fault}" for fault in measured.fold_faults(*limits)]
        faults += [f"{architecture}: {fault}" for fault in local_faults(rows[architecture])]
        expected = len(FOLDS) - (architecture in WITHOUT_FLOAT8)
        if sum(of == architecture for of, _ in judged) != expected:
            faults.append(f"{architecture}: other plain sums than the {expected} that FOLDS limits: {sorted(judged)}")
        for wanted in ("blockCopy<", "copyShifted<", "reduceAs<", "foldShifted<", "foldWithTerms<"):
            if not any(wanted in name for name in names):
                faults.append(f"{architecture}: no function {wanted}...> in the disassembly: is it in another form than expected?")
    if not rows:
        faults.append("the image has no machine code")
    return rows, faults


def compiler(nvcc):
    answer = said(nvcc, "--version")
    match = re.search(r"V\d[\d.]*", answer)
    return match[0] if match else answer.strip().replace(" ", "-")


# ---- the table

def total(rows):
    return {column: sum(row[column] for row in rows.values()) for column in ("saved", "narrow")}


def write_table(file, rows, version):
    lines = [f"{HEAD}# compiler: nvcc {version}"]
    for architecture, functions in rows.items():
        sums = total(functions)
        accesses = f"{sums['narrow']} loads and stores of 1 or 2 bytes, {sums['saved']} bytes saved"
        lines += ["", f"# {architecture}, all {len(functions)} functions: {accesses}", "arch    " + "".join(f"{name:>10}" for name in COLUMNS) + "  function"]
        for name, row in sorted(functions.items()):
            lines.append(f"{architecture:8}" + "".join(f"{row[column] or '-':>10}" for column in COLUMNS) + f"  {name}")
    Path(file).write_text("\n".join(lines) + "\n")


def read_table(file):
    """{architecture: {name: row}}, the compiler's version."""
    rows, version = {}, None
    if not Path(file).exists():
        sys.exit(f"there is no table {file}; --renew writes it")
    for line in Path(file).read_text().splitlines():
        if match := re.match(r"# compiler: nvcc (\S+)", line):
            version = match[1]
        elif line.startswith("sm_"):
            architecture, *numbers, name = line.split(maxsplit=len(COLUMNS) + 1)
            rows.setdefault(architecture, {})[name] = {column: 0 if number == "-" else int(number) for column, number in zip(COLUMNS, numbers)}
    return rows, version


def compare(rows, kept):
    """What is worse than in the table, or not in both, as text."""
    worse = [f"{name}: is not in the table" for name in rows if name not in kept]
    worse += [f"{name}: is in the table alone" for name in kept if name not in rows]
    for name in rows.keys() & kept.keys():
        row = rows[name]
        for column in MAY_NOT_GROW + MAY_NOT_SHRINK:
            was, now = kept[name][column], row[column]
            if now > was if column in MAY_NOT_GROW else now < was:
                worse.append(f"{name}: {column} {was} -> {now}")
    was, now = total(kept), total(rows)
    return worse + [f"all functions: {column} {was[column]} -> {now[column]}" for column in was if now[column] > was[column]]


def describe(architecture, rows):
    """How often each number is found, of all functions of a kind."""
    kinds = {}
    for name, row in rows.items():
        if match := MOVERS.search(name):
            kinds.setdefault(match[1], []).append(row)
    for kind, of_kind in kinds.items():
        numbers = {column: dict(sorted(Counter(row[column] for row in of_kind).items())) for column in COLUMNS[1:]}
        print(f"{architecture}: {len(of_kind)} {kind}:", "; ".join(f"{column} {many}" for column, many in numbers.items()))
    print(f"{architecture}: all {len(rows)} functions: {total(rows)}")


def judge(rows, options, version):
    """Faults, as text."""
    kept, of = read_table(options.table)
    faults = []
    for architecture, functions in rows.items():
        if architecture not in kept:
            print(f"{architecture} is not in the table")
            continue
        worse = [f"{architecture}: {line}" for line in compare(functions, kept[architecture])]
        if version == of:
            faults += worse
        else:
            print(f"the table is of nvcc {of}, and this is {version}: not judged is", *(worse or ["nothing, for nothing is worse"]), sep="\n  ")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--renew", action="store_true")
    for name in ("--resources", "--table", "--nvcc", "--packages"):
        parser.add_argument(name, required=True)
    parser.add_argument("image")
    options = parser.parse_args()
    try:
        # From here, wherever they are run.
        tools = [os.path.abspath(tool(name, options.nvcc, Path(options.packages).absolute())) for name in PACKAGES]
    except Unavailable as reason:
        print(f"skipped: {reason}")
        sys.exit(SKIPPED)
    rows, faults = measure(options.image, options.resources, *tools)
    for architecture, functions in rows.items():
        describe(architecture, functions)
    version = compiler(options.nvcc)
    if options.renew:
        kept, of = read_table(options.table) if Path(options.table).exists() else ({}, None)
        others = {name: functions for name, functions in kept.items() if name not in rows and of == version}
        write_table(options.table, dict(sorted({**others, **rows}.items(), key=lambda item: int(re.sub(r"\D", "", item[0])))), version)
    elif worse := judge(rows, options, version):
        faults += worse[:MOST_LINES] + [f"and {len(worse) - MOST_LINES} more"] * (len(worse) > MOST_LINES)
        faults.append(f"other than in {options.table}, which --renew writes anew if that is as it should be")
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
