"""What holds under every launcher. Tests of one launcher derive from this and unittest.TestCase, and set `launcher`."""
import glob
import json
import os
import re
import signal
import tempfile
import time

from cases import smoke
from jobs import Job, soon, variable_of

BOUND = 30.0  # seconds in which the survivors of a dead rank must have ended; they need one, unless the machine is busy

SWEEP = ["all_reduce", "all_gather", "--sizes", "8,4K,256K", "-n", "20"]
ENDLESS = ["all_reduce", "--sizes", "1M", "-n", "1000000"]


class Programs:
    """Where the programs under test are; set by the main program."""
    perf = ""
    report = ""
    readme = ""


class EveryLauncher:
    launcher = None

    def start(self, ranks, words, environment=None, launcher=None, stdin=None, written=None, **how):
        """A job of `ranks` ranks; launcher: in the place of the class's own; how: for its command()."""
        launcher = launcher or self.launcher
        job = Job(launcher.command(ranks, words, **how), {**launcher.environment(), **(environment or {})}, stdin, written)
        self.addCleanup(job.kill_all)
        return job

    # ---- what a job is held to

    def expect_report(self, job, ranks):
        """It ended well, each rank said once who it is, and nobody else did."""
        status = job.ended()
        output = job.output()
        self.assertEqual(status, 0, output)
        said = re.findall(r"^rank (\d+) of (\d+) in (\S+)$", output, re.M)
        self.assertEqual(sorted(said), [(str(rank), str(ranks), job.tag) for rank in range(ranks)], output)
        self.expect_nothing_left(job)

    def expect_sweep(self, job, ranks, report):
        """The sweep ended well, was printed once, and every value was right."""
        status = job.ended()
        output = job.output()
        self.assertEqual(status, 0, output)
        for once in ("# kolo-perf, Kolo ", f": {ranks} ranks (processes)", "# Wrong values: 0 OK"):
            self.assertEqual(output.count(once), 1, output)
        self.assertEqual(len(re.findall(r"^ +\d+ +\d+ +float32 ", output, re.M)), 6, output)
        with open(report, encoding="utf-8") as file:
            results = json.load(file)["results"]
        self.assertEqual([(line["collective"], line["ranks"], line["wrong"]) for line in results],
                         [(name, ranks, 0) for name in ("all_reduce", "all_gather") for _ in range(3)])
        self.expect_nothing_left(job)

    def expect_nothing_left(self, job):
        self.assertTrue(soon(lambda: not job.processes(), BOUND), f"still running: {job.processes()}\n{job.output()}")
        # The files by which ranks meet; another job's may be there for a moment.
        places = os.path.join(tempfile.gettempdir(), "kolo-*", "*.id")
        self.assertTrue(soon(lambda: not glob.glob(places), BOUND), f"{glob.glob(places)}\n{job.output()}")

    def expect_end_by_death(self, job, since, rank):
        """The launcher says so by its status, in bounded time; ranks that it lets live name the rank that died."""
        status = job.ended(BOUND)
        took = time.monotonic() - since
        output = job.output()
        self.assertIsNotNone(status, f"not over after {BOUND} s: {output}")
        self.assertNotEqual(status, 0, output)
        self.assertLess(took, BOUND, output)
        if self.launcher.keeps_others:
            self.assertRegex(output, rf"rank {rank} \(pid \d+ on [^)]*\) died")
        self.expect_nothing_left(job)

    def report_file(self):
        return os.path.join(tempfile.gettempdir(), f"{self.id()}.json")

    # ---- under every launcher

    @smoke
    def test_every_rank_is_there_once(self):
        for ranks in (1, 4):
            self.expect_report(self.start(ranks, [Programs.report]), ranks)

    @smoke
    def test_kolo_perf_runs_unchanged_and_reports_once(self):
        report = self.report_file()
        self.expect_sweep(self.start(4, [Programs.perf, *SWEEP, "--json", report]), 4, report)

    def test_two_jobs_at_once_do_not_mix(self):
        for _ in range(3):
            one, two = self.start(3, [Programs.report]), self.start(3, [Programs.report])
            self.expect_report(one, 3)
            self.expect_report(two, 3)

    @smoke
    def test_a_rank_that_dies_is_the_end_of_the_job(self):
        job = self.start(4, [Programs.report, "2"])
        self.assertTrue(job.has_said("rank 2 of 4"), job.output())
        self.expect_end_by_death(job, time.monotonic(), 2)

    def test_kolo_perf_ends_when_a_rank_is_killed(self):
        job = self.start(4, [Programs.perf, *ENDLESS])
        self.assertTrue(job.has_said("(elements)  "), job.output())
        ranks = {variable_of(pid, self.launcher.rank_variable): pid for pid in job.processes("kolo-perf")}
        self.assertEqual(sorted(ranks), ["0", "1", "2", "3"], job.output())
        os.kill(ranks["3"], signal.SIGKILL)
        self.expect_end_by_death(job, time.monotonic(), 3)
        self.assertNotIn("Wrong values", job.output())
