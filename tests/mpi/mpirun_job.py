"""One job under kolo-mpirun, and what the test was given for it."""
import os
import re
import subprocess
import time

BOUND = 90  # seconds for one job


class Given:
    family = wrapper = launcher = libcuda = None
    random = behaviour = random_nonblocking = nonblocking = memory = arguments = large = communicators = None


class Job:
    """One mpirun to its end. Communicators get their counterparts at their first blocking collective, unless settings
    have another KOLO_MPI_COMM_AFTER, or None, which is the default."""

    def __init__(self, ranks, words, settings=None, wrapper=None, bound=BOUND):
        launcher = Given.launcher
        environment = {**os.environ, **launcher.environment(), "KOLO_MPIRUN": launcher.program, "KOLO_MPI_STATISTICS": "1",
                       "KOLO_MPI_COMM_AFTER": "0", **(settings or {})}
        environment = {name: value for name, value in environment.items() if value is not None}
        command = [wrapper or Given.wrapper, *launcher.command(ranks, words)[1:]]
        begin = time.monotonic()
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=bound, check=False)
        self.seconds = time.monotonic() - begin
        self.status = done.returncode
        self.output = done.stdout.decode(errors="replace")

    def calls(self):
        """{name: (accelerated, passed on)} of rank 0."""
        line = re.search(r"calls accelerated and passed on:(.*)", self.output)
        return {name: (int(a), int(p)) for name, a, p in re.findall(r"(MPI_\w+)=(\d+),(\d+)", line.group(1))} if line else {}

    def counterparts(self):
        """How many communicators of rank 0 were given one."""
        return int(re.search(r"communicators that were given a counterpart: (\d+)", self.output).group(1))

    def memory(self):
        """(blocks of memory, registrations) of rank 0."""
        numbers = re.search(r"memory that collectives need not copy: blocks=(\d+) registrations=(\d+)", self.output)
        return tuple(map(int, numbers.groups())) if numbers else (0, 0)
