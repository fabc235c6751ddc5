"""MPICH's mpirun."""
import unittest

from launchers import Mpich
from mpirun import Mpirun

MPIRUN = Mpich()
missing = MPIRUN.missing


class UnderMpich(Mpirun, unittest.TestCase):
    launcher = MPIRUN
