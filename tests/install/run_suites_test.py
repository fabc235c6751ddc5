#!/usr/bin/env python3
"""The test runner itself: a failure that it overlooked would hide all others. usage: run_suites_test.py RUN_SUITES"""
import importlib.util
import io
import sys
import contextlib
import time
import types
import unittest

sys.dont_write_bytecode = True
spec = importlib.util.spec_from_file_location("run_suites", sys.argv.pop(1))
run_suites = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run_suites)

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<Catch name="t">\n <Group name="t">\n'
PASSED = '<TestCase name="good"><OverallResult success="true"/></TestCase>\n'
FAILED = ('<TestCase name="bad"><Expression success="false" type="CHECK" filename="a.cc" line="3">'
          '<Original>1 == x</Original><Expanded>1 == 2</Expanded></Expression>'
          '<OverallResult success="false"/></TestCase>\n')
TAIL = '</Group></Catch>\n'


def build(*commands, timeout=10):
    tests = [{"name": f"test{i}", "cmd": list(command), "timeout": timeout, "suite": [], "env": {}}
             for i, command in enumerate(commands)]
    return types.SimpleNamespace(label="fake", folder=".", tests=tests, factor=1, prefix=[], environment=lambda test: {})


def run_quietly(*arguments):
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        result = run_suites.run_build(*arguments)
    return result, output.getvalue()


def shell(text):
    return ["/bin/sh", "-c", text]


class Reports(unittest.TestCase):
    def test_a_complete_report_lists_what_passed_and_what_failed(self):
        cases = run_suites.parse_cases(HEAD + PASSED + FAILED + TAIL)
        self.assertEqual([(name, passed) for name, passed, _ in cases], [("good", True), ("bad", False)])
        self.assertIn("a.cc:3: 1 == x", cases[1][2])
        self.assertIn("1 == 2", cases[1][2])

    def test_a_report_that_ends_in_mid_air_keeps_what_passed_and_names_the_case_that_died(self):
        cases = run_suites.parse_cases(HEAD + PASSED + '<TestCase name="fatal"><Expression success="tr')
        self.assertEqual([(name, passed) for name, passed, _ in cases], [("good", True), ("fatal", None)])

    def test_a_case_without_a_result_has_not_passed(self):
        self.assertFalse(run_suites.parse_cases(HEAD + '<TestCase name="odd"></TestCase>' + TAIL)[0][1])

    def test_no_report_has_no_cases(self):
        self.assertEqual(run_suites.parse_cases(""), [])


class Programs(unittest.TestCase):
    def test_exit_statuses_are_counted(self):
        tally, output = run_quietly(build(shell("exit 0"), shell("echo said; exit 3"), shell("echo why; exit 77")), None)
        self.assertEqual((tally.passed, tally.failed, tally.skipped), (1, 1, 1))
        self.assertIn("| said", output)
        self.assertIn("ended with status 3", output)
        self.assertIn("skipped: why", output)

    def test_a_program_that_dies_of_a_signal_has_failed(self):
        tally, output = run_quietly(build(shell("kill -SEGV $$")), None)
        self.assertEqual(tally.failed, 1)
        self.assertIn("SIGSEGV", output)

    def test_of_much_output_a_sanitizers_report_and_the_end_are_shown(self):
        much = "seq 1000 1999; echo 'WARNING: ThreadSanitizer: data race'; echo where; seq 2000 2999; exit 66"
        _, output = run_quietly(build(shell(much)), None)
        for shown in ("| WARNING: ThreadSanitizer: data race", "| where", "| 2999", "| ... 1000 lines left out"):
            self.assertIn(shown, output)
        self.assertNotIn("| 1999", output)

    def test_a_program_that_hangs_is_ended_with_its_children(self):
        begin = time.monotonic()
        tally, output = run_quietly(build(shell("sleep 60 & sleep 60"), timeout=0.3), None)
        self.assertEqual(tally.failed, 1)
        self.assertIn("ran out of time", output)
        self.assertLess(time.monotonic() - begin, 20)

    def test_a_filter_leaves_other_programs_out(self):
        tally, _ = run_quietly(build(shell("exit 0"), shell("exit 1")), "test0")
        self.assertEqual((tally.passed, tally.failed), (1, 0))


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


unittest.main()
