#!/usr/bin/env python3
"""Runs the tests that Meson builds list and counts their test cases.

usage: run_suites.py [--filter TEXT] [--broken N] LABEL=BUILD_DIR...

A Catch2 program counts one for each of its test cases, any other program counts one; exit status 77 means skipped. Tests
of the suite "plain-only" are left out of builds with a sanitizer. The last line is "N passed, N failed", with
", N skipped" where some were. The exit status is 0 only if something ran and nothing failed.
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree

SKIPPED = 77
SANITIZED_TIMEOUT_FACTOR = 4  # sanitizers slow the tests down by 2 to 20
OUTPUT_LINES = 60  # the last ones of a failed program
REPORT_LINES = 40  # of each of a sanitizer's first reports, which come before them
REPORTS = 3
REPORT_BEGINS = ("WARNING: ThreadSanitizer", "ERROR: AddressSanitizer", "ERROR: LeakSanitizer", ": runtime error: ")

SANITIZER_ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=0:second_deadlock_stack=1",
}


class Tally:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def line(self):
        return f"{self.passed} passed, {self.failed} failed" + (f", {self.skipped} skipped" if self.skipped else "")

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


class Build:
    """A configured build directory and how its programs are to be run."""

    def __init__(self, label, folder):
        self.label = label
        self.folder = os.path.abspath(folder)
        options = self._introspect("--buildoptions")
        self.sanitizer = next((o["value"] for o in options if o["name"] == "b_sanitize"), "none")
        self.tests = [t for t in self._introspect("--tests") if self._applies(t)]
        self.factor = 1 if self.sanitizer == "none" else SANITIZED_TIMEOUT_FACTOR
        self.prefix = without_address_randomization() if self.sanitizer == "thread" else []

    def _introspect(self, what):
        done = subprocess.run(["meson", "introspect", what, self.folder], check=True, capture_output=True, text=True)
        return json.loads(done.stdout)

    def _applies(self, test):
        suites = {suite.rpartition(":")[2] for suite in test["suite"]}
        return self.sanitizer == "none" or "plain-only" not in suites

    def environment(self, test):
        environment = dict(os.environ)
        if self.sanitizer != "none":
            for name, value in SANITIZER_ENVIRONMENT.items():
                environment.setdefault(name, value)
        environment.update(test.get("env") or {})
        return environment


def without_address_randomization():
    """GCC 12's thread sanitizer has no room for mappings as random as new kernels make them."""
    prefix = ["setarch", os.uname().machine, "-R"]
    try:
        usable = subprocess.run(prefix + ["true"], capture_output=True, check=False).returncode == 0
    except OSError:
        usable = False
    if not usable:
        print("setarch -R does not work here: the thread sanitizer may fail to start")
    return prefix if usable else []


def is_catch2(program):
    try:
        with open(program, "rb") as file:
            content = file.read()
    except OSError:
        return False
    return content.startswith(b"\x7fELF") and b"list-test-names-only" in content


def run(command, environment, workdir, timeout):
    """Exit status (None: timed out), output. A program that runs out of time goes with all that it started."""
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen(command, env=environment, cwd=workdir, stdin=subprocess.DEVNULL, stdout=output,
                              stderr=subprocess.STDOUT, start_new_session=True) as process:
            try:
                status = process.wait(timeout)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                end_session(process)
        output.seek(0)
        return status, output.read().decode(errors="replace")


def end_session(process):
    """What a test left running must not disturb the next one."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def parse_cases(report):
    """[(name, passed, text of failures)] of Catch2's XML; a case that never ended has passed None. The report of a
    program that died ends in mid-air, which a pull parser takes."""
    cases, running = [], None
    parser = ElementTree.XMLPullParser(["start", "end"])
    try:
        parser.feed(report)
        events = list(parser.read_events())
    except ElementTree.ParseError as problem:
        return [(f"unreadable report: {problem}", None, "")]
    for kind, element in events:
        if element.tag != "TestCase":
            continue
        name = element.get("name")
        running = name if kind == "start" else None
        if kind == "end":
            result = element.find("OverallResult")
            passed = result is not None and result.get("success") == "true"
            cases.append((name, passed, "" if passed else failure_text(element)))
    if running is not None:
        cases.append((running, None, ""))
    return cases


def failure_text(case):
    lines = []
    for element in case.iter():
        if element.tag == "Expression" and element.get("success") == "false":
            original = (element.findtext("Original") or "").strip()
            expanded = (element.findtext("Expanded") or "").strip()
            lines.append(f"{element.get('filename')}:{element.get('line')}: {original}\n      was {expanded}")
        if element.tag in ("Exception", "Failure", "FatalErrorCondition", "Info", "Warning"):
            place = f"{element.get('filename')}:{element.get('line')}: " if element.get("filename") else ""
            lines.append(f"{place}{element.tag}: {(element.text or '').strip()}")
    return "\n".join("    " + line for line in lines)


def ending(status, timeout):
    if status is None:
        return f"ran out of time ({timeout:.0f} s)"
    if status < 0:
        return f"died of {signal.Signals(-status).name}"
    return f"ended with status {status}"


def essence(output):
    """The first reports of a sanitizer, which may stand anywhere, and the end of the output."""
    lines = output.rstrip().splitlines()
    begins = [i for i, line in enumerate(lines) if any(text in line for text in REPORT_BEGINS)][:REPORTS]
    kept = sorted({i for begin in begins for i in range(begin, min(begin + REPORT_LINES, len(lines)))}
                  | set(range(max(0, len(lines) - OUTPUT_LINES), len(lines))))
    shown, after = [], 0
    for i in kept:
        if i > after:
            shown.append(f"... {i - after} lines left out")
        shown.append(lines[i])
        after = i + 1
    return "\n".join("    | " + line for line in shown)


def run_catch2(build, test, case_filter, timeout):
    tally, problems = Tally(), []
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.xml")
        command = build.prefix + test["cmd"] + ["-r", "xml", "-o", report] + case_filter
        status, output = run(command, build.environment(test), test.get("workdir") or build.folder, timeout)
        text = ""
        if os.path.exists(report):
            with open(report, encoding="utf-8", errors="replace") as file:
                text = file.read()
    cases = parse_cases(text)
    for name, passed, failures in cases:
        if passed:
            tally.passed += 1
            continue
        tally.failed += 1
        how = f" (the program {ending(status, timeout)} in it)" if passed is None else ""
        problems.append(f"  FAILED {name}{how}\n{failures}".rstrip())
    if status != 0 and tally.failed == 0:
        tally.failed += 1  # a sanitizer's report at exit, or a death between two cases
        problems.append(f"  FAILED: no case failed, but the program {ending(status, timeout)}")
    if not cases and not case_filter and tally.failed == 0:
        tally.failed += 1
        problems.append("  FAILED: the program ran no test case")
    if problems and output.strip():
        problems.append(essence(output))
    return tally, problems


def run_script(build, test, timeout):
    tally = Tally()
    status, output = run(build.prefix + test["cmd"], build.environment(test), test.get("workdir") or build.folder, timeout)
    if status == 0:
        tally.passed = 1
        return tally, []
    if status == SKIPPED:
        tally.skipped = 1
        reason = output.strip().splitlines()[-1:] or ["no reason given"]
        return tally, [f"  skipped: {reason[0]}"]
    tally.failed = 1
    return tally, [f"  FAILED: {ending(status, timeout)}", essence(output)]


def run_test(build, test, text):
    """None where the filter leaves nothing of the test."""
    timeout = (test["timeout"] or 600) * build.factor
    named = text is None or text in test["name"]
    if is_catch2(test["cmd"][0]):
        return run_catch2(build, test, [] if named else [f"*{text}*"], timeout)
    return run_script(build, test, timeout) if named else None


def run_build(build, text):
    total = Tally()
    for test in build.tests:
        begin = time.monotonic()
        done = run_test(build, test, text)
        if done is None:
            continue
        tally, problems = done
        total.add(tally)
        if text is None or tally.passed + tally.failed + tally.skipped > 0:
            print(f"{build.label:8} {test['name']:28} {tally.line()}  ({time.monotonic() - begin:.1f} s)")
        for problem in problems:
            print(problem)
        sys.stdout.flush()
    return total


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--filter", metavar="TEXT", help="only programs or cases whose name contains TEXT")
    options.add_argument("--broken", type=int, default=0, metavar="N", help="builds that failed; each counts as a failure")
    options.add_argument("builds", nargs="*", metavar="LABEL=BUILD_DIR")
    given = options.parse_args()

    total = Tally()
    total.failed = given.broken
    for argument in given.builds:
        label, separator, folder = argument.partition("=")
        if not separator:
            options.error(f"{argument} is not LABEL=BUILD_DIR")
        total.add(run_build(Build(label, folder), given.filter))
    if total.passed + total.failed == 0:
        print("no test was executed")
    print(total.line())
    return 0 if total.passed > 0 and total.failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
