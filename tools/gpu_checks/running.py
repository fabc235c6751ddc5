"""Runs sections one after the other, each with a limit, and keeps what they say, be they killed or this script."""

import datetime
import json
import os
import signal
import subprocess
import sys
import time

from gpu_checks import page, predictions, report, source, verdicts
from gpu_checks.figures import is_failure

ROOT = source.ROOT
LEAST_SECONDS = 3  # with less left, a section is not begun
TESTS_END_BEFORE = 3  # seconds: a test that hangs says so before its section is killed
OUTPUT_KEPT = 16000  # characters of a section in the report; the log has all


def run_limited(command, env, seconds, log):
    """Status: a number, or why there is none. The command writes into the file `log` itself: what it has said stays."""
    log.flush()
    try:
        # A group, not a session of its own: whoever ends all that this script has started finds it.
        process = subprocess.Popen(
            [str(part) for part in command],
            env=env,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
        )
    except OSError as problem:
        return str(problem)
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        end_group(process)
        return f"no end after {seconds:.0f} s"
    except BaseException:  # this script is ended
        end_group(process)
        raise
    finally:
        end_group(process)  # what it has left


def end_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def figures_of(output):
    """What a program prints as JSON, a line each; the last line may be cut."""
    found = []
    for line in output.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                pass
    return found


def summary_of(output):
    """The line in which a test program or a sanitizer sums up."""
    for line in reversed(output.splitlines()):
        if any(
            sign in line
            for sign in ["All tests passed", "test cases:", "ERROR SUMMARY", "RACECHECK SUMMARY", "No tests ran"]
        ):
            return line.strip("= ")
    return ""


def tests_end(env, seconds):
    """The environment in which tests and their operations end before the section's limit (tests/support/deadline.h)."""
    return {**env, "KOLO_TEST_END": str(int(time.time() + seconds - min(TESTS_END_BEFORE, seconds / 3)))}


class Checks:
    """Runs sections and keeps what they found."""

    def __init__(self, options):
        self.options = options
        self.end = time.monotonic() + options.seconds
        self.sections, self.figures = [], []
        self.about = {
            "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            "commit": source.commit(),
            "sources": source.digest(),
            "command": "tools/run-gpu-checks " + " ".join(sys.argv[1:]),
            "mocked": options.mock,
        }
        options.out.mkdir(parents=True, exist_ok=True)
        part = f"-part{options.part}" if options.part is not None else ""
        self.stem = f"{datetime.date.today().isoformat()}-gpu-checks{part}" + ("-mock" if options.mock else "")
        self.log_file = options.out / f"{self.stem}.log"
        self.log = open(self.log_file, "w+b", buffering=0)

    def left(self):
        return self.end - time.monotonic()

    def wants(self, name):
        return not self.options.only or any(name.startswith(word) for word in self.options.only.split(","))

    def section(self, name, command, env, seconds, judge=None, mark=None):
        """Whether it passed. judge(status, output) tells why not, or None; mark is put into each figure."""
        entry = {
            "name": name,
            "command": " ".join(map(str, command)),
            "status": "skipped: no time is left",
            "seconds": 0.0,
            "limit": seconds,
            "summary": "",
            "output": "",
        }
        self.sections.append(entry)
        self.say(f"== {name}: {entry['command']}")
        if self.left() >= LEAST_SECONDS:
            self.run(entry, command, env, min(seconds, self.left()), judge, mark)
        self.say(f"   {entry['status']} ({entry['seconds']} s) {entry['summary']}")
        if is_failure(entry):
            print("\n".join(report.shown(entry)), flush=True)
        self.write()
        return entry["status"] == "passed"

    def run(self, entry, command, env, seconds, judge, mark):
        place = self.log.seek(0, os.SEEK_END)
        begin = time.monotonic()
        status = run_limited(command, tests_end(env, seconds), seconds, self.log)
        self.log.seek(place)
        output = self.log.read().decode(errors="replace")
        found = figures_of(output)
        self.figures += [{**figure, **(mark or {})} for figure in found]
        entry["seconds"] = round(time.monotonic() - begin, 1)
        verdict = judge(status, output) if judge else None if status == 0 else f"FAILED: {status}"
        entry["status"] = verdict or "passed"
        entry["summary"] = summary_of(output) or (f"{len(found)} figures" if found else "")
        entry["output"] = "\n".join(line for line in output.splitlines() if not line.startswith("{"))[
            -OUTPUT_KEPT:
        ].strip()

    def say(self, line):
        """On standard output and in the log."""
        print(line, flush=True)
        self.log.seek(0, os.SEEK_END)
        self.log.write((line + "\n").encode())

    def skip(self, name, why):
        self.sections.append(
            {
                "name": name,
                "command": "",
                "status": f"skipped: {why}",
                "seconds": 0.0,
                "limit": 0,
                "summary": "",
                "output": "",
            }
        )
        self.say(f"== {name}: skipped: {why}")

    def write(self):
        document = {
            **self.about,
            "seconds": self.options.seconds,
            "unused": round(max(self.left(), 0), 1),
            "sections": self.sections,
            "figures": self.figures,
        }
        write_reports(document, self.options.out, self.stem)


def write_reports(document, folder, stem):
    """The reports, with what is expected beside what the document has; each is complete at any time."""
    document["verdicts"] = verdicts.verdicts(document)
    document["constants"] = [dict(zip(["name", "now", "measured"], row)) for row in predictions.constants(document)]
    texts = {"json": json.dumps(document, indent=1), "txt": report.text_report(document), "html": page.page(document)}
    for suffix, text in texts.items():
        fresh = folder / f".{stem}.{suffix}"
        fresh.write_text(text + "\n")
        fresh.replace(folder / f"{stem}.{suffix}")


def join(files, folder):
    """One report out of those of a lease's parts: what one of them has not measured another has."""
    documents = [json.loads(file.read_text()) for file in files]
    first = documents[0]
    for key in ["sources", "mocked"]:
        if any(document[key] != first[key] for document in documents):
            raise ValueError(f"{files[0]} and others are not of one lease: {key} differs")
    joined = {
        **first,
        "command": "; ".join(document["command"] for document in documents),
        **{key: sum(document[key] for document in documents) for key in ["seconds", "unused"]},
        **{key: [one for document in documents for one in document[key]] for key in ["sections", "figures"]},
    }
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{first['date'][:10]}-gpu-checks" + ("-mock" if first["mocked"] else "")
    write_reports(joined, folder, stem)
    return folder / f"{stem}.txt"
