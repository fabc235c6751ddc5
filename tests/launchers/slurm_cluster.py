"""A Slurm of one's own: munged, slurmctld and two slurmd on this machine, with ports, keys and files that nobody else has.

Works as root and as any other user. The two nodes are this machine twice; the second has a name that does not resolve.
"""
import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from jobs import clean_environment, soon
from launchers import free_ports

DAEMONS = ["munged", "slurmctld", "slurmd"]
CLIENTS = ["srun", "sbatch", "salloc", "sinfo", "scontrol"]
START_PATIENCE = 60.0
FOLDERS = os.pathsep.join(["/usr/sbin", "/sbin"])

CONFIGURATION = """
ClusterName=kolo
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
LaunchParameters=use_interactive_step
InteractiveStepOptions="--interactive --preserve-env /bin/sh"
ReturnToService=2
KillWait=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
NodeName={host} NodeAddr=127.0.0.1 Port={first} CPUs=32
NodeName={second_host} NodeAddr=127.0.0.1 Port={second} CPUs=32
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class NotStarted(Exception):
    """Why there is no Slurm here; nothing of Kolo was tried."""


def which(program):
    return shutil.which(program) or shutil.which(program, path=FOLDERS)


def missing():
    absent = [program for program in DAEMONS + CLIENTS if which(program) is None]
    return f"{', '.join(absent)} not installed (packages slurm-wlm munge)" if absent else None


class Cluster:
    """start() makes it, environment() lets the clients find it, stop() ends it."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="slurm-")
        self.host = socket.gethostname().partition(".")[0]
        self.second_host = self.host + "-b"  # sorts behind the first
        self.daemons = []

    def environment(self):
        return {"SLURM_CONF": os.path.join(self.folder, "slurm.conf")}

    def start(self):
        self.configure()
        socket_file = os.path.join(self.folder, "munge.socket")
        self.daemon("munged", "--foreground", "--force", f"--socket={socket_file}", *self.munge_files())
        self.wait_until("munged", lambda: os.path.exists(socket_file))
        self.daemon("slurmctld", "-D", "-i")
        for host in (self.host, self.second_host):
            self.daemon("slurmd", "-D", "-N", host)
        self.wait_until("slurmctld and slurmd", self.nodes_are_idle)

    def configure(self):
        os.chmod(self.folder, 0o711)  # munged wants to see that its clients can come in
        for folder in ("state", f"spool-{self.host}", f"spool-{self.second_host}"):
            os.mkdir(os.path.join(self.folder, folder))
        with open(os.path.join(self.folder, "munge.key"), "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as key:
            key.write(os.urandom(128))
        port = free_ports(3)
        with open(self.environment()["SLURM_CONF"], "w", encoding="utf-8") as file:
            file.write(CONFIGURATION.format(folder=self.folder, host=self.host, second_host=self.second_host, port=port,
                                            first=port + 1, second=port + 2, user=getpass.getuser()))

    def munge_files(self):
        names = {"key-file": "munge.key", "pid-file": "munged.pid", "log-file": "munged.log", "seed-file": "munged.seed"}
        return [f"--{option}={self.folder}/{name}" for option, name in names.items()]

    def daemon(self, name, *arguments):
        log = os.path.join(self.folder, f"{len(self.daemons)}-{name}.log")
        with open(log, "wb") as output:
            process = subprocess.Popen([which(name), *arguments], stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=subprocess.STDOUT, env={**clean_environment(), **self.environment()})
        self.daemons.append((name, process, log))

    def nodes_are_idle(self):
        done = subprocess.run([which("sinfo"), "-h", "-N", "-o", "%t"], capture_output=True, text=True, check=False,
                              env={**clean_environment(), **self.environment()})
        return done.stdout.split() == ["idle", "idle"]

    def wait_until(self, what, condition):
        def over():
            return condition() or any(process.poll() is not None for _, process, _ in self.daemons)

        soon(over, START_PATIENCE)
        for name, process, log in self.daemons:
            if process.poll() is not None:
                raise NotStarted(f"{name} ended with status {process.returncode}: {last_line(log)}")
        if not condition():
            raise NotStarted(f"{what} not ready after {START_PATIENCE:.0f} s: {last_line(self.daemons[-1][2])}")

    def logs(self):
        """For the eyes of whoever looks for the cause of a failure."""
        text = ""
        for _, _, log in self.daemons:
            with open(log, encoding="utf-8", errors="replace") as file:
                text += f"---- {os.path.basename(log)}\n{file.read()}"
        return text

    def stop(self):
        """In the opposite order; those that do not obey are killed."""
        for _, process, _ in reversed(self.daemons):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.daemons = []


def last_line(log):
    with open(log, encoding="utf-8", errors="replace") as file:
        return (file.read().strip().splitlines() or ["it said nothing"])[-1]


def started_cluster(tries=3):
    """A running cluster; another process may take the ports between looking for them and their use."""
    for attempt in range(tries):
        cluster = Cluster()
        try:
            begin = time.monotonic()
            cluster.start()
            print(f"Slurm was ready after {time.monotonic() - begin:.1f} s")
            return cluster
        except NotStarted as reason:
            cluster.stop()
            if attempt + 1 == tries or "in use" not in str(reason):
                raise
