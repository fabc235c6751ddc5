"""What is expected of one GPU of sm_90: the targets, and what was predicted before any of this had run on a GPU.

The numbers F1 to F13 and "1" to "3" name findings and parts of a reading of 2026-11-28: the kernels' machine code and
PTX (commit 030b226), CUDA 13.0's headers, and NCCL's and MSCCL++'s sources beside them. Its estimates for eight GPUs
behind NVSwitch are not here, for one device cannot show them. `chance`: that the row holds, as it was guessed then.
"""

from dataclasses import dataclass
from typing import Callable, Optional

from gpu_checks.figures import KIB, MIB, find, number

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
            bound = f"at most {self.high:g}" if self.low is None else f"at least {self.low:g}"
        else:
            bound = f"{self.low:g} to {self.high:g}"
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


def small(resident, way):
    return figure("us", section="latency", algorithm="auto", ranks=4, bytes=8 * KIB, resident=resident, way=way)


ROWS = [
    Row("a process's context, MiB of the device", figure("taken_mib", section="memory", step="context"), 396, 700, "MiB", "F2: local memory 396, and what the driver keeps"),
    # (stack + 512, rounded up to 512) bytes x 2,048 threads x 132 multiprocessors, less the context's own; the stack is
    # koloRunLists' in perf/results/gpu/kernels.txt. Not the 1.29 GiB of the reading: the arrays have left the stack.
    Row("the kernels beside it", figure("taken_mib", section="memory", step="kernels"), 350, 450, "MiB", "F2's formula, today's stack", 0.8),
    Row("no other call of the driver waits for a kernel that runs", others_do_not_wait, 1, 1, None, "2, first minute", 0.75),
    Row("all smoke sections pass", passed("smoke"), 1, 1, None, "2, first minute", 0.45),
    Row("the sanitizer's memcheck launches the kernels, and finds nothing", passed("sanitizer memcheck"), 1, 1, None, "1, finding 6", 0.6),
    Row("two_shot of 256 MiB, 4 ranks: its own traffic beside the copy's", two_shot("two_shot", 4), 0.85, None, "", TARGET, 0.65),
    *(
        Row(f"{name} of 256 MiB, {ranks} ranks: its own traffic beside the copy's", two_shot(name, ranks), 0.85, None, "", TARGET)
        for name in ["ring", "biring"]
        for ranks in [4, 2, 8]
    ),
    Row("8 KiB, 4 ranks, launched, back to back", small(False, "stream"), None, 12, "us", TARGET, 0.3),
    Row("8 KiB, 4 ranks, launched, waited for", small(False, "waited"), None, 12, "us", TARGET, 0.3),
    Row("8 KiB, 4 ranks, resident, back to back", small(True, "stream"), None, 6, "us", TARGET, 0.15),
    Row("8 KiB, 4 ranks, resident, waited for", small(True, "waited"), None, 6, "us", TARGET, 0.15),
    Row("the resident kernel beside launches back to back, time of 8 KiB", ratio(small(True, "stream"), small(False, "stream")), 1, None, "", "2, low", 0.6),
]


def verdicts(document):
    return [row.verdict(document) for row in ROWS]
