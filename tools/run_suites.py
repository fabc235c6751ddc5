#!/usr/bin/env python3
"""Builds what the tests need in the given build folders, runs the tests that Meson lists there, and counts their cases.

usage: run_suites.py [--all] [--busy] [--seed N] [--filter TEXT] [--save-times] [--broken N] LABEL=BUILD_DIR...

The folders are configured already. tests/meson.build says what the names of suites mean: in which builds a test runs, and how many cores it
needs; tests/README.md has the tags of cases; touched.py says which tests run whole, and which as a smoke.

Tests that wait run beside the builds and beside all others. The others have the cores in turn: first those that need all of them, the longest
first by the times of an earlier run (tests/times.txt, which --save-times writes).

A case that fails because a deadline has passed is run again at the end, alone. If it passes then, it is named as unsteady and does not fail the
run, unless there are more than three such cases. A wrong value, a crash or a sanitizer's report always fails the run.

A Catch2 program counts one for each of its test cases, any other program counts one; exit status 77 means skipped. The last lines
repeat the end of each failure and say where the time went; the very last one is "N passed, N failed", with ", N skipped" where some were. The
exit status is 0 only if something ran and nothing failed.
"""
import argparse
import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import building
import test_processes
import test_report
import touched

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TIMES = os.path.join(TOP, "tests", "times.txt")
SKIPPED = 77
SANITIZED_TIMEOUT_FACTOR = 4  # sanitizers slow the tests down by 2 to 20
BUSY_TIMEOUT_FACTOR = 4  # so do three processes on each core, and stops
ALL_TIMEOUT_FACTOR = 4  # with --all there are more cases, and ten times the random ones
WAITING_AT_ONCE = 4  # tests that need no core
MOST_UNSTEADY = 3
SLOWEST = 15  # named at the end
LINES_AGAIN = 30  # of each failure, the last ones, at the end

SANITIZER_ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=0:second_deadlock_stack=1",
}


class Tally:
    def __init__(self, passed=0, failed=0, skipped=0):
        self.passed, self.failed, self.skipped = passed, failed, skipped

    def line(self):
        return f"{self.passed} passed, {self.failed} failed" + (f", {self.skipped} skipped" if self.skipped else "")

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


class Outcome:
    """What came of one test: its tally, what is to be said of its failures, and which of these were for lateness alone."""

    def __init__(self, tally=None, problems=(), late=(), processor=0.0):
        self.tally = tally or Tally()
        self.problems = list(problems)
        self.late = list(late)  # names of cases; of a script that does not name its cases: None
        self.processor = processor  # seconds, of all processors together


class Options:
    """What is asked of a whole run."""

    def __init__(self, everything=False, busy=False, seed=0, text=None, changed=None):
        self.everything, self.busy, self.seed, self.text = everything, busy, seed, text
        self.changed = changed  # touched.files()

    def is_smoke(self, test):
        return not self.everything and not touched.runs_whole(test["name"], self.changed)


class Build:
    """A configured build folder, what of it is built, and how its programs are run."""

    def __init__(self, label, folder, options):
        self.label, self.options = label, options
        self.folder = os.path.abspath(folder)
        given = self._introspect("--buildoptions")
        sanitizer = next((o["value"] for o in given if o["name"] == "b_sanitize"), "none")
        self.kind = next((kind for kind in ("address", "thread") if kind in sanitizer), "plain")
        self.tests = [t for t in self._introspect("--tests") if self._applies(t)]
        self.factor = 1 if self.kind == "plain" else SANITIZED_TIMEOUT_FACTOR
        self.prefix = without_address_randomization() if self.kind == "thread" else []

    def _introspect(self, what):
        done = subprocess.run(["meson", "introspect", what, self.folder], check=True, capture_output=True, text=True)
        return json.loads(done.stdout)

    def _applies(self, test):
        suites = suites_of(test)
        if self.options.everything:
            return self.kind == "plain" or "plain-only" not in suites
        if "all-only" in suites or ("touched-only" in suites and self.options.is_smoke(test)):
            return False
        return self.kind in builds_of(test)

    def cases(self, test):
        """The filter of a Catch2 program's cases, each of which runs once, in the test's first build, but for those that a tag earns more. The
        arguments of such a test in Meson are filters, too; what is named without a comma between holds together."""
        chosen = "".join(test["cmd"][1:])
        if self.options.everything:
            return chosen
        if builds_of(test)[0] != self.kind:
            chosen += {"plain": "[optimised]", "thread": "[threads]", "address": ""}[self.kind]
        if self.options.is_smoke(test):
            chosen += "[smoke]"
        return f"{chosen}~[slow]~[.]"  # a filter that only excludes takes in the hidden cases, too

    def make(self):
        """Builds what its tests run; whether that worked."""
        needed = {target for test in self.tests for target in test.get("depends", [])}
        # What is installed is built as it is shipped, too.
        files = sorted({os.path.relpath(file, self.folder) for target in self._introspect("--targets")
                        if target["id"] in needed or (self.kind == "plain" and target["installed"]) for file in target["filename"]})
        # Politely: tests that wait for deadlines run beside.
        return not files or building.ninja(self.folder, files, nice=5)

    def environment(self, test):
        environment = dict(os.environ)
        if self.kind != "plain":
            for name, value in SANITIZER_ENVIRONMENT.items():
                environment.setdefault(name, value)
        environment["KOLO_TEST_SEED"] = str(self.options.seed)
        environment["KOLO_TEST_MARKS"] = "1"
        if self.options.everything:
            environment.update(KOLO_TEST_ALL="1", KOLO_TEST_BUDGET="10")
        elif self.options.is_smoke(test):
            environment["KOLO_TEST_SMOKE"] = "1"
        environment.update(test.get("env") or {})
        return environment

    def timeout(self, test):
        more = ALL_TIMEOUT_FACTOR if self.options.everything else BUSY_TIMEOUT_FACTOR if self.options.busy else 1
        return (test["timeout"] or 600) * self.factor * more


def suites_of(test):
    return [suite.rpartition(":")[2] for suite in test["suite"]]


def builds_of(test):
    """The builds in which a test runs, first the one that runs all of its cases."""
    return [suite for suite in suites_of(test) if suite in ("plain", "address", "thread")] or ["plain"]


def cores_of(test):
    """How many cores it keeps busy."""
    return next((int(suite[-1]) for suite in suites_of(test) if suite in ("cores0", "cores1", "cores2")), 1)


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


def run_catch2(build, test, cases):
    """Runs the cases that a Catch2 filter names. Those behind one that ended the program by its lateness are run nonetheless."""
    outcome, left, seen = Outcome(), None, []
    while True:
        status, output, report, used = run_program(build, test, cases, left)
        outcome.processor += used
        found = test_report.parse_cases(report)
        failures, failed = [], set()
        for name, passed, failure in found:
            if passed:
                outcome.tally.passed += 1
                continue
            outcome.tally.failed += 1
            failed.add(name)
            how = f" (the program {test_report.ending(status, build.timeout(test))} in it)" if passed is None else ""
            failures.append(f"  FAILED {name}{how}\n{failure}".rstrip())
            said = dict(test_report.output_of_cases(output)).get(name, "")
            late = test_report.has_hung(status, said) if passed is None else test_report.is_late(failure)
            if late and not test_report.has_report(output):
                outcome.late.append(name)
        if status != 0 and not failed:
            outcome.tally.failed += 1  # a sanitizer's report at exit, or a death between two cases
            failures.append(f"  FAILED: no case failed, but the program {test_report.ending(status, build.timeout(test))}")
        if failures:
            failures.append(test_report.output_of_failures(output, failed))
        outcome.problems += [failure for failure in failures if failure]
        seen += [name for name, _, _ in found]
        if not found or found[-1][1] is not None or found[-1][0] not in outcome.late:
            break
        left = [name for name in names_of_cases(build, test, cases) if name not in seen]
        if not left:
            break
    if not seen and build.options.text is None and outcome.tally.failed == 0:
        outcome.tally.failed += 1
        outcome.problems.append("  FAILED: the program ran no test case")
    return outcome


def run_program(build, test, cases, names=None):
    """Exit status, output, Catch2's report, seconds of processor. names: only these cases."""
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.xml")
        command = build.prefix + test["cmd"][:1] + ["-r", "xml", "-o", report]
        if names is not None:
            listed = os.path.join(folder, "names")
            with open(listed, "w", encoding="utf-8") as file:
                file.writelines(f'"{name}"\n' for name in names)
            command += ["-f", listed]
        elif cases:
            command.append(cases)
        status, output, used = test_processes.run(command, build.environment(test), test.get("workdir") or build.folder, build.timeout(test))
        text = ""
        if os.path.exists(report):
            with open(report, encoding="utf-8", errors="replace") as file:
                text = file.read()
    return status, output, text, used


def names_of_cases(build, test, cases):
    listed = subprocess.run(build.prefix + test["cmd"][:1] + ([cases] if cases else []) + ["--list-test-names-only"], env=build.environment(test),
                            capture_output=True, text=True, check=False)
    return listed.stdout.splitlines()


def run_script(build, test, names=()):
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "failures.json")
        environment = {**build.environment(test), "KOLO_TEST_REPORT": report}
        status, output, used = test_processes.run(build.prefix + test["cmd"] + list(names), environment, test.get("workdir") or build.folder,
                                                  build.timeout(test))
        failures = None
        if os.path.exists(report):
            with open(report, encoding="utf-8") as file:
                failures = json.load(file)  # [[name, text]]: tests/support/cases.py
    if status == 0:
        return Outcome(Tally(passed=1), processor=used)
    if status == SKIPPED:
        reason = output.strip().splitlines()[-1:] or ["no reason given"]
        return Outcome(Tally(skipped=1), [f"  skipped: {reason[0]}"], processor=used)
    late = []
    if status is None and failures is None:
        late = [None]
    elif status is not None and status > 0 and failures and all(test_report.is_late(text) for _, text in failures):
        late = [name for name, _ in failures]
    return Outcome(Tally(failed=1), [f"  FAILED: {test_report.ending(status, build.timeout(test))}", test_report.output_of_script(output)],
                   late, used)


def run_test(build, test):
    """None where the filter leaves nothing of the test."""
    text = build.options.text
    named = text is None or text in test["name"]
    if is_catch2(test["cmd"][0]):
        return run_catch2(build, test, ("" if named else f"*{text}*") + build.cases(test))
    return run_script(build, test) if named else None


def runs_again(build, test, outcome):
    """Whether what was late in the outcome passes when it is run alone."""
    if is_catch2(test["cmd"][0]):
        status, output, report, _ = run_program(build, test, "", outcome.late)
        cases = test_report.parse_cases(report)
        return status == 0 and len(cases) == len(set(outcome.late)) and all(passed for _, passed, _ in cases) and not test_report.has_report(output)
    return run_script(build, test, [name for name in outcome.late if name is not None]).tally.passed == 1


def read_times():
    """{"label test": seconds} of an earlier run."""
    try:
        with open(TIMES, encoding="utf-8") as file:
            return {name: float(seconds) for seconds, _, name in (line.strip().partition(" ") for line in file if not line.startswith("#"))}
    except OSError:
        return {}


class Run:
    """The builds and their tests, in an order that leaves no core idle, and what came of them."""

    def __init__(self, options, cores=None, times=None):
        self.options = options
        self.total = Tally()
        self.build_seconds = {}
        self.test_seconds = {}  # "label test": seconds
        self.failures = []  # (build, test, outcome)
        self.unsteady = []  # what is said of a test's unsteady cases
        self.unsteady_cases = 0
        self.times = read_times() if times is None else times
        self.cores = self.free = cores or os.cpu_count() or 1
        self.free_places = WAITING_AT_ONCE
        self.changed = threading.Condition()
        self.threads = []

    def everything(self, builds):
        waiting, calculating = [], []
        for build in builds:
            if not self.make(build):
                continue
            for test in build.tests:
                (calculating if cores_of(test) > 0 else waiting).append((build, test))
            if not self.options.busy:
                self.start(waiting)
        with test_processes.Disturbance(self.options.seed) if self.options.busy else contextlib.nullcontext():
            self.work_off(waiting, calculating)
        self.run_late_ones_again()

    def work_off(self, waiting, calculating):
        """Starts each test when what it needs is free, the dearest first, and returns when all have ended."""
        calculating.sort(key=lambda work: (-cores_of(work[1]), -self.known(*work)))
        with self.changed:
            while waiting or calculating or any(thread.is_alive() for thread in self.threads):
                self.start(waiting)
                self.start(calculating)
                self.changed.wait(1)

    def start(self, works):
        """Starts those for which there is room. Of tests that wait the longest come first."""
        with self.changed:
            for work in sorted(works, key=lambda work: (-cores_of(work[1]), -self.known(*work))):
                needs = min(cores_of(work[1]), self.cores)
                if needs > self.free or (needs == 0 and self.free_places == 0):
                    continue
                works.remove(work)
                self.free -= needs
                self.free_places -= needs == 0
                thread = threading.Thread(target=self.work, args=(*work, needs), daemon=True)
                self.threads.append(thread)
                thread.start()

    def work(self, build, test, needs):
        try:
            self.test(build, test)
        finally:
            with self.changed:
                self.free += needs
                self.free_places += needs == 0
                self.changed.notify_all()

    def known(self, build, test):
        """Seconds that the test took in an earlier run; one that is not known may be long."""
        return self.times.get(f"{build.label} {test['name']}", 100)

    def make(self, build):
        begin = time.monotonic()
        self.say(f"building {build.label} in {build.folder}")
        made = build.make()
        self.build_seconds[build.label] = time.monotonic() - begin
        if not made:
            self.say(f"{build.label:8} the build failed")
            with self.changed:
                self.total.add(Tally(failed=1))
        return made

    def test(self, build, test):
        begin = time.monotonic()
        try:
            outcome = run_test(build, test)
        except Exception as problem:  # of this tool: a test that was not run must not pass for one that has not failed
            outcome = Outcome(Tally(failed=1), [f"  FAILED: it could not be run: {problem!r}"])
        if outcome is None:
            return
        seconds = time.monotonic() - begin
        with self.changed:
            self.total.add(outcome.tally)
            self.test_seconds[f"{build.label} {test['name']}"] = seconds
            if outcome.tally.failed > 0:
                self.failures.append((build, test, outcome))
            if self.options.text is None or outcome.tally.passed + outcome.tally.failed + outcome.tally.skipped > 0:
                head = f"{build.label:8} {test['name']:28} {outcome.tally.line()}  ({seconds:.1f} s, processors {outcome.processor:.1f} s)"
                self.say("\n".join([head, *outcome.problems]))

    def run_late_ones_again(self):
        for build, test, outcome in self.failures:
            if not outcome.late:
                continue
            passes = self.unsteady_cases <= MOST_UNSTEADY and runs_again(build, test, outcome)
            names = ", ".join(filter(None, outcome.late))
            self.say(f"{build.label:8} {test['name']:28} was late, run again alone: {'passed' if passes else 'failed'}" + (f": {names}" if names else ""))
            if passes:
                self.unsteady.append("\n".join([f"{build.label} {test['name']}: {names}", *outcome.problems]))
                moved = len(outcome.late) if is_catch2(test["cmd"][0]) else 1  # a script counts one
                self.unsteady_cases += len(outcome.late)
                self.total.failed -= moved
                self.total.passed += moved
                outcome.tally.failed -= moved
        if self.unsteady_cases > MOST_UNSTEADY:
            self.total.failed += 1
            self.say(f"{self.unsteady_cases} cases were unsteady, which is more than {MOST_UNSTEADY}")

    @staticmethod
    def say(text):
        print(text, flush=True)

    def tell(self):
        for text in self.unsteady:
            self.say(f"unsteady: {text}")
        for build, test, outcome in filter(lambda failure: failure[2].tally.failed > 0, self.failures):
            lines = "\n".join(outcome.problems).splitlines()[-LINES_AGAIN:]
            self.say("\n".join([f"failed: {build.label} {test['name']}", *lines]))
        self.say(self.where_time_went())

    def where_time_went(self):
        built = ", ".join(f"{label} {seconds:.0f} s" for label, seconds in self.build_seconds.items())
        slowest = sorted(self.test_seconds.items(), key=lambda item: -item[1])[:SLOWEST]
        return f"building: {built or 'nothing'}\nslowest: {', '.join(f'{name} {seconds:.0f} s' for name, seconds in slowest) or 'nothing ran'}"

    def save_times(self):
        lines = [f"{seconds:.0f} {name}\n" for name, seconds in sorted({**self.times, **self.test_seconds}.items(), key=lambda item: -item[1])]
        with open(TIMES, "w", encoding="utf-8") as file:
            file.write("# Seconds that each test took in a run of tools/run-tests; run_suites.py --save-times writes this.\n")
            file.writelines(lines)


def parse_arguments():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--all", action="store_true", help="every test and case in every build")
    options.add_argument("--busy", action="store_true", help="beside processes that calculate, and one that stops and continues the tests'")
    options.add_argument("--seed", type=int, help="of the random tests; a new one by default")
    options.add_argument("--filter", metavar="TEXT", help="only programs or cases whose name contains TEXT")
    options.add_argument("--save-times", action="store_true", help="write tests/times.txt")
    options.add_argument("--broken", type=int, default=0, metavar="N", help="builds that failed before; each counts as a failure")
    options.add_argument("builds", nargs="*", metavar="LABEL=BUILD_DIR")
    given = options.parse_args()
    for argument in given.builds:
        if "=" not in argument:
            options.error(f"{argument} is not LABEL=BUILD_DIR")
    return given


def main():
    given = parse_arguments()
    seed = secrets.randbits(32) if given.seed is None else given.seed
    print(f"seed of the random tests: {seed} (--seed {seed} repeats them)", flush=True)
    changed = touched.files(TOP)
    usual = Options(False, given.busy, seed, given.filter, changed)
    total = Tally(failed=given.broken)
    # With --all the usual tests run once more, on a busy machine.
    for options in [Options(True, False, seed, given.filter, changed), Options(False, True, seed, given.filter, changed)] if given.all else [usual]:
        run = Run(options)
        begin = time.monotonic()
        run.everything([Build(*argument.split("=", 1), options) for argument in given.builds])
        if given.save_times and options is usual:
            run.save_times()
        run.tell()
        print(f"in all: {time.monotonic() - begin:.0f} s", flush=True)
        total.add(run.total)
    if total.passed + total.failed == 0:
        print("no test was executed")
    print(total.line())
    return 0 if total.passed > 0 and total.failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
