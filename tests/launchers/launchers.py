"""How each launcher is called. A launcher has

    rank_variable   where a rank finds its number
    keeps_others    whether ranks go on when another one has died: then it is Kolo that has to end them
    missing()       why it cannot be tried here; None if it can
    command(n, words)       what starts n ranks of the program `words`
    environment()   what is set around that command
"""
import atexit
import random
import shutil
import socket
import subprocess
import tempfile


def program_version(program):
    """What `program --version` prints."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr
    except (OSError, subprocess.TimeoutExpired):
        return ""


def find_program(names, words):
    """The first of these programs that has one of the words in its --version; None if there is none."""
    for name in names:
        if shutil.which(name) and any(word in program_version(name) for word in words):
            return name
    return None


def free_ports(count=1):
    """The first of `count` neighbouring ports on which nobody listens now; below those that the kernel gives out itself."""
    for _ in range(1000):
        port = random.randrange(20000, 32000)
        others = []
        try:
            for each in range(port, port + count):
                others.append(socket.create_server(("", each)))
            return port
        except OSError:
            continue
        finally:
            for other in others:
                other.close()
    raise RuntimeError(f"no {count} free ports")


def is_here(host):
    """Whether this name resolves, to nothing but addresses of this machine."""
    try:
        for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind) as probe:
                probe.bind(address)
        return True
    except OSError:
        return False


class Launcher:
    rank_variable = ""
    keeps_others = False

    def missing(self):
        return None

    def environment(self):
        return {}


class Shells(Launcher):
    """A shell that starts one process for each rank. `each` is what it sets for rank $r of $n."""
    rank_variable = "KOLO_RANK"
    keeps_others = True
    each = "KOLO_RANK=$r KOLO_SIZE=$n"
    script = """
n=$1; shift
r=0; pids=
while [ $r -lt $n ]; do EACH "$@" & pids="$pids $!"; r=$((r + 1)); done
status=0
for pid in $pids; do wait $pid || status=$?; done
exit $status
"""

    def command(self, ranks, words, each=None):
        return ["/bin/sh", "-c", self.script.replace("EACH", each or self.each), "sh", str(ranks), *words]


class TorchrunEnvironment(Shells):
    """What torchrun sets, without torchrun."""
    rank_variable = "RANK"
    each = ("RANK=$r LOCAL_RANK=$r ROLE_RANK=$r GROUP_RANK=0 WORLD_SIZE=$n LOCAL_WORLD_SIZE=$n ROLE_WORLD_SIZE=$n "
            "GROUP_WORLD_SIZE=1 ROLE_NAME=default OMP_NUM_THREADS=1")

    def environment(self):
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(2)), "TORCHELASTIC_RUN_ID": "none",
                "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0"}


class Torchrun(Launcher):
    rank_variable = "RANK"

    def missing(self):
        return None if shutil.which("torchrun") else "there is no torchrun on PATH"

    def command(self, ranks, words):
        return ["torchrun", "--no-python", f"--nproc-per-node={ranks}", f"--master-port={free_ports(2)}", *words]


class OpenMpi(Launcher):
    rank_variable = "OMPI_COMM_WORLD_RANK"

    def __init__(self):
        self.program = find_program(["mpirun.openmpi", "mpirun"], ["OpenRTE", "Open MPI"])

    def missing(self):
        return None if self.program else "Open MPI's mpirun is not installed (package openmpi-bin)"

    def environment(self):
        """Each job has a folder of its own: of two that make ompi.HOST.UID in one folder at once, one fails with "File exists"."""
        names = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "PRTE_ALLOW_RUN_AS_ROOT",
                 "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"]
        folder = tempfile.mkdtemp(prefix="ompi-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        bases = ["OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base"]  # of Open MPI 4 and 5
        return {**{name: "1" for name in names}, **{name: folder for name in bases}}

    def command(self, ranks, words, options=()):
        return [self.program, "--oversubscribe", *options, "-n", str(ranks), *words]

    def over_hosts(self, hosts, shell, slots):
        return ["--mca", "plm_rsh_agent", shell, "--host", ",".join(f"{host}:{slots}" for host in hosts)]


class Mpich(Launcher):
    rank_variable = "PMI_RANK"

    def __init__(self):
        self.program = find_program(["mpirun.mpich", "mpiexec.hydra", "mpirun"], ["HYDRA"])

    def missing(self):
        return None if self.program else "MPICH's mpirun is not installed (package mpich)"

    def command(self, ranks, words, options=()):
        return [self.program, *options, "-n", str(ranks), *words]

    def environment(self):
        """Ports of its own for each job, below those that the system gives to others: mpiexec ends if a rank of another test says something
        to it that looks for one that has gone, and of two that try the same port at once one says "listen error (Invalid argument)"."""
        first = free_ports(16)
        return {"MPIEXEC_PORT_RANGE": f"{first}:{first + 15}"}

    def over_hosts(self, hosts, shell, slots):
        return ["-launcher", "ssh", "-launcher-exec", shell, "-hosts", ",".join(f"{host}:{slots}" for host in hosts)]
