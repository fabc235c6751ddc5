"""Open MPI's mpirun."""
import unittest

from launchers import OpenMpi
from mpirun import Mpirun

MPIRUN = OpenMpi()
missing = MPIRUN.missing


class UnderOpenMpi(Mpirun, unittest.TestCase):
    launcher = MPIRUN
