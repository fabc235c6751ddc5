#!/usr/bin/env python3
"""Whether tools/run-gpu-checks runs its sections by the mock and reports, also of those that fail, hang or are killed.

And whether a build can be carried to a machine that has next to nothing.

usage: check_gpu_checks.py RUN_GPU_CHECKS BUILD [--lease]

--lease: a whole lease, which takes as long as one.
"""

import itertools
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from html.parser import HTMLParser
from pathlib import Path

SCRIPT, BUILD = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
ROOT = SCRIPT.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from gpu_checks import building, carrying, fatbin, predictions, sections, source

SECTIONS = [
    "machine",
    "kolo-info",
    "driver waits",
    "memory taken",
    "micro-probe",
    "figures graph",
    "figures latency",
    "figures bandwidth",
    "peer nccl",
    "tests messages",
    "figures backpressure",
    "kolo-perf threads",
]
MOST_BYTES = 16 << 20  # of a file that comes back from a machine that is lent
MOST_FILES = 8  # and of such files
NEED_TWO_DEVICES = {"kHopBetweenDevicesUs", "kLinkGBps"}
SOON = 60  # seconds, for what takes one
NO_ROOT = 77


def expect(condition, what, output):
    if not condition:
        sys.exit(f"{what}; run-gpu-checks said:\n{output}")


def command(*arguments, out, script=SCRIPT):
    return [sys.executable, script, "--mock", "--out", out, *arguments]


def run(*arguments):
    """Exit status, output, the JSON report, the text and the log."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command(*arguments, out=folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        reports = reports_in(folder)
    expect(set(reports) == {".log", ".json", ".txt", ".html"}, f"the reports are {sorted(reports)}", done.stdout)
    check_page(reports[".html"])
    return done.returncode, done.stdout, json.loads(reports[".json"]), reports[".txt"], reports[".log"]


class Page(HTMLParser):
    """What stands in the cells of a page, and whether each element is closed where it should be."""

    ALONE = {"meta"}

    def __init__(self, text):
        super().__init__()
        self.open, self.cells, self.sound = [], [], True
        self.feed(text)
        self.close()
        self.sound = self.sound and not self.open

    def handle_starttag(self, tag, attributes):
        if tag not in self.ALONE:
            self.open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag):
        self.sound = self.sound and bool(self.open) and self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "td":
            self.cells[-1] += data


def check_page(text):
    page = Page(text)
    expect(page.sound and "not measured" in page.cells, "the page is not whole", text)


def reports_in(folder):
    return {file.suffix: file.read_text() for file in Path(folder).iterdir()}


def program(build, name, text):
    """A script in the place of a program of a build."""
    file = Path(build) / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def wait_until(condition, what):
    end = time.monotonic() + SOON
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"{what}: not within {SOON} s")
        time.sleep(0.02)


# ---------------------------------------------------------------- what it runs and reports


def check_sections():
    status, output, report, text, _ = run("--build", BUILD, "--only", ",".join(SECTIONS))
    expect(status == 0, f"exit status {status}", output)
    expect([section["name"] for section in report["sections"]] == SECTIONS, "other sections than asked for", output)
    expect(all(section["status"] == "passed" for section in report["sections"]), "not all passed", output)
    waits = {figure["call"]: figure for figure in report["figures"] if figure["section"] == "waits"}
    constants = {one["name"]: one["measured"] for one in report["constants"]}
    lacking = [name for name, measured in constants.items() if (measured is None) == (name not in NEED_TWO_DEVICES)]
    expect(not lacking, f"constants that are not measured, or cannot have been: {lacking}", text)
    expect(waits["cuMemFree"]["waits"] and waits["cuMemFree"]["holds_up"], "cuMemFree is not seen to wait", output)
    expect(not waits["cuMemAlloc"]["waits"] and not waits["cuMemUnmap"]["waits"], "calls wait that do not", output)
    expect("cuMemFree" in text and "waits for the kernel" in text, "what waits is not in the text", text)
    figures = [figure for figure in report["figures"] if "us" in figure]
    expect({figure["section"] for figure in figures} == {"micro", "graph", "latency", "bandwidth", "nccl"}, "figures are missing", output)
    expect(not any(figure.get("wrong") for figure in figures), "wrong results", output)
    points = [(one["datatype"], one["buffers"], one["caches"]) for one in figures if one["section"] == "graph"]
    kinds = itertools.product(["float32", "bfloat16"], ["registered", "plain"], ["warm", "cold"])
    expect(set(points) == set(kinds), "figures of a graph are missing", output)
    expect(all(one["planner_us"] > 0 for one in figures if one["section"] == "graph"), "figures lack predictions", output)
    expect(any(entry["holds"] is not None for entry in report["verdicts"]), "no target was looked at", output)
    expect(
        all(part in text for part in [*SECTIONS, "constants of the planner", "in a graph, 4 ranks", "NCCL / Kolo", "latency in us, 4 ranks", "bandwidth, 4 ranks", "# unused: "]),
        "the text lacks a part",
        text,
    )
    expect("s of 540 s are unused" in output, "the unused time is not said", output)
    expect(0 < report["unused"] < report["seconds"] == 540, "the unused time is wrong", output)


def check_expectations():
    """Figures inside and outside of what was expected, and none at all; a failed section."""

    def document(*figures, **status):
        entries = [{"name": name.replace("_", " "), "status": said} for name, said in status.items()]
        return {"figures": list(figures), "sections": entries}

    def holds(text, seen):
        found = [entry for entry in predictions.verdicts(seen) if entry["target"].startswith(text)]
        expect(len(found) == 1, f"{len(found)} rows begin with: {text}", "")
        return found[0]["holds"]

    def at(us, resident):
        point = {"section": "latency", "algorithm": "auto", "ranks": 4, "bytes": 8192, "way": "stream"}
        return {**point, "resident": resident, "us": us}

    latency, resident = "8 KiB, 4 ranks, launched, back to back", "the resident kernel beside launches"
    kernels, smoke, waits = "the kernels beside it", "smoke test, collectives", "no other call of the driver waits"
    memory = {"section": "memory", "step": "kernels", "taken_mib": 400}
    free, event = ({"section": "waits", "call": call, "waits": True} for call in ["cuMemFree", "cuEventRecord"])
    for text, seen, wanted in [
        (latency, document(), None),
        (latency, document(at(12, False)), True),
        (latency, document(at(12.1, False)), False),
        (latency, document(at(3, True)), None),
        (resident, document(at(8, False), at(9, True)), True),
        (resident, document(at(8, False), at(7, True)), False),
        (resident, document(at(8, False)), None),
        (kernels, document(memory), True),
        (kernels, document({**memory, "taken_mib": 1300}), False),
        (smoke, document(smoke_sums="passed", figures_graph="passed"), True),
        (smoke, document(smoke_sums="passed", figures_graph="FAILED: 1"), False),
        (smoke, document(smoke_sums="skipped: no time is left"), None),
        (waits, document(free), True),
        (waits, document(free, event), False),
    ]:
        expect(holds(text, seen) is wanted, f"{text}: holds is not {wanted} of {seen}", "")


def check_joined():
    """What one part has measured and the other has not is in the report of both; parts of other sources are refused."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as nothing:
        place = Path(folder)
        for part, name in [("1", "machine"), ("2", "tests capture")]:
            subprocess.run(
                command("--part", part, "--build", nothing, "--only", name, out=place / part), stdout=subprocess.DEVNULL
            )
        parts = sorted(place.glob("*/*.json"))
        other = json.loads(parts[1].read_text())

        def join(out):
            words = [SCRIPT, "--join", *parts, "--out", out]
            return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

        done = join(place / "both")
        expect(done.returncode == 0, "the parts are not joined", done.stdout)
        both = json.loads(reports_in(place / "both")[".json"])
        names = [entry["name"] for entry in both["sections"]]
        expect(names == ["machine", "tests capture"] and both["seconds"] == 780, f"{names} are joined", done.stdout)
        parts[1].write_text(json.dumps({**other, "sources": "others"}))
        expect("sources differs" in join(place / "again").stdout, "parts of other sources are joined", "")


def check_failures():
    with tempfile.TemporaryDirectory() as nothing:
        status, output, report, _, _ = run("--build", nothing, "--only", ",".join(SECTIONS))
    expect(status == 1, f"exit status {status} though nothing is there", output)
    expect([section["name"] for section in report["sections"]] == SECTIONS, "a failure hides a section", output)
    expect(all("No such file" in section["status"] for section in report["sections"][1:]), "not all failed", output)


def check_plan():
    """The parts of one lease fit in it, with what starting costs; a packed build comes first, and building there last."""
    said = subprocess.run([SCRIPT, "--plan"], capture_output=True, text=True, check=True).stdout
    for number, part in sections.PARTS.items():
        usual = sum(section.usual for section in sections.SECTIONS if section.part == number)
        expect(0 < usual <= part.seconds <= sections.COMMAND_SECONDS, f"part {number} does not fit in a command", said)
    lease = sum(sections.PARTS[number].seconds for number in sections.LEASE) + sections.STARTING_SECONDS
    expect(lease <= sections.LEASE_SECONDS == 900, f"the lease's parts take {lease} s", said)
    commands = [line for line in said.splitlines() if line.startswith("tools/run-gpu-checks")]
    expect(commands[0] == sections.PACK and "--deps" in commands[-1], "building there is not the exception", said)
    for section in sections.SECTIONS:
        expect(
            f"{section.usual:>5} s {section.limit:>5} s  {section.name}\n" in said,
            f"{section.name} is not in the plan",
            said,
        )
        expect(section.usual <= section.limit, f"{section.name} may take less than it usually does", said)
    first = [section.name for section in sections.SECTIONS]
    worth = [
        "device",
        "build",
        "driver waits",
        "memory taken",
        "micro-probe",
        "tests collectives",
        "figures graph",
        "figures latency",
        "figures bandwidth",
        "peer nccl",
        "MPS peer torch",
        "torch backend",
        "tests processes",
        "sanitizer memcheck",
        "tests by posted links",
    ]
    expect(sorted(worth, key=first.index) == worth, "not in order of worth", said)
    for number in sections.PARTS:
        names = [section.name for section in sections.SECTIONS if section.part == number]
        slow = ["sanitizer" in name for name in names]
        expect(slow == sorted(slow), f"part {number} does not end with its sanitizers", said)


# ---------------------------------------------------------------- what hangs or is killed


def check_hang():
    """A section that is killed has said what it could, and nothing of it is left."""
    with tempfile.TemporaryDirectory() as build:
        child = Path(build) / "child"
        program(
            build,
            "tools/kolo-info",
            f'echo \'{{"section": "found"}}\'; echo last words; sleep 1000 & echo $! > {child}; wait',
        )
        status, output, report, text, log = run("--build", build, "--only", "kolo-info", "--seconds", "4")
        left = Path(f"/proc/{child.read_text().strip()}")
        wait_until(
            lambda: not left.exists() or "State:\tZ" in (left / "status").read_text(), "what a section left goes"
        )
    expect(
        status == 1 and report["sections"][0]["status"].startswith("FAILED: no end after"), "no end was seen", output
    )
    expect(all("last words" in said for said in [output, text, log]), "what a killed section has said is lost", output)
    expect(report["figures"] == [{"section": "found"}], "figures of a killed section are lost", output)


def check_killed():
    """When this script itself is killed, what its section has said is in the log."""
    with tempfile.TemporaryDirectory() as build, tempfile.TemporaryDirectory() as folder:
        child = Path(build) / "child"
        program(build, "tools/kolo-info", f"echo $$ > {child}; echo last words; exec sleep 1000")
        process = subprocess.Popen(
            command("--build", build, "--only", "kolo-info", out=folder),
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait_until(lambda: "last words" in reports_in(folder).get(".log", ""), "the log has what a section says")
        process.kill()
        process.wait()
        left = int(child.read_text())
        same_session = os.getsid(left) == process.pid  # so whoever ends the session of this script leaves nothing
        os.kill(left, signal.SIGKILL)
        expect(same_session, "a section has left the session", "")


def check_test_programs():
    """Tests say at once what they have to say, and end before they are killed."""
    marks = {
        **os.environ,
        "KOLO_TEST_MARKS": "1",
        "KOLO_TEST_LATE_PLUGIN": str(BUILD / "tests/plugin/kolo-transport-late.so"),
    }
    for name, cases in [
        ("gpu/kolo-gpu", "[device][resident]"),
        ("collectives/kolo-collectives", "GPU: every algorithm by a resident kernel"),
    ]:
        words = [BUILD / "tests" / name, cases, "--durations", "yes"]
        ended = subprocess.run(
            words,
            env={**marks, "KOLO_TEST_END": str(int(time.time()))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        expect(
            ended.returncode != 0 and ("did not end in time" in ended.stdout or "no end after" in ended.stdout),
            f"{name} outlives its deadline",
            ended.stdout,
        )
        # Both outputs go into one file: a line that waits in a buffer would come behind what was said later.
        place = {word: ended.stdout.find(word) for word in ["Filters: ", "== case "]}
        expect(0 <= place["Filters: "] < place["== case "], f"{name} keeps lines to itself", ended.stdout)
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(words, env=marks, stdout=said, stderr=subprocess.DEVNULL)
            wait_until(lambda: os.fstat(said.fileno()).st_size > 0, f"{name} says something")
            expect(process.poll() is None, f"{name} says nothing until it ends", "")
            process.kill()
            process.wait()


def check_alone():
    """What sanitizers look at goes on where a launch returns when its kernel has ended, and has no resident kernel."""
    done = subprocess.run(
        [BUILD / "tests/collectives/kolo-collectives", sections.ALONE, "--warn", "NoTests"],
        env={**os.environ, "CUDA_LAUNCH_BLOCKING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SOON,
    )
    expect(done.returncode == 0, f"exit status {done.returncode}", done.stdout)
    expect("no resident kernel" not in done.stdout, "a resident kernel was asked for", done.stdout)


# ---------------------------------------------------------------- a build that is carried


def in_bare_root(place, tree, *words):
    (place / "root").mkdir(exist_ok=True)
    helper = [sys.executable, ROOT / "tests/gpu/bare_root.py"]
    return subprocess.run(
        ["unshare", "--mount", "--propagation", "private", *helper, place / "root", tree, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def carried_tree(place):
    """A tree without the program that reads its repository, and in it the build, packed."""
    tree = place / "tree"
    for part in source.FOLDERS:
        shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
    words = [SCRIPT, "--mock", "--build", BUILD, "--export", tree / "carried"]
    packed = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    expect(packed.returncode == 0, "nothing is packed", packed.stdout)
    (tree / ".git").mkdir()
    sizes = [file.stat().st_size for file in (tree / "carried").iterdir()]
    expect(0 < len(sizes) <= MOST_FILES - 4 and max(sizes) <= MOST_BYTES, f"files of {sizes} bytes", packed.stdout)
    expect(sum(sizes) <= carrying.MOST_BYTES, f"{sum(sizes)} bytes are too many to carry", packed.stdout)
    return tree


def check_too_large():
    """What cannot be carried is not packed without a word."""
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder) / "build"
        (build / "tools").mkdir(parents=True)
        (build / "tools/kolo-info").write_bytes(os.urandom(carrying.MOST_BYTES + 1))
        words = [SCRIPT, "--mock", "--build", build, "--export", Path(folder) / "packed"]
        packed = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        expect(packed.returncode == 1 and "more than the 60 MiB" in packed.stdout, "too much is packed", packed.stdout)


def check_fatbin():
    """Of a library's code for GPUs only one architecture's stays; what does not fit together is refused."""

    def entry(architecture, code):
        return struct.pack("<HHIQIIHHI", 2, 0x101, 64, len(code), 0, 0, 0, 0, architecture).ljust(64, b"\1") + code

    def container(*entries):
        whole = b"".join(entries)
        return struct.pack("<IHHQ", fatbin.MAGIC, 1, 16, len(whole)) + whole

    codes = {architecture: bytes([architecture]) * 40 for architecture in [80, 90, 100]}
    whole = bytearray(container(*(entry(*pair) for pair in codes.items())) + bytes(8) + container(entry(100, codes[100])))
    before = bytes(whole)
    kept = fatbin.keep_entries(whole, 0, len(whole), 90)
    expect(kept == 40 and codes[90] in whole, f"{kept} bytes are kept", "")
    expect(codes[80] not in whole and codes[100] not in whole, "code of others is kept", "")
    expect(len(whole) == len(before) and whole.count(b"\1" * 30) == 4, "entries are not where they were", "")
    broken = bytearray(container(entry(90, codes[90])))
    struct.pack_into("<Q", broken, 16 + 8, 1 << 40)  # the entry's length
    for data, why in [(broken, "does not fit"), (bytearray(before[:-1]), "reaches beyond")]:
        try:
            fatbin.keep_entries(data, 0, len(data), 90)
        except ValueError as problem:
            expect(why in str(problem), str(problem), "")
        else:
            expect(False, f"no error that it {why}", "")


def check_lease():
    """Both parts of a lease, as a whole: in a bare root, each ended by the clock at its command's limit, which neither
    meets. Sections may be late on a slow machine, and fail in no other way."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        tree = carried_tree(place)
        for number in sections.LEASE:
            words = ["tools/run-gpu-checks", "--mock", "--build", "carried", "--out", "out", "--part", str(number), "--mps"]
            clock = ["/usr/bin/timeout", "--signal=KILL", str(sections.COMMAND_SECONDS), "/usr/bin/python3"]
            done = in_bare_root(place, tree, *clock, *words)
            if done.returncode == NO_ROOT:
                print(f"not tried in a bare root, which the kernel refuses: {done.stdout}")
                return
            expect(done.returncode in (0, 1), f"part {number} was ended by the clock, or failed", done.stdout)
            (file,) = (tree / "out").glob(f"*part{number}-mock.json")
            report = json.loads(file.read_text())
            wanted = [part.name for part in sections.SECTIONS if part.part == number and not part.device]
            expect([entry["name"] for entry in report["sections"]] == wanted, "other sections than planned", done.stdout)
            for entry in report["sections"]:
                late = "no time is left" in entry["status"] or re.search("did not end in time|no end after", entry["output"])
                late = late or entry["status"].startswith("FAILED: no end after")
                expect(entry["status"] == "passed" or late, f"{entry['name']}: {entry['status']}", done.stdout)
                if late:
                    print(f"part {number}: {entry['name']} was late: {entry['status']}")


def check_carried():
    """Exports, and runs that in a tree without a repository, on a machine without git and most libraries."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        tree = carried_tree(place)
        wanted = ["kolo-info", "smoke sums", "figures latency"]
        done = in_bare_root(
            place,
            tree,
            "/usr/bin/python3",
            "tools/run-gpu-checks",
            "--mock",
            "--build",
            "carried",
            "--out",
            "out",
            "--only",
            ",".join(wanted),
        )
        if done.returncode == NO_ROOT:
            print(f"not tried in a bare root, which the kernel refuses: {done.stdout}")
            return
        expect(done.returncode == 0, f"exit status {done.returncode} in the bare root", done.stdout)
        report = json.loads(reports_in(tree / "out")[".json"])
        expect(
            [section["name"] for section in report["sections"]] == wanted, "other sections than asked for", done.stdout
        )
        expect(
            report["commit"] == "unknown (no git)" and report["sources"] == report["build"]["sources"],
            "other sources",
            done.stdout,
        )
        expect("are NOT those of this tree" not in done.stdout, "the same sources are taken for others", done.stdout)

        (tree / "src/other.cc").write_text("// changed\n")
        (tree / ".git").rmdir()
        done = subprocess.run(
            command(
                "--build",
                tree / "carried",
                "--only",
                "kolo-info",
                out=place / "again",
                script=tree / "tools/run-gpu-checks",
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        expect("are NOT those of this tree" in done.stdout, "a build of other sources is taken for this tree's", done.stdout)
        commit = json.loads(reports_in(place / "again")[".json"])["commit"]
        expect(commit == "unknown (no repository)", f"the commit is {commit}", done.stdout)


# ---------------------------------------------------------------- a build from next to nothing


def packages_into(folder):
    """What --prepare unpacks there, out of what is installed here; the names of what is not."""
    missing = []
    for package in building.PACKAGES:
        listed = subprocess.run(["dpkg", "-L", package], capture_output=True, text=True)
        if listed.returncode != 0:
            missing.append(package)
        for path in map(Path, listed.stdout.splitlines()):
            if path.is_relative_to("/usr") and not path.is_dir() and path.exists():
                there = folder / path.relative_to("/")
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, there, follow_symlinks=False)
            elif path.is_relative_to("/lib") and path.is_file():  # which is /usr/lib
                there = folder / "usr" / path.relative_to("/")
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, there, follow_symlinks=False)
    return missing


def check_bare_build():
    """On such a machine, what is prepared for it is enough to build."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        tree = place / "tree"
        for part in source.FOLDERS:
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        for file in [*ROOT.glob("meson*"), ROOT / "README.md"]:
            shutil.copy(file, tree)
        missing = packages_into(tree / "deps")
        if missing:
            print(f"not built in a bare root: {', '.join(missing)} not installed, as Debian packages")
            return
        done = in_bare_root(place, tree, "/usr/bin/python3", "tests/gpu/bare_build.py", "deps", "build")
        if done.returncode == NO_ROOT:
            print(f"not built in a bare root, which the kernel refuses: {done.stdout}")
            return
        expect(done.returncode == 0 and "linked\n" in done.stdout, f"exit status {done.returncode}", done.stdout)


CHECKS = [
    check_plan,
    check_expectations,
    check_joined,
    check_sections,
    check_failures,
    check_hang,
    check_killed,
    check_test_programs,
    check_alone,
    check_too_large,
    check_fatbin,
    check_carried,
    check_bare_build,
]

for check in [check_lease] if "--lease" in sys.argv else CHECKS:
    begin = time.monotonic()
    check()
    print(f"{check.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
