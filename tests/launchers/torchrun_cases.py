"""The environment that torchrun gives its ranks; and torchrun itself, where it is installed."""
import socket
import unittest

from every_launcher import EveryLauncher, Programs
from launchers import Torchrun, TorchrunEnvironment, free_ports


def missing():
    return None  # the environment needs nothing


class UnderTorchrunsEnvironment(EveryLauncher, unittest.TestCase):
    launcher = TorchrunEnvironment()

    def test_a_job_that_torchrun_starts_again_meets_again(self):
        first = self.launcher.environment()
        died = self.start(3, [Programs.report, "0"], first)
        self.assertNotEqual(died.ended(), 0, died.output())
        again = {**first, "TORCHELASTIC_RESTART_COUNT": "1"}
        self.expect_report(self.start(3, [Programs.report], again), 3)

    def test_two_hosts_meet_beside_the_store_that_has_the_master_port(self):
        port = free_ports(2)
        two_hosts = self.launcher.each.replace("LOCAL_WORLD_SIZE=$n", "LOCAL_WORLD_SIZE=$((n / 2))")
        with socket.create_server(("", port)):
            job = self.start(4, [Programs.report], {"MASTER_PORT": str(port), "KOLO_SECRET": "for this test"}, each=two_hosts)
            self.expect_report(job, 4)

    def test_ranks_without_master_port_say_what_is_missing(self):
        job = self.start(2, [Programs.perf, "barrier"], {"MASTER_PORT": "", "TORCHELASTIC_RUN_ID": ""})
        self.assertEqual(job.ended(), 2, job.output())
        self.assertIn("MASTER_PORT is not set", job.output())


@unittest.skipIf(Torchrun().missing(), Torchrun().missing())
class UnderTorchrun(EveryLauncher, unittest.TestCase):
    launcher = Torchrun()
