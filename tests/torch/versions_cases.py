"""The other versions of torch that are promised: a wheel for each is built, passes the smoke and the tests of the wheel, and is refused
under this torch.

Only where KOLO_TEST_ALL is in the environment, and for the Pythons torch-python-*/bin/python in Kolo's folder, which tools/run-tests --all
makes where CI is "true".
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from wheel_cases import TOP, TORCH_HERE, install_wheel, run

OTHERS = sorted(TOP.glob("torch-python-*/bin/python"))


@unittest.skipUnless("KOLO_TEST_ALL" in os.environ, "part of tools/run-tests --all")
@unittest.skipUnless(
    OTHERS,
    "there is no torch-python-VERSION with another torch, such as: "
    "python3 -m venv torch-python-2.14; torch-python-2.14/bin/pip install 'torch==2.14.*' 'setuptools>=77' numpy",
)
class Versions(unittest.TestCase):
    def test_each_is_built_and_passes_the_smoke(self):
        for python in OTHERS:
            with self.subTest(python=python), tempfile.TemporaryDirectory() as folder:
                _, site = install_wheel(folder, python=python)
                self.check(python, site, KOLO_TEST_SMOKE="1")
                self.check(python, site, "Wheel")
                self.check_refused_here(python, site)

    def check(self, python, site, *names, **variables):
        """Cases of these tests, with that Python and what is installed in its folder."""
        script = pathlib.Path(__file__).with_name("check_torch.py")
        environment = {name: value for name, value in os.environ.items() if name != "KOLO_TEST_ALL"}
        done = subprocess.run(
            [python, script, site, os.environ["KOLO_TORCH_README"], *names],
            env={**environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout)

    def check_refused_here(self, python, site):
        its = run(python, "-c", "import torch; print('.'.join(torch.__version__.split('.')[:2]))").strip()
        done = subprocess.run(
            [sys.executable, "-c", "import kolo_torch"],
            env={**os.environ, "PYTHONPATH": site},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.assertRegex(
            done.stdout, rf"ImportError: kolo_torch .* built for torch {its} with.*this is torch {TORCH_HERE}"
        )
