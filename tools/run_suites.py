#!/usr/bin/env python3
"""Builds what the tests need in the given build folders, runs the tests that Meson lists there, and counts their cases.

usage: run_suites.py [--all] [--filter TEXT] [--broken N] LABEL=BUILD_DIR...

The folders are configured already. A folder with a sanitizer runs the tests that name it among their suites ("address", "thread"),
without the cases tagged [slow]; with --all every test that is not of the suite "plain-only", and every case. Tests of the suite "all-only" run with --all
alone. Scripts learn of --all by
the variable KOLO_TEST_ALL. Tests of the suite "waits" mostly wait for others (virtual machines, launchers, other ranks, deadlines): they run
beside the builds and beside the tests that calculate, of which there is one at a time.

A Catch2 program counts one for each of its test cases, any other program counts one; exit status 77 means skipped. The last lines say
where the time went; the very last one is "N passed, N failed", with ", N skipped" where some were. The exit status is 0 only if something
ran and nothing failed.
"""
import argparse
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import test_report

SKIPPED = 77
SANITIZED_TIMEOUT_FACTOR = 4  # sanitizers slow the tests down by 2 to 20
WAITING_AT_ONCE = 2  # tests of the suite "waits"
SLOWEST = 10  # named at the end

SANITIZER_ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=0:second_deadlock_stack=1",
}


class Tally:
    def __init__(self, passed=0, failed=0, skipped=0, processor=0.0):
        self.passed, self.failed, self.skipped = passed, failed, skipped
        self.processor = processor  # seconds, of all processors together

    def line(self):
        return f"{self.passed} passed, {self.failed} failed" + (f", {self.skipped} skipped" if self.skipped else "")

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.processor += other.processor


class Build:
    """A configured build folder, what of it is built, and how its programs are run."""

    def __init__(self, label, folder, everything):
        self.label, self.everything = label, everything
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
        if "all-only" in suites_of(test) and not self.everything:
            return False
        if self.sanitizer == "none":
            return True
        if self.everything:
            return "plain-only" not in suites_of(test)
        return not suites_of(test).isdisjoint(self.sanitizer.split(","))

    def case_filter(self):
        """For Catch2 programs."""
        # A filter that only excludes would take in the hidden cases, too.
        return [] if self.everything or self.sanitizer == "none" else ["~[slow]~[.]"]

    def make(self):
        """Builds everything, or with a sanitizer what its tests run; whether that worked."""
        targets = []
        if self.sanitizer != "none":
            needed = {target for test in self.tests for target in test.get("depends", [])}
            targets = sorted({os.path.relpath(file, self.folder) for target in self._introspect("--targets") if target["id"] in needed
                              for file in target["filename"]})
            if not targets:
                return True
        # Politely: tests that wait for deadlines may run beside.
        return subprocess.run(["nice", "-n", "5", "ninja", "-C", self.folder, "--quiet", *targets], stdin=subprocess.DEVNULL, check=False).returncode == 0

    def environment(self, test):
        environment = dict(os.environ)
        if self.sanitizer != "none":
            for name, value in SANITIZER_ENVIRONMENT.items():
                environment.setdefault(name, value)
        if self.everything:
            environment["KOLO_TEST_ALL"] = "1"
        environment.update(test.get("env") or {})
        return environment


def suites_of(test):
    return {suite.rpartition(":")[2] for suite in test["suite"]}


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
    """Exit status (None: timed out), output, seconds of processor time. A program that runs out of time goes with all that it started."""
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen(command, env=environment, cwd=workdir, stdin=subprocess.DEVNULL, stdout=output,
                              stderr=subprocess.STDOUT, start_new_session=True) as process:
            try:
                ended = ends_within(process, timeout)
            finally:
                end_session(process)
            status, used = reap(process)
        output.seek(0)
        return status if ended else None, output.read().decode(errors="replace"), used


def ends_within(process, timeout):
    descriptor = os.pidfd_open(process.pid)
    try:
        return bool(select.select([descriptor], [], [], timeout)[0])
    finally:
        os.close(descriptor)


def reap(process):
    """Exit status, seconds of processor time of the process and of its descendants that have been waited for."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime


def end_session(process):
    """What a test left running must not disturb the next one."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def run_catch2(build, test, case_filter, timeout):
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.xml")
        command = build.prefix + test["cmd"] + ["-r", "xml", "-o", report] + build.case_filter() + case_filter
        environment = {**build.environment(test), "KOLO_TEST_MARKS": "1"}
        status, output, used = run(command, environment, test.get("workdir") or build.folder, timeout)
        text = ""
        if os.path.exists(report):
            with open(report, encoding="utf-8", errors="replace") as file:
                text = file.read()
    tally, problems, failed = Tally(processor=used), [], set()
    cases = test_report.parse_cases(text)
    for name, passed, failures in cases:
        if passed:
            tally.passed += 1
            continue
        tally.failed += 1
        failed.add(name)
        how = f" (the program {test_report.ending(status, timeout)} in it)" if passed is None else ""
        problems.append(f"  FAILED {name}{how}\n{failures}".rstrip())
    if status != 0 and tally.failed == 0:
        tally.failed += 1  # a sanitizer's report at exit, or a death between two cases
        problems.append(f"  FAILED: no case failed, but the program {test_report.ending(status, timeout)}")
    if not cases and not case_filter and tally.failed == 0:
        tally.failed += 1
        problems.append("  FAILED: the program ran no test case")
    if problems:
        problems.append(test_report.output_of_failures(output, failed))
    return tally, [problem for problem in problems if problem]


def run_script(build, test, timeout):
    status, output, used = run(build.prefix + test["cmd"], build.environment(test), test.get("workdir") or build.folder, timeout)
    if status == 0:
        return Tally(passed=1, processor=used), []
    if status == SKIPPED:
        reason = output.strip().splitlines()[-1:] or ["no reason given"]
        return Tally(skipped=1, processor=used), [f"  skipped: {reason[0]}"]
    return Tally(failed=1, processor=used), [f"  FAILED: {test_report.ending(status, timeout)}", test_report.output_of_script(output)]


def run_test(build, test, text):
    """None where the filter leaves nothing of the test."""
    timeout = (test["timeout"] or 600) * build.factor
    named = text is None or text in test["name"]
    if is_catch2(test["cmd"][0]):
        return run_catch2(build, test, [] if named else [f"*{text}*"], timeout)
    return run_script(build, test, timeout) if named else None


class Run:
    """The builds and their tests, in an order that leaves no core idle, and what came of them."""

    def __init__(self, text=None):
        self.text = text
        self.total = Tally()
        self.build_seconds = {}
        self.test_seconds = []  # (seconds, "label test")
        self.waiting = queue.SimpleQueue()
        self.lock = threading.Lock()

    def everything(self, builds):
        """The tests that wait begin when their build is there, and go on beside whatever this thread does."""
        helpers = [threading.Thread(target=self.work_off_waiting, daemon=True) for _ in range(WAITING_AT_ONCE)]
        for helper in helpers:
            helper.start()
        calculating = []
        for build in builds:
            if not self.make(build):
                continue
            for test in build.tests:
                if "waits" in suites_of(test):
                    self.waiting.put((build, test))
                else:
                    calculating.append((build, test))
        for _ in helpers:
            self.waiting.put(None)
        for build, test in calculating:
            self.test(build, test)
        for helper in helpers:
            helper.join()

    def work_off_waiting(self):
        while (work := self.waiting.get()) is not None:
            self.test(*work)

    def make(self, build):
        begin = time.monotonic()
        self.say(f"building {build.label} in {build.folder}")
        made = build.make()
        self.build_seconds[build.label] = time.monotonic() - begin
        if not made:
            self.say(f"{build.label:8} the build failed")
            with self.lock:
                self.total.add(Tally(failed=1))
        return made

    def test(self, build, test):
        begin = time.monotonic()
        try:
            done = run_test(build, test, self.text)
        except Exception as problem:  # of this tool: a test that was not run must not pass for one that has not failed
            done = Tally(failed=1), [f"  FAILED: it could not be run: {problem!r}"]
        if done is None:
            return
        tally, problems = done
        seconds = time.monotonic() - begin
        with self.lock:
            self.total.add(tally)
            self.test_seconds.append((seconds, f"{build.label} {test['name']}"))
            if self.text is None or tally.passed + tally.failed + tally.skipped > 0:
                self.say("\n".join([f"{build.label:8} {test['name']:28} {tally.line()}  ({seconds:.1f} s, processors {tally.processor:.1f} s)", *problems]))

    @staticmethod
    def say(text):
        print(text, flush=True)

    def where_time_went(self):
        built = ", ".join(f"{label} {seconds:.0f} s" for label, seconds in self.build_seconds.items())
        slowest = ", ".join(f"{name} {seconds:.0f} s" for seconds, name in sorted(self.test_seconds, reverse=True)[:SLOWEST])
        return f"building: {built or 'nothing'}\nslowest: {slowest or 'nothing ran'}"


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--all", action="store_true", help="all tests and cases under the sanitizers too")
    options.add_argument("--filter", metavar="TEXT", help="only programs or cases whose name contains TEXT")
    options.add_argument("--broken", type=int, default=0, metavar="N", help="builds that failed before; each counts as a failure")
    options.add_argument("builds", nargs="*", metavar="LABEL=BUILD_DIR")
    given = options.parse_args()

    builds = []
    for argument in given.builds:
        label, separator, folder = argument.partition("=")
        if not separator:
            options.error(f"{argument} is not LABEL=BUILD_DIR")
        builds.append(Build(label, folder, given.all))
    begin = time.monotonic()
    work = Run(given.filter)
    work.total.failed = given.broken
    work.everything(builds)
    if work.total.passed + work.total.failed == 0:
        print("no test was executed")
    print(work.where_time_went())
    print(f"in all: {time.monotonic() - begin:.0f} s")
    print(work.total.line())
    return 0 if work.total.passed > 0 and work.total.failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
