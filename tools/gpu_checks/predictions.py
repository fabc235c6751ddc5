"""What is expected of one GPU of sm_90: the targets, and what was predicted before any of this had run on a GPU.

The numbers F1 to F13 and "1" to "3" name findings and parts of a reading of 2026-11-28: the kernels' machine code and
PTX (commit 030b226), CUDA 13.0's headers, and NCCL's and MSCCL++'s sources beside them. Its estimates for eight GPUs
behind NVSwitch are not here, for one device cannot show them. `chance`: that the row holds, as it was guessed then.
"""

import re
from dataclasses import dataclass
from typing import Callable, Optional

from gpu_checks.figures import KIB, MIB, find, number
from gpu_checks.source import ROOT

TARGET = "target"


@dataclass(frozen=True)
class Row:
    text: str
    value: Callable  # of the report's document; None: not measured
    low: Optional[float]  # None: any
    high: Optional[float]
    unit: str  # "": a ratio; None: a question, whose answer yes is 1
    source: str
    chance: Optional[float] = None

    def expected(self):
        if self.unit is None:
            return "yes" if self.low else "no"
        if self.low is None or self.high is None:
            bound = f"at most {self.high:.4g}" if self.low is None else f"at least {self.low:.4g}"
        else:
            bound = f"{self.low:g} to {self.high:.4g}"
        return f"{bound} {self.unit}".strip()

    def verdict(self, document):
        value = self.value(document)
        if value is None:
            measured, holds = "not measured", None
        else:
            measured = ("yes" if value else "no") if self.unit is None else f"{number(value, 3)} {self.unit}".strip()
            holds = (self.low is None or self.low <= value) and (self.high is None or value <= self.high)
        return {
            "target": self.text,
            "expected": self.expected(),
            "chance": self.chance,
            "source": self.source,
            "measured": measured,
            "holds": holds,
        }


def figure(key, **wanted):
    def value(document):
        found = find(document["figures"], has=key, **wanted)
        return found and found.get(key)

    return value


def ratio(above, below):
    def value(document):
        a, b = above(document), below(document)
        return a / b if a is not None and b else None

    return value


def less(above, below):
    def value(document):
        a, b = above(document), below(document)
        return None if a is None or b is None else a - b

    return value


def micro(key, **wanted):
    return figure(key, section="micro", **wanted)


def call(name):
    return micro("us", what="call", call=name)


def most(key, **wanted):
    """Of all grids."""

    def value(document):
        found = [one[key] for one in document["figures"] if all(one.get(name) == it for name, it in wanted.items())]
        return max(found, default=None)

    return value


def sums(datatype):
    return most("gbps", what="fold", place="device", datatype=datatype, sources=4)


def passed(*names):
    """Whether all sections passed whose names begin so; None while one has not ended."""

    def value(document):
        found = {entry["name"]: entry["status"] for entry in document["sections"]}
        mine = [status for name, status in found.items() if name.startswith(names) and not status.startswith("skipped")]
        return None if not mine else all(status == "passed" for status in mine)

    return value


# What may wait for the device's kernels, so that the library calls none of these while it has some.
MAY_WAIT = ("cuMemFree", "cuMemFreeHost", "cuModuleLoadData", "cuModuleUnload", "the first launch of a kernel")


def others_do_not_wait(document):
    calls = [found for found in document["figures"] if found["section"] == "waits"]
    return not any(found["waits"] for found in calls if found["call"] not in MAY_WAIT) if calls else None


def two_shot(algorithm, ranks):
    return figure("of_copy", section="bandwidth", algorithm=algorithm, ranks=ranks, bytes=256 * MIB, buffers="registered", way="stream")


def in_graph(datatype, size, buffers="registered", ranks=4):
    return figure("us", section="graph", caches="warm", datatype=datatype, bytes=size, buffers=buffers, ranks=ranks)


def small(resident, way):
    return figure("us", section="latency", algorithm="auto", ranks=4, bytes=8 * KIB, resident=resident, way=way)


ROWS = [
    Row("a process's context, MiB of the device", figure("taken_mib", section="memory", step="context"), 396, 700, "MiB", "F2: local memory 396, and what the driver keeps"),
    # (stack + 512, rounded up to 512) bytes x 2,048 threads x 132 multiprocessors, less the context's own; the stack is
    # koloRunLists' in perf/results/gpu/kernels.txt. Not the 1.29 GiB of the reading: the arrays have left the stack.
    Row("the kernels beside it", figure("taken_mib", section="memory", step="kernels"), 350, 450, "MiB", "F2's formula, today's stack", 0.8),
    Row("a fence beside one store of each thread", micro("us", what="fence", place="device", stores=1), 0.5, 1.5, "us", "its head: est. 1"),
    Row("from block to block through L2, by a flag", micro("us", what="hop", place="device", by="flag"), 0.2, 0.5, "us", "3: est. 0.3"),
    Row("the same through the host's memory, as far as a peer is", micro("us", what="hop", place="host", by="flag"), 1, 1.5, "us", "3"),
    Row("a packet beside a flag, through the host's memory", ratio(micro("us", what="hop", place="host", by="packet"), micro("us", what="hop", place="host", by="flag")), None, 0.7, "", "30 November: a release is a fence and a store"),
    Row("a launch in a stream", call("cuLaunchKernel and the kernel"), 2, 4, "us", "4: est. 3"),
    Row("a record between two kernels of a stream", less(call("kernel, cuEventRecord"), call("cuLaunchKernel and the kernel")), 1, 2, "us", "F8"),
    Row("a block's copy, bytes read and written", micro("gbps", what="copy", place="device", blocks=1), 80, 140, "GB/s", "F12, 4: 40 one way here, 65 in NCCL's model"),
    Row("bfloat16 beside float32, sums of 4 sources", ratio(sums("bfloat16"), sums("float32")), 0.85, None, "", "F5, with the sums of today"),
    Row("no other call of the driver waits for a kernel that runs", others_do_not_wait, 1, 1, None, "2, first minute", 0.75),
    Row("smoke test, collectives' tests and figures pass at the first try", passed("smoke", "tests collectives", "figures"), 1, 1, None, "2, first minute", 0.45),
    Row("the sanitizer's memcheck launches the kernels, and finds nothing", passed("sanitizer memcheck"), 1, 1, None, "1, finding 6", 0.6),
    Row("two_shot of 256 MiB, 4 ranks: its own traffic beside the copy's", two_shot("two_shot", 4), 0.85, None, "", TARGET, 0.65),
    *(
        Row(f"{name} of 256 MiB, {ranks} ranks: its own traffic beside the copy's", two_shot(name, ranks), 0.85, None, "", TARGET)
        for name in ["ring", "biring"]
        for ranks in [4, 2, 8]
    ),
    Row("256 MiB of bfloat16 beside float32 in a graph, 4 ranks, time", ratio(in_graph("bfloat16", 256 * MIB), in_graph("float32", 256 * MIB)), None, 1.18, "", "F5, with the sums of today"),
    Row("8 KiB in a graph, ordinary buffers beside registered ones, 4 ranks, time", ratio(in_graph("float32", 8 * KIB, "plain"), in_graph("float32", 8 * KIB)), None, 1.5, "", "4: 24 beside 16 of 8 GPUs, before F3 was mended"),
    Row("8 KiB, 4 ranks, launched, back to back", small(False, "stream"), None, 12, "us", TARGET, 0.3),
    Row("8 KiB, 4 ranks, launched, waited for", small(False, "waited"), None, 12, "us", TARGET, 0.3),
    Row("8 KiB, 4 ranks, resident, back to back", small(True, "stream"), None, 6, "us", TARGET, 0.15),
    Row("8 KiB, 4 ranks, resident, waited for", small(True, "waited"), None, 6, "us", TARGET, 0.15),
    Row("the resident kernel beside launches back to back, time of 8 KiB", ratio(small(True, "stream"), small(False, "stream")), 1, None, "", "2, low", 0.6),
]


# The planner's constants for GPUs: where they stand, and which figure takes their place. What is counted there is one
# way; a copy's bytes are counted both ways.
PLANNER = "src/gpu/gpu_census.cc"
CONSTANTS = {
    "kFenceUs": (micro("us", what="fence", place="device", stores=1), 1),
    "kHopOnDeviceUs": (micro("us", what="hop", place="device", by="flag"), 1),
    "kHopThroughHostUs": (micro("us", what="hop", place="host", by="flag"), 1),
    "kBlockGBps": (micro("gbps", what="copy", place="device", blocks=1), 0.5),
    "kHostGBps": (most("gbps", what="copy", place="host"), 0.5),
    "kHopBetweenDevicesUs": (lambda document: None, 1),  # needs two devices, as the next one
    "kLinkGBps": (lambda document: None, 1),
}


def constants(document):
    """(name, value in the source, value measured or None) of each."""
    text = (ROOT / PLANNER).read_text()
    rows = []
    for name, (value, factor) in CONSTANTS.items():
        measured = value(document)
        now = float(re.search(rf"\b{name} = ([\d.]+)", text)[1])
        rows.append((name, now, None if measured is None else round(measured * factor, 2)))
    return rows


def verdicts(document):
    return [row.verdict(document) for row in ROWS]
