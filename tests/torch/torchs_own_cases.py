"""torch's own tests of torch.distributed: what Gloo passes, Kolo passes. Minutes: only where KOLO_TEST_ALL is in the environment."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import unittest

# Its last lines are about fields of Gloo's own class, and of backends that torch does not bring it expects the name "custom".
OF_GLOO_ITSELF = {"test_ddp_logging_data_cpu"}


def results_of(backend, count):
    """{test: line}"""
    script = pathlib.Path(__file__).with_name("torchs_own.py")
    command = [sys.executable, script, os.environ["KOLO_TORCH_FOLDER"], backend, str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{command}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    lines = [line for line in done.stdout.splitlines() if line.startswith(("passed ", "skipped ", "failed "))]
    return {line.split()[1]: line for line in lines}


@unittest.skipUnless("KOLO_TEST_ALL" in os.environ, "part of tools/run-tests --all")
@unittest.skipUnless(importlib.util.find_spec("expecttest"), "torch's own tests need the package expecttest")
class TorchsOwn(unittest.TestCase):
    def check(self, count):
        gloo = results_of("gloo", count)
        kolo = results_of("kolo-as-gloo", count)
        passed = {test for test, line in gloo.items() if line.startswith("passed ")} - OF_GLOO_ITSELF
        self.assertGreater(len(passed), 60, gloo)
        self.assertEqual([line for test, line in kolo.items() if test in passed and not line.startswith("passed ")], [])
        own = results_of("kolo", count)
        failed = [line for test, line in own.items() if line.startswith("failed ") and test not in OF_GLOO_ITSELF]
        self.assertEqual(failed, [])

    def test_with_2_ranks(self):
        self.check(2)

    def test_with_3_ranks(self):
        self.check(3)

    def test_with_8_ranks(self):
        self.check(8)
