#!/usr/bin/env python3
"""The test runner itself: a failure that it overlooked would hide all others. usage: run_suites_test.py RUN_SUITES"""
import contextlib
import glob
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(sys.argv.pop(1)))
SUPPORT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support")
sys.path.append(SUPPORT)
import cases
import run_suites
import test_report
import touched

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<Catch name="t">\n <Group name="t">\n'
PASSED = '<TestCase name="good"><OverallResult success="true"/></TestCase>\n'
FAILED = ('<TestCase name="bad"><Expression success="false" type="CHECK" filename="a.cc" line="3">'
          '<Original>1 == x</Original><Expanded>1 == 2</Expanded></Expression>'
          '<OverallResult success="false"/></TestCase>\n')
TAIL = '</Group></Catch>\n'


def build(*commands, timeout=10, suites=(), make=lambda: True, text=None):
    tests = [{"name": f"test{i}", "cmd": list(command), "timeout": timeout, "suite": list(suites), "env": {}}
             for i, command in enumerate(commands)]
    return types.SimpleNamespace(label="fake", folder=".", tests=tests, prefix=[], options=run_suites.Options(text=text), make=make,
                                 environment=lambda test: dict(os.environ), timeout=lambda test: test["timeout"], cases=lambda test: "")


def run_quietly(*builds, text=None, busy=False, times=None, cores=2):
    """The run after its end, and what it printed."""
    output, run = io.StringIO(), run_suites.Run(run_suites.Options(text=text, busy=busy), cores, times or {})
    for each in builds:
        each.options.text = text
    with contextlib.redirect_stdout(output):
        run.everything(builds)
        run.tell()
    return run, output.getvalue()


def shell(text):
    return ["/bin/sh", "-c", text]


class Reports(unittest.TestCase):
    def test_a_complete_report_lists_what_passed_and_what_failed(self):
        cases = test_report.parse_cases(HEAD + PASSED + FAILED + TAIL)
        self.assertEqual([(name, passed) for name, passed, _ in cases], [("good", True), ("bad", False)])
        self.assertIn("a.cc:3: 1 == x", cases[1][2])
        self.assertIn("1 == 2", cases[1][2])

    def test_a_report_that_ends_in_mid_air_keeps_what_passed_and_names_the_case_that_died(self):
        cases = test_report.parse_cases(HEAD + PASSED + '<TestCase name="fatal"><Expression success="tr')
        self.assertEqual([(name, passed) for name, passed, _ in cases], [("good", True), ("fatal", None)])

    def test_a_case_without_a_result_has_not_passed(self):
        self.assertFalse(test_report.parse_cases(HEAD + '<TestCase name="odd"></TestCase>' + TAIL)[0][1])

    def test_no_report_has_no_cases(self):
        self.assertEqual(test_report.parse_cases(""), [])


class Programs(unittest.TestCase):
    def test_exit_statuses_are_counted(self):
        run, output = run_quietly(build(shell("exit 0"), shell("echo said; exit 3"), shell("echo why; exit 77")))
        tally = run.total
        self.assertEqual((tally.passed, tally.failed, tally.skipped), (1, 1, 1))
        self.assertIn("| said", output)
        self.assertIn("ended with status 3", output)
        self.assertIn("skipped: why", output)

    def test_a_program_that_dies_of_a_signal_has_failed(self):
        run, output = run_quietly(build(shell("kill -SEGV $$")))
        self.assertEqual(run.total.failed, 1)
        self.assertIn("SIGSEGV", output)

    def test_of_much_output_a_sanitizers_report_and_the_end_are_shown(self):
        much = "seq 1000 1999; echo 'WARNING: ThreadSanitizer: data race'; echo where; seq 2000 2999; exit 66"
        _, output = run_quietly(build(shell(much)))
        for shown in ("| WARNING: ThreadSanitizer: data race", "| where", "| 2999", "| ... 1000 lines left out"):
            self.assertIn(shown, output)
        self.assertNotIn("| 1999", output)

    def test_a_program_that_hangs_is_ended_with_its_children(self):
        begin = time.monotonic()
        run, output = run_quietly(build(shell("sleep 60 & sleep 60"), timeout=0.3))
        self.assertEqual(run.total.failed, 1)
        self.assertIn("ran out of time", output)
        self.assertLess(time.monotonic() - begin, 20)

    def test_a_filter_leaves_other_programs_out(self):
        run, _ = run_quietly(build(shell("exit 0"), shell("exit 1")), text="test0")
        self.assertEqual((run.total.passed, run.total.failed), (1, 0))

    def test_of_a_failed_script_the_list_of_failures_is_shown_alone(self):
        rule = "=" * 70
        _, output = run_quietly(build(shell(f"echo warned; echo; echo {rule}; echo 'FAIL: one'; exit 1")))
        self.assertIn("| FAIL: one", output)
        self.assertNotIn("warned", output)


class Late(unittest.TestCase):
    """A script that tells its failures as tests/support/cases.py does. The second time it is run, it passes."""
    SCRIPT = ("if [ -e {0} ]; then exit 0; fi; touch {0}; echo '[[\"test_a\", \"{1}\"]]' >$KOLO_TEST_REPORT; echo {1}; exit 1")

    def late(self, *texts):
        with tempfile.TemporaryDirectory() as folder:
            return run_quietly(build(*(shell(self.SCRIPT.format(f"{folder}/{i}", text)) for i, text in enumerate(texts))))

    def test_what_ran_out_of_time_and_passes_alone_is_unsteady(self):
        run, output = self.late("it ran out of time")
        self.assertEqual((run.total.passed, run.total.failed), (1, 0), output)
        self.assertRegex(output, r"(?s)unsteady: fake test0: test_a.*it ran out of time")

    def test_a_wrong_value_fails_though_it_is_right_the_next_time(self):
        run, output = self.late("3 instead of 4")
        self.assertEqual((run.total.passed, run.total.failed), (0, 1), output)

    def test_what_is_late_again_alone_has_failed(self):
        run, output = run_quietly(build(shell("sleep 60"), timeout=0.3))
        self.assertEqual((run.total.passed, run.total.failed), (0, 1), output)
        self.assertIn("run again alone: failed", output)

    def test_many_unsteady_ones_are_a_failure(self):
        run, output = self.late(*["it ran out of time"] * (run_suites.MOST_UNSTEADY + 1))
        self.assertEqual(run.total.failed, 1, output)
        self.assertIn("cases were unsteady, which is more than", output)

    def test_lateness_is_each_failure_s(self):
        late = "    a.cc:3: ran out of time: 7 s"
        self.assertTrue(test_report.is_late(late))
        self.assertFalse(test_report.is_late(f"{late}\n    a.cc:4: 1 == x\n      was 1 == 2"))
        self.assertFalse(test_report.is_late(""))
        self.assertTrue(test_report.is_late("    a.cc:3: Failure: koloBarrier() gave 7 (timed out), expected 0 (success)"))
        self.assertFalse(test_report.is_late("    a.cc:3: Failure: koloBarrier() gave 7 (timed out), expected 5 (remote error)"))
        self.assertTrue(test_report.is_late("Traceback\n  File a.py\nsubprocess.TimeoutExpired: Command 'x' timed out"))
        self.assertFalse(test_report.is_late("Traceback\n  File a.py\nAssertionError: 5 != 0 : rank 1 timed out"))
        said = "    a.cc:5: Info: koloBarrier(): 7 (timed out)"
        wrong = "    a.cc:5: koloGot == koloSuccess\n      was 7 == 0"
        self.assertTrue(test_report.is_late(f"{said}\n{wrong}"))
        self.assertFalse(test_report.is_late(f"{said}\n{wrong}\n{wrong}"))
        self.assertFalse(test_report.is_late(f"{said}\n    a.cc:6: 1 == x\n      was 1 == 2"))
        self.assertFalse(test_report.is_late(f"{said}\n    a.cc:6: FatalErrorCondition: SIGSEGV"))

    def test_a_crash_is_no_lateness_whatever_was_said_before(self):
        hung = 'watchdog: "a case" did not end in time; its threads'
        self.assertTrue(test_report.has_hung(None, ""))
        self.assertTrue(test_report.has_hung(-signal.SIGABRT, hung))
        self.assertFalse(test_report.has_hung(-signal.SIGABRT, "the call timed out"))
        self.assertFalse(test_report.has_hung(-signal.SIGSEGV, hung))


class Busy(unittest.TestCase):
    def test_processes_of_tests_are_stopped_and_continued(self):
        """Which the script sees by the time that goes by between two looks at the clock."""
        look = "import time\nend=time.time()+6\nwhile time.time()<end:\n t=time.time(); time.sleep(.001)\n if time.time()-t>.05: raise SystemExit(0)\nraise SystemExit(1)"
        run, output = run_quietly(build([sys.executable, "-c", look], timeout=30), busy=True)
        self.assertEqual((run.total.passed, run.total.failed), (1, 0), output)

    def test_what_a_test_has_stopped_stays_so(self):
        """However often it would be continued: of twelve processes, each is stopped and continued within a second or two."""
        script = """
import os, subprocess, sys, time
sys.path.append(sys.argv[1])
import stops
state = lambda pid: open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
sleepers = [subprocess.Popen(["sleep", "100"]) for _ in range(12)]
time.sleep(1)
for each in sleepers:
    stops.stop(each.pid)
time.sleep(4)
states = [state(each.pid) for each in sleepers]
for each in sleepers:
    each.kill()
print(states)
raise SystemExit(states != ["T"] * 12)
"""
        run, output = run_quietly(build([sys.executable, "-c", script, SUPPORT], timeout=30), busy=True)
        self.assertEqual((run.total.passed, run.total.failed), (1, 0), output)


class Touched(unittest.TestCase):
    TABLE = {"edge-*": ["src/edge", "tools/edge"]}

    def test_what_is_in_the_table_runs_whole_where_it_was_touched(self):
        for changed, whole in (({"src/edge/a.cc"}, True), ({"tools/edge-maker"}, True), ({"src/other.cc"}, False), (set(), False), (None, True)):
            self.assertEqual(touched.runs_whole("edge-one", changed, self.TABLE), whole, changed)

    def test_other_tests_always_run_whole(self):
        self.assertTrue(touched.runs_whole("unit", set(), self.TABLE))

    def test_what_counts_is_what_the_last_hours_changed_in_the_end(self):
        with tempfile.TemporaryDirectory() as root:
            def git(*words, hour=0):
                date = f"2026-01-02T{hour:02}:00:00+0000"
                subprocess.run(["git", "-C", root, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True, capture_output=True,
                               env={**os.environ, "GIT_COMMITTER_DATE": date, "GIT_AUTHOR_DATE": date})

            def commit(hour, **contents):
                for name, text in contents.items():
                    with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                        file.write(text)
                git("add", ".", hour=hour)
                git("commit", "-m", "x", hour=hour)

            self.assertIsNone(touched.files(root))
            git("init", "-b", "main")
            commit(1, old="1", undone="1", kept="1")
            commit(5, undone="2", kept="2")
            self.assertIsNone(touched.files(root, hours=6))  # nothing is as old
            git("checkout", "-b", "side", hour=6)
            commit(6, other="1")
            git("checkout", "main", hour=7)
            git("merge", "-s", "ours", "--no-edit", "side", hour=7)
            commit(8, undone="1")
            self.assertEqual(touched.files(root, hours=6), {"kept"})
            self.assertEqual(touched.files(root, hours=2), {"undone"})

    def test_the_table_names_what_there_is(self):
        for pattern, paths in touched.TABLE.items():
            for path in paths:
                self.assertTrue(glob.glob(os.path.join(run_suites.TOP, path) + "*"), f"{pattern}: {path}")


class Output(unittest.TestCase):
    SAID = "begins\n\n== case good\nwarned\n\n== case bad\nfirst\nsecond\n\n== case last\nwarned too\n"

    def test_only_a_failed_case_s_own_output_is_shown(self):
        shown = test_report.output_of_failures(self.SAID, {"bad"})
        self.assertEqual(shown, "    output of bad:\n    | first\n    | second")

    def test_a_failed_case_that_said_nothing_shows_nothing_of_the_others(self):
        self.assertEqual(test_report.output_of_failures(self.SAID, {"silent"}), "")

    def test_a_sanitizer_s_report_is_shown_whichever_case_it_came_in(self):
        said = self.SAID.replace("warned\n", "WARNING: ThreadSanitizer: data race\n", 1)
        self.assertIn("output of good:\n    | WARNING: ThreadSanitizer", test_report.output_of_failures(said, set()))

    def test_of_a_program_that_died_behind_its_last_case_the_end_is_shown(self):
        self.assertEqual(test_report.output_of_failures(self.SAID, set()), "    output of last:\n    | warned too")


class Order(unittest.TestCase):
    def test_tests_that_wait_run_beside_a_later_build_and_beside_what_calculates(self):
        with tempfile.TemporaryDirectory() as folder:
            began = os.path.join(folder, "began")
            wait = f"i=0; while [ ! -e {began} ] && [ $i -lt 500 ]; do sleep 0.02; i=$((i + 1)); done; [ -e {began} ]"
            waiting = build(shell(wait), suites=["kolo:cores0"])
            # Had the builds waited for the tests of the first, or those for each other, nobody would make the file.
            later = build(shell(f"touch {began}"), make=lambda: True)
            run, output = run_quietly(waiting, later)
            self.assertEqual((run.total.passed, run.total.failed), (2, 0), output)

    def test_tests_have_the_cores_that_they_need(self):
        """Two that need one core run side by side, and one that needs both alone. Each writes when it begins and ends."""
        with tempfile.TemporaryDirectory() as folder:
            note = f"echo + >>{folder}/log; sleep 0.3; echo - >>{folder}/log"
            for suite, expected in (("cores1", "++--"), ("cores2", "+-+-")):
                run, output = run_quietly(build(shell(note), shell(note), suites=[suite]))
                self.assertEqual(run.total.passed, 2, output)
                with open(f"{folder}/log", encoding="ascii") as file:
                    self.assertEqual(file.read().replace("\n", ""), expected)
                os.unlink(f"{folder}/log")

    def test_the_longest_of_an_earlier_run_begins_first(self):
        with tempfile.TemporaryDirectory() as folder:
            notes = [shell(f"echo {i} >>{folder}/log") for i in range(3)]
            run_quietly(build(*notes), cores=1, times={"fake test0": 1, "fake test1": 30, "fake test2": 7})
            with open(f"{folder}/log", encoding="ascii") as file:
                self.assertEqual(file.read().split(), ["1", "2", "0"])

    def test_the_other_builds_are_tested_where_one_fails(self):
        run, output = run_quietly(build(shell("exit 0"), make=lambda: False), build(shell("exit 0")))
        self.assertEqual((run.total.passed, run.total.failed), (1, 1))
        self.assertIn("the build failed", output)

    def test_the_slowest_tests_and_the_builds_are_named(self):
        run, _ = run_quietly(build(shell("sleep 0.3"), shell("exit 0")))
        self.assertRegex(run.where_time_went(), r"building: fake 0 s\nslowest: fake test0 \d+ s, fake test1 0 s")


    def test_failures_are_told_once_more_at_the_end(self):
        _, output = run_quietly(build(shell("echo it is wrong; exit 1"), shell("exit 0")))
        self.assertRegex(output, r"(?s)fake +test1.*failed: fake test0\n.*it is wrong\nbuilding")


class Totals(unittest.TestCase):
    def run_main(self, *arguments):
        output = io.StringIO()
        saved, sys.argv = sys.argv, ["run_suites", *arguments]
        try:
            with contextlib.redirect_stdout(output):
                status = run_suites.main()
        finally:
            sys.argv = saved
        return status, output.getvalue().splitlines()[-1]

    def test_nothing_executed_is_a_failure(self):
        self.assertEqual(self.run_main(), (1, "0 passed, 0 failed"))

    def test_a_build_that_failed_is_a_failure(self):
        self.assertEqual(self.run_main("--broken", "2"), (1, "0 passed, 2 failed"))


sys.exit(cases.run([sys.modules["__main__"]], sys.argv[1:]))
