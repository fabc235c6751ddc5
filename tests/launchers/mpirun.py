"""What holds under both mpiruns beyond what holds under every launcher."""
import os
import re
import stat
import tempfile

from every_launcher import EveryLauncher, Programs
from launchers import free_ports

# In the place of ssh: forgets its options and the host, and runs the command here.
NO_SSH = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
shift
exec /bin/sh -c "$*"
"""
HOSTS = ["localhost", "127.0.0.2"]


def here_instead_of_there():
    """The path of the script above."""
    path = os.path.join(tempfile.gettempdir(), "no-ssh")
    with open(path, "w", encoding="utf-8") as file:
        file.write(NO_SSH)
    os.chmod(path, stat.S_IRWXU)
    return path


class Mpirun(EveryLauncher):
    def on_two_hosts(self):
        return self.launcher.over_hosts(HOSTS, here_instead_of_there(), 2)

    def test_what_a_pod_s_environment_says_of_ranks_is_not_believed(self):
        """As operators of jobs set it for a pod in which mpirun then starts several ranks."""
        job = self.start(2, [Programs.report], {"RANK": "0", "WORLD_SIZE": "1"})
        self.expect_report(job, 2)
        self.assertRegex(job.output(), rf"RANK=0 and WORLD_SIZE=1 \(torchrun\), but this process was started with {self.launcher.rank_variable}=")

    def test_kolo_s_own_variables_are_believed_with_a_warning(self):
        job = self.start(2, [Programs.report], {"KOLO_RANK": "0", "KOLO_SIZE": "1"})
        self.assertEqual(job.ended(), 0, job.output())
        self.assertRegex(job.output(), rf"KOLO_RANK=0 and KOLO_SIZE=1 \(kolo\), which is used, but this process was started with {self.launcher.rank_variable}=")

    def test_ranks_on_two_hosts_ask_for_a_root_and_meet_there(self):
        alone = self.start(4, [Programs.report], options=self.on_two_hosts())
        self.assertNotEqual(alone.ended(), 0, alone.output())
        said = re.findall(r"KOLO_ROOT is not set, but .* says that 2 of 4 ranks are on this host", alone.output())
        self.assertGreater(len(said), 0, alone.output())
        root = {"KOLO_ROOT": f"127.0.0.1:{free_ports()}", "KOLO_SECRET": "for this test"}
        self.expect_report(self.start(4, [Programs.report], root, options=self.on_two_hosts()), 4)
