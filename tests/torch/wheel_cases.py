"""The wheel: made of this build, installed in a folder, found by torch itself."""

import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import torch

import ranks
from groups_cases import torchrun

TOP = pathlib.Path(__file__).resolve().parents[2]
TORCH_HERE = ".".join(torch.__version__.split(".")[:2])
SAID = "makes the groups that ask for gloo"

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

# Groups of each way to ask for Gloo.
BY_GLOOS_NAME = """
import os
import torch
import torch.distributed as dist
cpu = torch.device("cpu")
def name_of(group, asked):
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    assert tensor[0] == dist.get_world_size() and dist.get_backend(group) == asked, dist.get_backend(group)
    return group._get_backend(cpu).name()
dist.init_process_group()
names = [name_of(dist.group.WORLD, "undefined")]
options = dist.ProcessGroupGloo._Options()
for backend, given in (("gloo", None), ("gloo", options), ("cpu:gloo", None)):
    names.append(name_of(dist.new_group(backend=backend, pg_options=given), backend))
dist.destroy_process_group()
os.write(1, f"groups of {' '.join(names)}\\n".encode())
"""


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{command}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


def install_wheel(folder, python=sys.executable, build=None):
    """Makes a wheel, of a folder that is built for this Python's torch, and installs it: (the wheel, the folder to import it from)."""
    given = ["--build-dir", build] if build else []
    made = run(TOP / "tools" / "build-torch-wheel", "--python", python, *given, "--out", folder)
    wheel, site = made.splitlines()[-1], os.path.join(folder, "site")
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", site, wheel)
    return wheel, site


def install_this_build(folder):
    """The same of the build that is tested; of a wheel that is tested, nothing is left to do."""
    found = next(iter(importlib.metadata.distributions(name="setuptools")), None)
    if found is None or int(found.version.split(".")[0]) < 77:
        raise unittest.SkipTest(f"a wheel needs: {sys.executable} -m pip install 'setuptools>=77'")
    tested = pathlib.Path(os.environ["KOLO_TORCH_FOLDER"]).resolve()
    if list(tested.glob("kolo_torch-*.dist-info")):
        return None, str(tested)
    return install_wheel(folder, build=tested.parents[1])


def import_it(_, __, site, changes):
    for change in changes:
        exec(change)  # pylint: disable=exec-used
    sys.path.insert(0, site)
    import kolo_torch  # pylint: disable=import-outside-toplevel

    print(kolo_torch.__version__)


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        cls.addClassCleanup(cls.folder.cleanup)
        cls.wheel, cls.site = install_this_build(cls.folder.name)

    def run_script(self, text, count=2, **variables):
        script = os.path.join(self.folder.name, "script.py")
        pathlib.Path(script).write_text(text, encoding="utf-8")
        return torchrun(script, count=count, PYTHONPATH=self.site, **variables)

    def test_torch_finds_what_pip_has_installed(self):
        status, output = self.run_script(SCRIPT)
        self.assertEqual(status, 0, output)
        self.assertEqual(output.count("sum 2 by"), 2, output)
        self.assertEqual(output.count(os.path.join(self.site, "kolo_torch", "lib", "libkolo.so.0")), 2, output)
        self.assertNotIn(SAID, output)

    def test_groups_that_ask_for_gloo(self):
        for value, name, count in (("1", "kolo", 2), ("0", "gloo", 1)):
            with self.subTest(KOLO_TORCH_REPLACE_GLOO=value):
                status, output = self.run_script(BY_GLOOS_NAME, count, KOLO_TORCH_REPLACE_GLOO=value)
                self.assertEqual(status, 0, output)
                self.assertEqual(output.count(f"groups of {name} {name} {name} {name}\n"), count, output)
                self.assertEqual(output.count(SAID), 1 if name == "kolo" else 0, output)

    def import_torch(self, **variables):
        """What Python prints that imports torch, and whether it has imported kolo_torch by that."""
        environment = {**os.environ, "PYTHONPATH": self.site, **variables}
        command = [sys.executable, "-c", "import torch; import sys; print('kolo_torch' in sys.modules)"]
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        return done.returncode, done.stdout

    def test_without_the_variable_torch_imports_nothing_of_it(self):
        status, output = self.import_torch()
        self.assertEqual((status, output), (0, "False\n"))

    def test_a_malformed_variable_is_named(self):
        status, output = self.import_torch(KOLO_TORCH_REPLACE_GLOO="yes")
        self.assertNotEqual(status, 0)
        self.assertIn("KOLO_TORCH_REPLACE_GLOO is 'yes', expected 1", output)

    def imported(self, *changes):
        """What a process says that has imported torch, and imports kolo_torch after these changes."""
        return ranks.Job(import_it, 1, self.site, changes).outcomes()[0].output

    def check_refused(self, change, what):
        error = self.imported(change).splitlines()[-1]
        self.assertIn(f"was built for torch {TORCH_HERE} with", error)
        self.assertIn(f"and this is torch {what}. Build it for this one", error)
        self.assertIn(f"tools/build-torch-wheel --python {sys.executable}", error)

    def test_another_torch_is_refused_in_a_sentence(self):
        """A torch that is only said to be another. versions_cases.py has others."""
        cuda = "with CUDA" if torch.version.cuda else "without CUDA"
        self.check_refused("torch.__version__ = '2.99.1'", f"2.99.1 {cuda}")
        built = pathlib.Path(self.site, "kolo_torch", "_build.py").read_text(encoding="utf-8")
        if "WITH_CUDA = True" in built:
            self.check_refused("torch.version.cuda = None", f"{torch.__version__} without CUDA")

    def test_the_wheel_says_what_it_is(self):
        found = next(iter(importlib.metadata.distributions(path=[self.site])))
        metadata = found.metadata
        self.assertEqual(metadata["Name"], "kolo-torch")
        self.assertEqual(found.requires, [f"torch=={TORCH_HERE}.*"])
        self.assertTrue(found.version.endswith(f"+torch{TORCH_HERE}"), found.version)
        self.assertEqual(self.imported().strip(), found.version)
        self.assertIn("torch.distributed", metadata["Summary"])
        self.assertIn("Operating System :: POSIX :: Linux", metadata.get_all("Classifier"))
        self.assertIn("# Kolo for PyTorch", metadata.get_payload())
        if self.wheel:
            self.assertRegex(os.path.basename(self.wheel), r"-cp3\d+-cp3\d+-manylinux_2_\d+_\w+\.whl$")

    def test_the_wheel_has_the_licences_of_what_it_carries(self):
        """Where packages are Debian's."""
        libraries = pathlib.Path(self.site, "kolo_torch", "lib").iterdir()
        carried = {re.match(r"lib(\w+)\.so", path.name)[1] for path in libraries} - {"kolo"}
        self.assertGreaterEqual(carried, {"fmt", "hwloc", "sodium"})
        texts = list(pathlib.Path(self.site).glob("*.dist-info/licenses/*"))
        self.assertIn("LICENSE", {text.name for text in texts})
        if not os.path.exists("/var/lib/dpkg/status"):
            self.skipTest("licences of libraries are found by dpkg, which is not here")
        for library in [*carried, "nlohmann"]:
            named = [text for text in texts if library in text.name]
            self.assertEqual(len(named), 1, texts)
            self.assertRegex(named[0].read_text(encoding="utf-8"), "(?i)copyright")
