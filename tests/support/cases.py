"""Runs the cases of a script of tests (unittest), and tells tools/run_suites.py by their names which have failed."""
import json
import os
import sys
import unittest

SKIPPED = 77


def smoke(case):
    """Marks a case, or a class of cases, that runs where nothing was touched that the script depends on (tools/touched.py)."""
    case.smoke = True
    return case


class Result(unittest.TextTestResult):
    passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1


def flattened(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flattened(test)
        else:
            yield test


def is_smoke(test):
    method = getattr(type(test), getattr(test, "_testMethodName", ""), None)
    return getattr(method, "smoke", False) or getattr(type(test), "smoke", False)


def run(sources, names=()):
    """Runs the cases of modules, of classes, or of modules of these names; where there are `names`, only cases with one of them in theirs. The exit
    status of the script: 77 where no case was tried; the last line then says why."""
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{name}*" for name in names] or None
    suites = [loader.loadTestsFromName(source) if isinstance(source, str)
              else loader.loadTestsFromTestCase(source) if isinstance(source, type)
              else loader.loadTestsFromModule(source) for source in sources]
    tests = list(flattened(suites))
    if "KOLO_TEST_SMOKE" in os.environ and not names:
        tests = [test for test in tests if is_smoke(test)]
    done = unittest.TextTestRunner(stream=sys.stdout, verbosity=2, resultclass=Result).run(unittest.TestSuite(tests))
    tell(done)
    if not done.wasSuccessful():
        return 1
    if done.passed == 0:
        print(f"not tried: {done.skipped[0][1] if done.skipped else 'no case has this name, or none is a smoke'}")
        return SKIPPED
    return 0


def tell(done):
    report = os.environ.get("KOLO_TEST_REPORT")
    if not report:
        return
    with open(report, "w", encoding="utf-8") as file:
        json.dump([[test.id().rpartition(".")[2], text] for test, text in done.failures + done.errors], file)
