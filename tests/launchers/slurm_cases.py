"""Slurm: srun, sbatch and salloc, and mpirun inside an allocation."""
import os
import shlex
import tempfile
import unittest

import slurm_cluster
from every_launcher import EveryLauncher, Programs
from launchers import Launcher, Mpich, OpenMpi, free_ports, is_here
from readme import code_blocks

missing = slurm_cluster.missing


class Srun(Launcher):
    rank_variable = "SLURM_PROCID"
    keeps_others = True
    cluster = None

    def environment(self):
        return self.cluster.environment()

    def command(self, ranks, words, options=()):
        return ["srun", "--overcommit", *options, "-n", str(ranks), *words]


class Salloc(Srun):
    """Any command inside an allocation of `ranks` tasks on this machine."""

    def command(self, ranks, words, options=()):
        return ["salloc", "-n", str(ranks), "-w", self.cluster.host, *options, *words]


class Sbatch(Srun):
    """A batch script, the first of the words, inside such an allocation. sbatch --wait looks only every ten seconds."""
    script = """
id=$(sbatch --parsable "$@") || exit
while scontrol -o show job "$id" | grep -qE 'JobState=(PENDING|CONFIGURING|RUNNING|COMPLETING)'; do sleep 0.05; done
scontrol -o show job "$id" | grep -q ' ExitCode=0:0 '
"""

    def command(self, ranks, words, options=()):
        return ["/bin/sh", "-c", self.script, "sh", "-n", str(ranks), "-w", self.cluster.host, *options, *words]


class InSlurm(EveryLauncher, unittest.TestCase):
    launcher = Srun()

    @classmethod
    def setUpClass(cls):
        try:
            Srun.cluster = slurm_cluster.started_cluster()
        except slurm_cluster.NotStarted as reason:
            raise unittest.SkipTest(f"Slurm does not start here: {reason}") from None

    @classmethod
    def tearDownClass(cls):
        Srun.cluster.stop()

    def batch(self, script, ranks=4, environment=None):
        name = os.path.join(tempfile.gettempdir(), self.id())
        with open(name + ".sh", "w", encoding="utf-8") as file:
            file.write(script)
        return self.start(ranks, [name + ".sh"], environment, launcher=Sbatch(), written=name + ".out",
                          options=["-o", name + ".out"])

    # ---- srun

    def test_srun_may_be_told_to_end_all_ranks_with_the_first(self):
        job = self.start(3, [Programs.report, "1"], options=["--kill-on-bad-exit=1"])
        self.assertNotIn(job.ended(), (None, 0), job.output())

    def test_ranks_on_two_nodes_meet_on_the_first(self):
        if not is_here(Srun.cluster.host):
            self.skipTest(f"this machine's name, {Srun.cluster.host}, does not resolve to it")
        for _ in range(2):
            job = self.start(4, [Programs.report], {"KOLO_SECRET": "for this test"}, options=["-N", "2"])
            self.expect_report(job, 4)

    def test_ranks_in_an_order_of_the_users_ask_for_a_root_and_meet_there(self):
        hosts = os.path.join(tempfile.gettempdir(), "hosts")
        with open(hosts, "w", encoding="utf-8") as file:
            file.write(f"{Srun.cluster.second_host}\n{Srun.cluster.host}\n{Srun.cluster.second_host}\n")
        order = {"SLURM_HOSTFILE": hosts, "KOLO_SECRET": "for this test"}
        alone = self.start(3, [Programs.perf, "barrier"], order, options=["--distribution=arbitrary"])
        self.assertEqual(alone.ended(), 2, alone.output())
        self.assertIn("KOLO_ROOT is not set", alone.output())
        order["KOLO_ROOT"] = f"127.0.0.1:{free_ports()}"
        self.expect_report(self.start(3, [Programs.report], order, options=["--distribution=arbitrary"]), 3)

    def test_steps_at_once_in_one_allocation_do_not_mix(self):
        script = 'for step in a b; do JOB_TAG=$step srun --overlap -n 2 "$0" & done; wait'
        job = self.start(4, ["/bin/sh", "-c", script, Programs.report], launcher=Salloc())
        self.assertEqual(job.ended(), 0, job.output())
        said = [line for line in job.output().splitlines() if line.startswith("rank")]
        self.assertEqual(sorted(said), [f"rank {rank} of 2 in {step}" for rank in range(2) for step in "ab"], job.output())

    def test_srun_with_its_interfaces_for_mpi(self):
        for kind in ("none", "pmi2", "pmix"):
            job = self.start(2, ["true"], options=[f"--mpi={kind}"])
            if job.ended() != 0:
                print(f"(srun --mpi={kind} does not work here) ", end="")
                continue
            with self.subTest(kind=kind):
                self.expect_report(self.start(3, [Programs.report], options=[f"--mpi={kind}"]), 3)

    def test_torchruns_variables_made_of_slurms(self):
        script = 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID exec "$0"'
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(2))}
        self.expect_report(self.start(3, ["/bin/sh", "-c", script, Programs.report], master), 3)

    # ---- batch scripts and allocations

    def test_the_batch_script_of_the_readme(self):
        path = {"PATH": os.pathsep.join([os.path.dirname(Programs.perf), os.environ["PATH"]])}
        script = next(block for block in code_blocks(Programs.readme, "bash") if "#SBATCH" in block)
        job = self.batch(script, environment=path)
        self.assertEqual(job.ended(), 0, job.output())
        for once in (": 4 ranks (processes)", "# Wrong values: 0 OK"):
            self.assertEqual(job.output().count(once), 1, job.output())
        self.expect_nothing_left(job)

    def test_kolo_perf_in_a_batch_script_starts_its_own_ranks(self):
        job = self.batch(f"#!/bin/sh\nexec {shlex.quote(Programs.perf)} barrier --ranks 3 -n 5\n")
        self.assertEqual(job.ended(), 0, job.output())
        self.assertEqual(job.output().count(": 3 ranks (processes)"), 1, job.output())

    def test_kolo_perf_in_the_shell_of_an_allocation_starts_its_own_ranks(self):
        commands = f"echo in step $SLURM_STEP_ID; exec {shlex.quote(Programs.perf)} barrier --ranks 3 -n 5\n"
        job = self.start(4, [], launcher=Salloc(), stdin=commands)
        self.assertEqual(job.ended(), 0, job.output())
        self.assertIn(f"in step {0xfffffffa}\n", job.output())
        self.assertEqual(job.output().count(": 3 ranks (processes)"), 1, job.output())

    def mpirun_inside(self, mpirun):
        """As a command of salloc's, in a batch script, and twice at once."""
        if mpirun.missing():
            self.skipTest(mpirun.missing())
        words = mpirun.command(2, [Programs.report])
        self.expect_report(self.start(4, words, mpirun.environment(), launcher=Salloc()), 2)
        script = "#!/bin/sh\nexec " + shlex.join(words) + "\n"
        self.expect_report(self.batch(script, environment=mpirun.environment()), 2)
        jobs = [self.start(2, words, mpirun.environment(), launcher=Salloc()) for _ in range(2)]
        for job in jobs:
            self.expect_report(job, 2)

    def test_open_mpis_mpirun_inside_an_allocation(self):
        self.mpirun_inside(OpenMpi())

    def test_mpichs_mpirun_inside_an_allocation(self):
        self.mpirun_inside(Mpich())
