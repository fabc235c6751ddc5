"""A launcher with its ranks, as a test sees it: what it prints, how it ends, which processes belong to it."""
import itertools
import os
import re
import signal
import subprocess
import tempfile
import time

PATIENCE = 90.0  # seconds; on a busy machine with two cores a job of four ranks may take a while
LAUNCHERS = re.compile("KOLO_|OMPI_|PRTE_|PMI|MPI_LOCAL|HYDRA?_|SLURM|SALLOC|SBATCH|SRUN|RANK$|WORLD_SIZE$|LOCAL_|GROUP_|ROLE_|"
                       "MASTER_|TORCHELASTIC_|XDG_RUNTIME_DIR$|JOB_")

numbers = itertools.count(1)


def clean_environment():
    """This process's, without what a launcher above it may have left there."""
    return {name: value for name, value in os.environ.items() if not LAUNCHERS.match(name)}


def processes_with(variable):
    """Pids of processes with this "NAME=value" in their environment."""
    wanted = variable.encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.append(int(name))
        except OSError:  # gone, or another user's
            continue
    return found


def variable_of(pid, name):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            for pair in file.read().split(b"\0"):
                if pair.startswith(name.encode() + b"="):
                    return pair.split(b"=", 1)[1].decode()
    except OSError:
        pass
    return None


def program_of(pid):
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return None


def soon(condition, seconds=PATIENCE):
    """What condition() gives, as soon as that is true; its last result when the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result or time.monotonic() > deadline:
            return result
        time.sleep(0.02)


class Job:
    """One command, started at once. All that it starts has its JOB_TAG in the environment. stdin: text for the command.
    written: a file to which its ranks write instead of to its standard output."""

    def __init__(self, command, environment=None, stdin=None, written=None):
        self.tag = f"job-{os.getpid()}-{next(numbers)}"
        self.written = written
        self.output_file = tempfile.NamedTemporaryFile(prefix="output-")
        self.status = None
        self.process = subprocess.Popen(
            command, env={**clean_environment(), "JOB_TAG": self.tag, **(environment or {})},
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=self.output_file, stderr=subprocess.STDOUT, start_new_session=True)
        if stdin is not None:
            self.process.stdin.write(stdin.encode())
            self.process.stdin.close()

    def output(self):
        text = ""
        for path in (self.output_file.name, self.written):
            if path is not None and os.path.exists(path):
                with open(path, encoding="utf-8", errors="replace") as file:
                    text += file.read()
        return text

    def has_said(self, text, seconds=PATIENCE):
        """Whether it prints this before it ends."""
        soon(lambda: text in self.output() or self.process.poll() is not None, seconds)
        return text in self.output()

    def ended(self, seconds=PATIENCE):
        """The exit status; None if it had to be killed because the time was over."""
        try:
            self.status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill_all()
            self.process.wait()
        return self.status

    def processes(self, program=None):
        found = processes_with(f"JOB_TAG={self.tag}")
        return [pid for pid in found if program is None or program_of(pid) == program]

    def kill_all(self):
        for pid in {self.process.pid, *self.processes()}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
