"""The script of src/torch/README.md, and each way to divide the work, under launchers, and between hosts that only TCP connects.

Without KOLO_TEST_ALL in the environment: none of it. Launchers that are not installed are passed over, with the reason.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tools"))

import launchers
import namespaces
import ranks
import slurm_cluster
from jobs import clean_environment
import train_by
from groups_cases import torchrun
from training_cases import readme_script

COUNT, HOSTS = 3, 3
# What launchers call a rank's number, under the name that torch asks for.
PRELUDE = """import os, sys
if len(sys.argv) > 2:
    os.environ.update(RANK=os.environ[sys.argv[1]], WORLD_SIZE=sys.argv[2])
"""


EACH_WAY = train_by.__file__


def losses_of(output):
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", output)]


def ways_of(output):
    return re.findall(r"^(.+): as a single process$", output, re.M)


@unittest.skipUnless("KOLO_TEST_ALL" in os.environ, "part of tools/run-tests --all")
class Launchers(unittest.TestCase):
    def environment(self, **more):
        return {
            **clean_environment(),
            "PYTHONPATH": os.environ["KOLO_TORCH_FOLDER"],
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(ranks.free_port()),
            **more,
        }

    def output_of(self, command, environment):
        done = subprocess.run(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=ranks.PATIENCE,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def check(self, launcher):
        reason = launcher.missing()
        if reason is not None:
            self.skipTest(reason)
        script = readme_script(self, PRELUDE)
        alone = losses_of(self.output_of([sys.executable, script], self.environment(RANK="0", WORLD_SIZE="1")))
        self.assertEqual(len(alone), 5)
        together = losses_of(self.launched(launcher, script))
        self.assertEqual(len(together), 5)
        for got, wanted in zip(together, alone):
            self.assertAlmostEqual(got, wanted, places=4)
        output = self.launched(launcher, EACH_WAY)
        self.assertEqual(ways_of(output), list(train_by.WAYS), output)

    def launched(self, launcher, script):
        command = launcher.command(COUNT, [sys.executable, script, launcher.rank_variable, str(COUNT)])
        return self.output_of(command, self.environment(**launcher.environment()))

    def test_each_way_under_torchrun(self):
        status, output = torchrun(EACH_WAY, count=COUNT)
        self.assertEqual(status, 0, output)
        self.assertEqual(ways_of(output), list(train_by.WAYS), output)

    def test_the_checks_of_a_gpu_on_the_cpu(self):
        script = pathlib.Path(__file__).resolve().parents[2] / "tools/gpu-torch-backend"
        output = self.output_of([sys.executable, script, "--device", "cpu", "--quick"], self.environment())
        said = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        self.assertEqual([line["check"] for line in said if "check" in line][-1], "ddp_step", output)
        self.assertEqual([line["bytes"] for line in said if "us" in line], [8192], output)

    def test_mpirun_of_openmpi(self):
        self.check(launchers.OpenMpi())

    def test_mpirun_of_mpich(self):
        self.check(launchers.Mpich())

    def test_srun(self):
        reason = slurm_cluster.missing()
        if reason is not None:
            self.skipTest(reason)
        try:
            cluster = slurm_cluster.started_cluster()
        except slurm_cluster.NotStarted as why:
            self.skipTest(f"Slurm does not start here: {why}")
        self.addCleanup(cluster.stop)

        class Srun(launchers.Launcher):
            rank_variable = "SLURM_PROCID"

            def environment(self):
                return cluster.environment()

            def command(self, count, words):
                return ["srun", "--overcommit", "-n", str(count), *words]

        self.check(Srun())


def train_between_hosts(script, output):
    """Exit status 0: a rank on each host has ended well. What rank 0 printed is in the file."""
    try:
        network = namespaces.Network(HOSTS)
    except namespaces.Unavailable as reason:
        pathlib.Path(output).write_text(f"not tried: {reason}", encoding="utf-8")
        return namespaces.SKIPPED
    with network, open(output, "wb") as file:
        address, port = network.endpoint(0, 17171).rsplit(":", 1)
        environment = {
            **clean_environment(),
            "PYTHONPATH": os.environ["KOLO_TORCH_FOLDER"],
            "MASTER_ADDR": address.strip("[]"),
            "MASTER_PORT": port,
            "WORLD_SIZE": str(HOSTS),
            "KOLO_SECRET": "of this test",
        }
        processes = []
        for rank in range(HOSTS):
            own = {**environment, "RANK": str(rank), "KOLO_HOST_ID": namespaces.name_of(rank)}
            command = network.command(rank, [sys.executable, script])
            processes.append(subprocess.Popen(command, env=own, stdout=file, stderr=subprocess.STDOUT))
        status = max(abs(process.wait()) for process in processes)
        for host in range(HOSTS):
            command = network.command(host, ["cat", "/sys/class/net/eth0/statistics/tx_bytes"])
            sent = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            file.write(f"\nhost {host} has sent {sent}".encode())
        return status


@unittest.skipUnless("KOLO_TEST_ALL" in os.environ, "part of tools/run-tests --all")
class Hosts(unittest.TestCase):
    def said_between_hosts(self, script):
        with tempfile.NamedTemporaryFile() as output:
            status = namespaces.run(lambda: train_between_hosts(script, output.name))
            said = pathlib.Path(output.name).read_text(encoding="utf-8")
        if status == namespaces.SKIPPED:
            self.skipTest(said)
        self.assertEqual(status, 0, said)
        return said

    def test_each_way_by_tcp_between_hosts(self):
        said = self.said_between_hosts(EACH_WAY)
        self.assertEqual(ways_of(said), list(train_by.WAYS), said)

    def test_tcp_between_hosts(self):
        said = self.said_between_hosts(readme_script(self))
        self.assertEqual(len(losses_of(said)), 5, said)
        sent = [int(each) for each in re.findall(r"has sent (\d+)", said)]
        self.assertEqual(len(sent), HOSTS, said)
        for each in sent:  # 2,200 gradients a step, 50 steps
            self.assertGreater(each, 4 * 2200 * 50, said)
