"""What is run, in order of worth: the commands of one lease of a machine, and each of them as far as its time goes."""

import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from typing import Callable, Optional

from gpu_checks import building, carrying
from gpu_checks.running import ROOT, summary_of

# Tests that have a section of their own, by their tags.
TAGS = ["processes", "capture", "resident", "messages", "posted", "many"]
# As if no rank could map another one's memory; windows are staged there.
LATE = {"KOLO_TRANSPORTS": "late,shm", "KOLO_TEST_LATE_PER_HOST": "1", "KOLO_TEST_CONNECT_ALL_RANKS": "1000"}
MPS = {"mps": True}  # of figures
NCCL = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}  # several ranks on one device, since 2.30
OTHERS = {"CUDA_MODULE_LOADING": None, "CUDA_DEVICE_MAX_CONNECTIONS": None}  # as PyTorch finds them, which has thousands of kernels


@dataclass(frozen=True)
class Section:
    name: str
    part: int  # which command has it (PARTS)
    usual: int  # seconds that it should take on a device
    limit: int  # and that it may take
    command: Callable  # of a Place
    needed: bool = False  # whatever sections are asked for
    device: bool = False  # not by the mock
    without: Callable = lambda place: None  # why there is nothing to run; None: there is
    judge: Optional[Callable] = None
    mark: dict = field(default_factory=dict)  # for each figure
    changes: dict = field(default_factory=dict)  # of the environment; None: not set


class Place:
    """Where and how sections run."""

    def __init__(self, options, env, build, given_build):
        self.options, self.env, self.build = options, env, build
        self.mock, self.device, self.given_build = options.mock, options.device, given_build
        self.mps_folder, self.mps_runs = None, False
        self.env["KOLO_TEST_MARKS"] = "1"  # tests say their names, and print line by line
        self.env["KOLO_TEST_LATE_PLUGIN"] = str(build / building.LATE_PLUGIN)
        if (build / building.NCCL).is_file():
            self.env["KOLO_PEER_NCCL"] = str(build / building.NCCL)
        if not self.mock:
            self.env["KOLO_TEST_GPU"] = options.device
            self.env["KOLO_TEST_ALL"] = "1"  # with all numbers of ranks
            # A kernel that is loaded when it is first launched may wait for one that runs.
            self.env["CUDA_MODULE_LOADING"] = "EAGER"
            # As many queues for streams as there are, whatever the machine's image asks for.
            self.env["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"

    def program(self, name):
        return self.build / name

    def env_of(self, section):
        env = {**self.env, **section.changes}
        if self.mps_runs:
            env.update(CUDA_MPS_PIPE_DIRECTORY=self.mps_folder, CUDA_MPS_LOG_DIRECTORY=self.mps_folder)
        if "KOLO_TRANSPORTS" in section.changes:
            env["KOLO_TRANSPORT_PLUGINS"] = env["KOLO_TEST_LATE_PLUGIN"]
        return {name: str(value) for name, value in env.items() if value is not None}


# ---------------------------------------------------------------- commands


def configure(place):
    return building.configure_command(place.build, place.mock)


def build(place):
    return building.build_command(place.build, place.mock)


def export(place):
    how = ["--mock"] if place.mock else []
    return [sys.executable, "-m", "gpu_checks.carrying", place.build, place.options.export, *how]


def no_export(place):
    return None if place.options.export else "not asked for (--export)"


def tests(program, tags):
    return lambda place: [place.program(program), tags, "--warn", "NoTests", "--durations", "yes"]


def of_collectives(tags):
    return tests("tests/collectives/kolo-collectives", tags)


def of_devices(tags):
    return tests("tests/gpu/kolo-gpu", "[device]" + tags)


def measure(section, *more, quick=False):
    def command(place):
        how = ["--mock", "--quick"] if place.mock else ["--device", place.device, *(["--quick"] if quick else [])]
        return [place.program("tests/gpu/kolo-gpu-measure"), *how, "--sections", section, *more]

    return command


def kolo_perf(*more):
    """Every collective, as users measure them."""

    def command(place):
        program = place.program(building.PERF_ON_MOCK if place.mock else building.PERF)
        sizes = "8,8K" if place.mock else "8,8K,1M,64M" if more else "8,8K,1M"  # processes have the device in turns
        return [program, "--gpus", place.device, "--ranks", "2", "--sizes", sizes, "-n", "50", "--timeout", "15", *more]

    return command


def torch_peer(seconds):
    return lambda place: [sys.executable, ROOT / "tools/gpu-torch-peer", "--device", place.device, "--seconds", seconds]


def torch_backend(place):
    """With the kolo_torch of the build, or that of the machine's Python."""
    command = [sys.executable, ROOT / "tools/gpu-torch-backend", "--device", f"cuda:{place.device}"]
    found = place.build / "src/torch"
    return ["env", f"PYTHONPATH={found}", *command] if found.is_dir() else command


ALONE = "[gpu][single]"


def sanitizer(tool):
    """One rank that launches: kernels that a sanitizer serialises would wait for each other. Few channels: they get slow."""

    def command(place):
        more = (
            ["--report-api-errors", "no"] if tool == "memcheck" else []
        )  # the library asks the driver what it may refuse
        return [
            "compute-sanitizer",
            "--tool",
            tool,
            "--error-exitcode",
            "86",
            "--print-limit",
            "20",
            *more,
            place.program("tests/collectives/kolo-collectives"),
            ALONE,
        ]

    return command


def no_sanitizer(place):
    return None if shutil.which("compute-sanitizer", path=place.env["PATH"]) else "compute-sanitizer is not there"


def judge_sanitizer(status, output):
    """What the sanitizer found; tests that failed beneath it without a finding are told apart."""
    summary = summary_of("\n".join(line for line in output.splitlines() if "SUMMARY" in line))
    if status == 0:
        return None
    if isinstance(status, str):
        return f"FAILED: {status}; it slows kernels down"
    if " 0 errors" in summary or " 0 hazards" in summary:
        return "FAILED: nothing found, but the tests did not pass beneath the sanitizer"
    return f"FAILED: {summary or status}"


def sanitized(tool, part):
    return Section(f"sanitizer {tool}", part, 40, 60, sanitizer(tool), device=True, without=no_sanitizer,
                   judge=judge_sanitizer, changes={"KOLO_GPU_CHANNELS": 2})


def mps_begins(place):
    # The daemon answers when it has left the group of this section, which is ended with it.
    answers = "until echo get_server_list | nvidia-cuda-mps-control; do sleep 0.1; done"
    return ["sh", "-c", f"nvidia-cuda-mps-control -d </dev/null >/dev/null 2>&1 && {answers}"]


def mps_ends(place):
    return ["sh", "-c", "echo quit | nvidia-cuda-mps-control"]


def not_asked_for_mps(place):
    return None if place.options.mps else "not asked for (--mps)"


def no_mps(place):
    return not_asked_for_mps(place) or (None if place.mps_runs else "MPS did not begin")


def nvidia_smi(place):
    asked = "name,driver_version,memory.total,clocks.sm,clocks.mem,compute_mode,mig.mode.current"
    return ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]


# ---------------------------------------------------------------- the sections

BUILDING = [
    Section("configure", 0, 10, 60, configure, needed=True, without=lambda place: place.given_build),
    Section("build", 0, 150, 300, build, needed=True, without=lambda place: place.given_build),
    Section("export", 0, 10, 40, export, needed=True, without=no_export, changes={"PYTHONPATH": ROOT / "tools"}),
]
FIRST = [
    Section("machine", 1, 3, 20, lambda place: [sys.executable, ROOT / "tools/gpu_checks/probe.py"]),
    Section("kolo-info", 1, 2, 15, lambda place: [place.program("tools/kolo-info")]),
    Section("driver waits", 1, 4, 15, measure("waits"), changes={"CUDA_MODULE_LOADING": "LAZY"}),
    Section("memory taken", 1, 4, 15, measure("memory"), changes={"CUDA_MODULE_LOADING": None}),
    Section("micro-probe", 1, 15, 40, measure("micro")),
    Section("smoke sums", 1, 6, 15, of_collectives("GPU: sums of what each rank scales")),
    Section("tests collectives", 1, 60, 90, of_collectives("[gpu]~[posted]~[many]~[lists]")),
    Section("figures graph", 1, 30, 60, measure("graph", "--ranks", "4,2")),
    Section("figures latency", 1, 20, 40, measure("latency", "--ranks", "4")),
    Section("figures bandwidth", 1, 25, 40, measure("bandwidth", "--ranks", "4")),
    Section("peer nccl", 1, 25, 50, measure("nccl", "--ranks", "2"), changes=NCCL),
    Section("MPS begins", 1, 2, 20, mps_begins, device=True, without=not_asked_for_mps),
    Section("MPS figures processes", 1, 30, 45, measure("processes"), device=True, without=no_mps, mark=MPS),
    Section("MPS peer torch", 1, 55, 65, torch_peer(45), device=True, without=no_mps, mark=MPS, changes=OTHERS),
    Section("MPS ends", 1, 2, 20, mps_ends, device=True, without=no_mps),
    Section("figures gpudirect", 1, 3, 15, measure("gpudirect")),
]
SECOND = [
    Section("torch backend", 2, 30, 60, torch_backend, device=True, changes=OTHERS),
    Section("tests lists", 2, 30, 45, of_collectives("[gpu]~[posted]~[many][lists]")),
    Section("tests capture", 2, 25, 40, of_devices("[capture]")),
    Section("tests messages", 2, 25, 40, of_devices("[messages]")),
    Section("tests resident", 2, 40, 60, of_devices("[resident]")),
    Section("tests posted", 2, 30, 45, of_devices("[posted]")),
    Section("tests processes", 2, 60, 90, of_devices("[processes]"), changes={"KOLO_TEST_ALL": None}),
    Section("tests others", 2, 30, 45, of_devices("".join(f"~[{tag}]" for tag in TAGS))),
    Section("figures collectives", 2, 20, 30, measure("collectives")),
    sanitized("memcheck", 2),
]
LATER = [
    Section("tests collectives by posted links", 3, 50, 60, of_collectives("[gpu][posted]")),
    Section("tests by posted links", 3, 50, 60, of_devices("~[processes]~[windows]~[posted]~[many]"), changes=LATE),
    Section("figures backpressure", 3, 8, 30, measure("backpressure")),
    Section("figures messages", 3, 15, 30, measure("messages")),
    Section("figures processes", 3, 50, 60, measure("processes")),
    Section("peer torch", 3, 55, 65, torch_peer(45), device=True, changes=OTHERS),
    Section("kolo-perf threads", 3, 40, 60, kolo_perf("--threads")),
    Section("kolo-perf processes", 3, 40, 60, kolo_perf()),
    Section("other ranks bandwidth", 3, 45, 70, measure("bandwidth", "--ranks", "2,8")),
    Section("other ranks latency", 3, 40, 60, measure("latency", "--ranks", "2,8")),
    Section("many ranks", 3, 30, 45, of_devices("[many]")),
    Section("many ranks collectives", 3, 20, 40, of_collectives("[gpu][many]")),
    *(sanitized(tool, 3) for tool in ["racecheck", "synccheck"]),
]
DEVICE = Section("device", 1, 3, 20, nvidia_smi, needed=True, device=True)
SECTIONS = [DEVICE, *BUILDING, *FIRST, *SECOND, *LATER]


# ---------------------------------------------------------------- running them


def is_wanted(section, options):
    if section.device and options.mock:
        return False
    if section.needed:
        return True
    if options.part is not None and section.part != options.part:
        return False
    return not options.only or any(section.name.startswith(word) for word in options.only.split(","))


def follow(checks, place, section, passed):
    """What a section means for those after it; False: they cannot run."""
    if section.name == "device" and passed:
        checks.about["device"] = checks.sections[-1]["output"].strip()
    if section.name == "MPS begins":
        place.mps_runs = passed
    if section.name == "MPS ends":
        place.mps_runs = False
    return passed or section.name != "configure"  # what could not be built fails by itself


def run_all(checks, place):
    with tempfile.TemporaryDirectory() as folder:
        place.mps_folder = folder
        try:
            for section in SECTIONS:
                if not is_wanted(section, checks.options):
                    continue
                why = section.without(place)
                if why:
                    if not section.needed:
                        checks.skip(section.name, why)
                    continue
                if section.name == "MPS begins":
                    place.mps_runs = True  # in the folder of ours; whether it does is seen next
                passed = checks.section(
                    section.name,
                    section.command(place),
                    place.env_of(section),
                    section.limit,
                    section.judge,
                    section.mark,
                )
                if not follow(checks, place, section, passed):
                    return
        finally:
            if place.mps_runs:
                ends = next(section for section in SECTIONS if section.name == "MPS ends")
                checks.section(ends.name, ends.command(place), place.env_of(ends), ends.limit)


# ---------------------------------------------------------------- the plan

COMMAND_SECONDS = 540  # of a command of ten minutes at most
LEASE_SECONDS, STARTING_SECONDS = 900, 120  # of a machine; of them, to start it and to carry the tree there and reports back


@dataclass(frozen=True)
class Part:
    words: str  # of the command
    seconds: int  # within which it ends
    why: str


PARTS = {
    1: Part("--part 1 --build BUILD --out OUT --mps", 380, "what the figures are, and whether the results are right"),
    2: Part("--part 2 --build BUILD --out OUT", 400, "at once behind part 1, on the same machine: the other tests; --join makes one report of both"),
    3: Part("--part 3 --build BUILD --out OUT", COMMAND_SECONDS, "a later lease: what the first one has no time for"),
    0: Part("--part 0 --deps DEPS --out OUT --export BUILD", COMMAND_SECONDS, "the exception: builds there, for a lease of its own"),
}
LEASE = (1, 2)
PEER = "tools/take-nccl-peer LIBRARY MESON_FOLDER"
PACK = "tools/run-gpu-checks --build MESON_FOLDER --export BUILD"


def plan():
    """What each command of a lease should run, and how long each section may take."""
    lines = [
        f"Parts {LEASE[0]} and {LEASE[1]} fit in one lease of {LEASE_SECONDS} s, of which {STARTING_SECONDS} s are for its start and for what is carried. Each command",
        f"ends within its seconds, {COMMAND_SECONDS} at most: a section is cut to the time that is left.",
        "",
        PEER,
        "    once, for NCCL beside Kolo: with the libnccl.so.2 of NCCL 2.30",
        PACK,
        f"    first, where no GPU is needed: a build with -Dgpu_architectures=90, packed; {carrying.MOST_BYTES >> 20} MiB at most, and",
        "    the parts need python3 alone",
    ]
    for number, part in PARTS.items():
        sections = [section for section in SECTIONS if section.part == number]
        usual = sum(section.usual for section in sections)
        lines += ["", f"tools/run-gpu-checks {part.words}", f"    {part.why}", f"{'usual':>7} {'limit':>7}  section"]
        lines += [f"{section.usual:>5} s {section.limit:>5} s  {section.name}" for section in sections]
        lines.append(f"{usual:>5} s {part.seconds:>5} s  together")
    return "\n".join(lines)
