#!/usr/bin/env python3
"""Whether tools/run-gpu-checks runs its sections by the mock and reports, also of those that fail, hang or are killed.

And whether a build can be carried to a machine that has next to nothing.

usage: check_gpu_checks.py RUN_GPU_CHECKS BUILD
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT, BUILD = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
ROOT = SCRIPT.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from gpu_checks import building, sections, source

SECTIONS = [
    "machine",
    "kolo-info",
    "driver waits",
    "figures latency",
    "figures bandwidth",
    "tests messages",
    "figures backpressure",
    "kolo-perf threads",
]
MOST_BYTES = 16 << 20  # of a file that comes back from a machine that is lent
MOST_FILES = 8  # and of such files
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
    expect(len(reports) == 3, f"{len(reports)} reports", done.stdout)
    return done.returncode, done.stdout, json.loads(reports[".json"]), reports[".txt"], reports[".log"]


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
    expect(waits["cuMemFree"]["waits"] and waits["cuMemFree"]["holds_up"], "cuMemFree is not seen to wait", output)
    expect(not waits["cuMemAlloc"]["waits"] and not waits["cuMemUnmap"]["waits"], "calls wait that do not", output)
    expect("cuMemFree" in text and "waits for the kernel" in text, "what waits is not in the text", text)
    figures = [figure for figure in report["figures"] if "us" in figure]
    expect({figure["section"] for figure in figures} == {"latency", "bandwidth"}, "figures are missing", output)
    expect(not any(figure["wrong"] for figure in figures), "wrong results", output)
    expect(any(entry["holds"] is not None for entry in report["verdicts"]), "no target was looked at", output)
    expect(
        all(part in text for part in [*SECTIONS, "latency in us, 4 ranks", "bandwidth, 4 ranks", " s unused"]),
        "the text lacks a part",
        text,
    )
    expect("s of 540 s are unused" in output, "the unused time is not said", output)
    expect(0 < report["unused"] < report["seconds"] == 540, "the unused time is wrong", output)


def check_failures():
    with tempfile.TemporaryDirectory() as nothing:
        status, output, report, _, _ = run("--build", nothing, "--only", ",".join(SECTIONS))
    expect(status == 1, f"exit status {status} though nothing is there", output)
    expect([section["name"] for section in report["sections"]] == SECTIONS, "a failure hides a section", output)
    expect(all("No such file" in section["status"] for section in report["sections"][1:]), "not all failed", output)


def check_plan():
    said = subprocess.run([SCRIPT, "--plan"], capture_output=True, text=True, check=True).stdout
    for part in sections.COMMANDS:
        usual = sum(section.usual for section in sections.SECTIONS if section.part == part)
        expect(0 < usual <= 540, f"part {part} does not fit in a command", said)
    for section in sections.SECTIONS:
        expect(
            f"{section.usual:>5} s {section.limit:>5} s  {section.name}\n" in said,
            f"{section.name} is not in the plan",
            said,
        )
        expect(section.usual <= section.limit, f"{section.name} may take less than it usually does", said)
    expect(
        [section.part for section in sections.SECTIONS] == sorted(section.part for section in sections.SECTIONS),
        "parts are mixed",
        said,
    )
    first = [section.name for section in sections.SECTIONS]
    worth = [
        "device",
        "build",
        "smoke latency",
        "figures latency",
        "figures bandwidth",
        "figures processes",
        "peer torch",
        "tests collectives",
        "tests processes",
        "sanitizer memcheck",
    ]
    expect(sorted(worth, key=first.index) == worth, "not in order of worth", said)
    expect(
        all("sanitizer" in name for name in first[first.index("sanitizer memcheck") :]),
        "the sanitizers are not last",
        said,
    )


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
    (place / "root").mkdir()
    helper = [sys.executable, ROOT / "tests/gpu/bare_root.py"]
    return subprocess.run(
        ["unshare", "--mount", "--propagation", "private", *helper, place / "root", tree, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def check_carried():
    """Exports, and runs that in a tree without a repository, on a machine without git and most libraries."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        tree = place / "tree"
        for part in source.FOLDERS:
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        words = [SCRIPT, "--mock", "--build", BUILD, "--export", tree / "carried"]
        packed = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        expect(packed.returncode == 0, "nothing is packed", packed.stdout)
        (tree / ".git").mkdir()  # without the program that reads it
        sizes = [file.stat().st_size for file in (tree / "carried").iterdir()]
        expect(0 < len(sizes) <= MOST_FILES - 3 and max(sizes) <= MOST_BYTES, f"files of {sizes} bytes", packed.stdout)

        wanted = ["kolo-info", "smoke latency", "kolo-perf threads"]
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


CHECKS = [check_plan, check_sections, check_failures, check_hang, check_killed, check_test_programs, check_alone, check_carried, check_bare_build]

for check in CHECKS:
    begin = time.monotonic()
    check()
    print(f"{check.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
