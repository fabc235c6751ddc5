"""The wheel: made of this build, installed in a folder, found by torch itself."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch

from groups_cases import torchrun

TOP = pathlib.Path(__file__).resolve().parents[2]
FINDS_ITSELF = tuple(int(word) for word in torch.__version__.split(".")[:2]) >= (2, 14)

SCRIPT = """
import os
import torch
import torch.distributed as dist
dist.init_process_group("kolo")
tensor = torch.ones(3)
dist.all_reduce(tensor)
mapped = {line.split()[-1] for line in open(f"/proc/{os.getpid()}/maps") if "libkolo" in line}
os.write(1, f"sum {int(tensor[0])} by {' '.join(mapped)}\\n".encode())  # whole: both ranks write to one pipe
dist.destroy_process_group()
"""


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{command}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


class Wheel(unittest.TestCase):
    def test_torch_finds_what_pip_has_installed(self):
        build = pathlib.Path(os.environ["KOLO_TORCH_FOLDER"]).resolve().parents[1]
        with tempfile.TemporaryDirectory() as folder:
            made = run(
                TOP / "tools" / "build-torch-wheel", "--python", sys.executable, "--build-dir", build, "--out", folder
            )
            wheel = made.splitlines()[-1]
            site = os.path.join(folder, "site")
            run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", site, wheel)
            script = os.path.join(folder, "script.py")
            with open(script, "w", encoding="utf-8") as file:
                file.write(("" if FINDS_ITSELF else "import kolo_torch\n") + SCRIPT)
            status, output = torchrun(script, PYTHONPATH=site)
            self.assertEqual(status, 0, output)
            self.assertEqual(output.count("sum 2 by"), 2, output)
            self.assertEqual(output.count(os.path.join(site, "kolo_torch", "lib", "libkolo.so.0")), 2, output)
