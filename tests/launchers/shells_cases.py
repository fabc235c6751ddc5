"""Plain shells: KOLO_RANK, KOLO_SIZE and KOLO_ROOT by hand."""
import contextlib
import socket
import threading
import time
import unittest

from cases import smoke
from every_launcher import EveryLauncher, Programs, SWEEP
from jobs import Job
from kubernetes_example import KubernetesExample  # unittest finds it here
from launchers import Shells, free_ports, is_here

SECRET = {"KOLO_SECRET": "for this test"}


def missing():
    return None


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
        return True
    except OSError:
        return False


@contextlib.contextmanager
def stranger(answer):
    """A port on which somebody else listens, who sends `answer` to whoever comes, and waits."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        callers = []

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    callers.append(server.accept()[0])
                    callers[-1].sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield server.getsockname()[1]
        finally:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            for caller in callers:
                caller.close()


class InPlainShells(EveryLauncher, unittest.TestCase):
    launcher = Shells()

    def perf_alone(self, environment, *words):
        job = Job([Programs.perf, *(words or ["barrier", "-n", "5"])], environment)
        self.addCleanup(job.kill_all)
        return job

    def expect_refusal(self, job, words, seconds):
        """It ends with 2 in this time, and says these words."""
        begin = time.monotonic()
        self.assertEqual(job.ended(), 2, job.output())
        self.assertLess(time.monotonic() - begin, seconds, job.output())
        for word in words:
            self.assertIn(word, job.output())

    # ---- where to meet

    @smoke
    def test_ranks_meet_at_a_root_by_address_and_by_name(self):
        hosts = ["127.0.0.1", "localhost"] + ([socket.gethostname()] if is_here(socket.gethostname()) else [])
        for host in hosts:
            with self.subTest(host=host):
                root = {"KOLO_ROOT": f"{host}:{free_ports()}", **SECRET}
                self.expect_report(self.start(3, [Programs.report], root), 3)

    @unittest.skipUnless(has_ipv6(), "there is no IPv6 here")
    def test_ranks_meet_at_a_root_by_ipv6_address(self):
        root = {"KOLO_ROOT": f"[::1]:{free_ports()}", **SECRET}
        self.expect_report(self.start(3, [Programs.report], root), 3)

    def test_kolo_perf_runs_with_a_root(self):
        report = self.report_file()
        root = {"KOLO_ROOT": f"127.0.0.1:{free_ports()}", **SECRET}
        self.expect_sweep(self.start(4, [Programs.perf, *SWEEP, "--json", report], root), 4, report)

    def test_two_jobs_at_two_roots_do_not_mix(self):
        port = free_ports(2)
        jobs = [self.start(3, [Programs.report], {"KOLO_ROOT": f"127.0.0.1:{port + i}", **SECRET}) for i in range(2)]
        for job in jobs:
            self.expect_report(job, 3)

    def test_ranks_of_two_shells_meet_by_the_name_of_their_job(self):
        name = {"KOLO_JOB": f"two shells {time.monotonic_ns()}", "KOLO_SIZE": "2"}
        jobs = [Job(["/bin/sh", "-c", '"$0" && true', Programs.report], {**name, "KOLO_RANK": str(rank), "JOB_TAG": "both"})
                for rank in range(2)]
        for rank, job in enumerate(jobs):
            self.assertEqual(job.ended(), 0, job.output())
            self.assertEqual(job.output(), f"rank {rank} of 2 in both\n")

    # ---- what goes wrong

    def test_where_the_port_is_somebody_elses_rank_0_takes_another_and_says_so(self):
        for answer in (b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" + 200 * b"x"):
            with self.subTest(answer=answer), stranger(answer) as port:
                root = {"KOLO_ROOT": f"127.0.0.1:{port}", "KOLO_SIZE": "2", **SECRET}
                jobs = [self.perf_alone({**root, "KOLO_RANK": str(rank)}) for rank in range(2)]
                for job in jobs:
                    self.assertEqual(job.ended(), 0, job.output())
                self.assertRegex(jobs[0].output(), f":{port}: Address already in use .*; rank 0 listens at port")

    def test_a_root_that_does_not_resolve_is_named(self):
        host = "no-such-host.invalid"
        root = {"KOLO_ROOT": f"{host}:5000", "KOLO_SIZE": "2", "KOLO_RANK": "1", "KOLO_INIT_TIMEOUT_MS": "1500", **SECRET}
        self.expect_refusal(self.perf_alone(root), [f'"{host}" does not resolve', "by KOLO_ROOT"], 10)

    def test_half_of_what_a_rank_needs_is_named(self):
        self.expect_refusal(self.perf_alone({"KOLO_RANK": "0"}), ["KOLO_SIZE is not set"], 20)
        self.expect_refusal(self.perf_alone({"KOLO_SIZE": "2"}), ["KOLO_RANK is not set"], 20)
        self.expect_refusal(self.perf_alone({"KOLO_RANK": "4", "KOLO_SIZE": "4"}), ['KOLO_RANK is "4"', "0 to 3"], 20)
        self.expect_refusal(self.perf_alone({"KOLO_RANK": "0", "KOLO_SIZE": "2", "KOLO_ROOT": "nowhere"}),
                            ['"nowhere"', "host:port"], 20)

    def test_a_slurm_step_whose_rank_0_may_be_anywhere_asks_for_a_root(self):
        step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2",
                "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "no-such-host[1-2]", "SLURM_DISTRIBUTION": "arbitrary"}
        self.expect_refusal(self.perf_alone(step), ['SLURM_DISTRIBUTION is "arbitrary"', "KOLO_ROOT is not set"], 20)
        self.expect_refusal(self.perf_alone({**step, **SECRET, "SLURM_DISTRIBUTION": "cyclic", "KOLO_INIT_TIMEOUT_MS": "1500"}),
                            ['"no-such-host1"', "by SLURM_STEP_NODELIST"], 10)

    def test_a_rank_that_fails_is_named_whatever_started_it(self):
        nowhere = {"KOLO_ROOT": "no-such-host.invalid:5000", "KOLO_INIT_TIMEOUT_MS": "500", **SECRET}
        step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2",
                "SLURM_STEP_NODELIST": "no-such-host[1-2]"}
        for variables in ({"KOLO_RANK": "1", "KOLO_SIZE": "2"}, {"RANK": "1", "WORLD_SIZE": "2"}, {**step, "SLURM_PROCID": "1"},
                          {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, {"PMI_RANK": "1", "PMI_SIZE": "2"},
                          {**step, "SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}):
            with self.subTest(variables=variables):
                self.expect_refusal(self.perf_alone({**variables, **nowhere}), ["kolo-perf: rank 1: "], 10)

    # ---- when kolo-perf starts its own ranks

    @smoke
    def test_kolo_perf_starts_its_own_ranks_where_no_launcher_started_it(self):
        interactive = str(0xfffffffa)  # as salloc gives a shell of its own where Slurm is so configured
        for environment in ({}, {"KOLO_RANK": "", "KOLO_SIZE": ""}, {"RANK": "", "WORLD_SIZE": ""}, {"PMI_RANK": ""},
                            {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"},
                            {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1",
                             "SLURM_STEP_ID": interactive, "SLURM_STEPID": interactive}):
            with self.subTest(environment=environment):
                job = self.perf_alone(environment, "all_reduce", "--ranks", "3", "--sizes", "8", "-n", "5")
                self.assertEqual(job.ended(), 0, job.output())
                self.assertEqual(job.output().count(": 3 ranks (processes)"), 1, job.output())
