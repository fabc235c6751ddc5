"""Open MPI's mpirun."""
import time
import unittest

from every_launcher import BOUND, Programs
from launchers import OpenMpi
from mpirun import Mpirun

MPIRUN = OpenMpi()
missing = MPIRUN.missing


class UnderOpenMpi(Mpirun, unittest.TestCase):
    launcher = MPIRUN

    def test_ranks_that_mpirun_lets_live_say_who_died(self):
        job = self.start(3, [Programs.report, "1"], options=["--enable-recovery"])
        self.assertTrue(job.has_said("rank 1 of 3"), job.output())
        begin = time.monotonic()
        self.assertIsNotNone(job.ended(), job.output())
        self.assertLess(time.monotonic() - begin, BOUND)
        self.assertRegex(job.output(), r"rank [02]: koloBarrier: .*rank 1 \(pid \d+ on [^)]*\) died")
