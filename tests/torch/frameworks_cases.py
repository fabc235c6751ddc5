"""Frameworks that know backends by name ask for Gloo, and with KOLO_TORCH_REPLACE_GLOO=1 in the environment they run on Kolo.

Only where KOLO_TEST_ALL is in the environment, and only those that this Python has; tools/run-tests --all installs them where CI is "true".
Each program, in the folder frameworks, ends with a check of its own, and prints its losses. They are Gloo's but for the order of sums.
"""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import ranks
from wheel_cases import SAID, install_this_build

PROGRAMS = pathlib.Path(__file__).with_name("frameworks")
ACCELERATES = ["test_script", "test_sync", "test_ops"]  # of those for CPUs, those that end with Gloo
PATIENCE = 600.0  # seconds for one program, on a busy machine


def needs(*packages):
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return unittest.skipIf(missing, f"not installed: pip install {' '.join(missing)}")


@unittest.skipUnless("KOLO_TEST_ALL" in os.environ, "part of tools/run-tests --all")
class Frameworks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        cls.addClassCleanup(cls.folder.cleanup)
        _, cls.site = install_this_build(cls.folder.name)

    def output_of(self, *words, kolo=True):
        """What Python prints for these words, with groups that ask for Gloo on Kolo, or on Gloo."""
        environment = {
            **os.environ,
            "PYTHONPATH": self.site,
            "KOLO_TORCH_REPLACE_GLOO": str(int(kolo)),
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "ACCELERATE_USE_CPU": "1",
        }
        done = subprocess.run(
            [sys.executable, *words],
            env=environment,
            cwd=self.folder.name,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(SAID in done.stdout, kolo, done.stdout)
        return done.stdout

    def check_program(self, name, *launcher):
        """Its losses are Gloo's."""
        on = {kolo: self.output_of(*launcher, PROGRAMS / name, kolo=kolo) for kolo in (False, True)}
        losses = {kolo: [float(loss) for loss in re.findall(r"loss ([\d.]+)", output)] for kolo, output in on.items()}
        self.assertGreater(len(losses[False]), 3, on)
        self.assertEqual(len(losses[True]), len(losses[False]), on)
        for got, wanted in zip(losses[True], losses[False]):
            self.assertAlmostEqual(got, wanted, places=4)

    def torchrun(self):
        return ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={ranks.free_port()}"]

    @needs("accelerate")
    def test_accelerates_own_scripts(self):
        for script in ACCELERATES:
            with self.subTest(script=script):
                self.output_of(*self.torchrun(), "-m", f"accelerate.test_utils.scripts.{script}")

    @needs("transformers", "accelerate")
    def test_transformers_trainer(self):
        self.check_program("by_trainer.py", *self.torchrun())

    @needs("lightning")
    def test_lightning(self):
        self.check_program("by_lightning.py")

    @needs("deepspeed")
    def test_deepspeed(self):
        self.check_program("by_deepspeed.py", *self.torchrun())

    @needs("ray", "pandas", "pyarrow")
    def test_ray_train(self):
        self.check_program("by_ray.py")
