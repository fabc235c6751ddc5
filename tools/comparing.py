"""What the comparisons with other libraries have in common: compare-peers, compare-network, compare-mpi."""
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys

from gpu_checks.source import commit

TOP = pathlib.Path(__file__).resolve().parent.parent
MOST_ATTEMPTS = 6  # for a pair of runs on a machine that changes
STEADY = 1.3  # readings of the exchange that differ by less are of one machine
PACKAGES = {"openmpi": ["libopenmpi-dev", "openmpi-bin"], "mpich": ["libmpich-dev", "mpich"]}


def fail(message):
    sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {message}")


def parse_bytes(text):
    unit = text[-1:].upper()
    shift = {"K": 10, "M": 20, "G": 30}.get(unit, 0)
    try:
        return int(float(text[:-1] if shift else text) * (1 << shift))
    except ValueError:
        fail(f'"{text}" is not a size such as 8, 2K or 32M')


def format_bytes(size):
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:g} {unit}"
        size /= 1024
    return f"{size:g} GiB"


def run(command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, **options)
    if done.returncode != 0:
        sys.stderr.write(done.stdout)
        fail(f"exit status {done.returncode} from: {shlex.join(map(str, command))}")
    return done.stdout


def install(peer):
    if not (shutil.which(f"mpicc.{peer}") and shutil.which(f"mpirun.{peer}")):
        install_packages(peer, PACKAGES[peer])


def install_packages(what, packages):
    command = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    if os.geteuid() != 0:
        sudo = ["sudo", "-n"]
        if not shutil.which("sudo") or subprocess.run([*sudo, "true"], stderr=subprocess.DEVNULL).returncode != 0:
            fail(f"{what} is not installed; run:  sudo {shlex.join(command)}")
        command = sudo + command
    if not shutil.which("apt-get"):
        fail(f"{what} is not installed, and there is no apt-get to install {' '.join(packages)} with")
    print(f"# installing {' '.join(packages)}", flush=True)
    run(command)


def cores():
    """The sets of hardware threads, one for each physical core that we may run on."""
    found = set()
    for cpu in os.sched_getaffinity(0):
        siblings = pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        found.add(siblings.read_text().strip() if siblings.exists() else str(cpu))
    return found


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def kernel():
    return platform.release().partition("-")[0]


def typed():
    """The command that was typed, with DIR for a folder, and for a file its name alone."""
    words = ["DIR" if os.path.isdir(word) else os.path.basename(word) if os.path.isfile(word) else word for word in sys.argv[1:]]
    return shlex.join([str(pathlib.Path(sys.argv[0]).resolve().relative_to(TOP)), *words])


def head(title, command, machine=None):
    """The first lines of a table, in the form that tests/style/check_results.py asks of those that are kept."""
    machine = machine or f"{processor()}, {len(cores())} cores, Linux {kernel()}"
    return f"# {title}\n# command: {command}\n# machine: {machine}\n# commit: {commit()}"


def launcher(peer, ranks):
    fits = ranks <= len(cores())
    if peer == "openmpi":
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        placing = ["--map-by", "core", "--bind-to", "core"] if fits else ["--oversubscribe", "--bind-to", "none"]
        return ["mpirun.openmpi", *root, *placing, "-np", str(ranks)]
    return ["mpirun.mpich", *(["-bind-to", "core"] if fits else []), "-np", str(ranks)]


def build_mpi(peer, folder):
    program = folder / f"mpi_bench.{peer}"
    run([f"mpicc.{peer}", "-std=c99", "-D_POSIX_C_SOURCE=200112L", "-O2", "-o", program,
         TOP / "perf" / "peers" / "mpi_bench.c"])
    return program


def build_kolo():
    subprocess.run(["bash", "-c", '. "$1/tools/setup.sh"; kolo_setup', "setup", str(TOP)], check=True)
    return str(TOP / "build" / "perf" / "kolo-perf")


def version_of(peer):
    if peer == "openmpi":
        return "Open MPI " + run(["mpirun.openmpi", "--version"]).split("\n")[0].split()[-1]
    lines = [line.split(":", 1)[1].strip() for line in run(["mpichversion"]).splitlines() if "Version" in line]
    return f"MPICH {lines[0]}" if lines else "MPICH"


class Limits:
    """What the machine allows, read again and again: a cache line's exchange (ns), copying (GB/s a core), an all-gather of 128 KiB (us)."""

    def __init__(self, folder, attempts=MOST_ATTEMPTS):
        """attempts: how often a pair of runs is made at most."""
        self.attempts = attempts
        self.program = folder / "limits"
        run(["cc", "-std=gnu11", "-O2", "-o", self.program, TOP / "perf" / "peers" / "limits.c"])
        firsts = sorted(int(siblings.replace("-", ",").split(",")[0]) for siblings in cores())
        self.cores = [str(core) for core in firsts[:2]]
        self.exchanges, self.copies, self.gathers = [], [], []

    def read(self):
        """The exchange now; None on one core."""
        if len(self.cores) < 2:
            return None
        exchange, copy, gather = map(float, run([self.program, *self.cores]).split())
        self.exchanges.append(exchange)
        self.copies.append(copy)
        self.gathers.append(gather)
        return exchange

    def pair(self, first, second):
        """What the two give, run one after the other on a machine that stayed as it was, if that can be had."""
        for attempt in range(1, self.attempts + 1):
            before, one = self.exchanges[-1] if self.exchanges else self.read(), first()
            between, other = self.read(), second()
            readings = [before, between, self.read()]
            if None in readings or max(readings) < STEADY * min(readings) or attempt == self.attempts:
                return one, other

    def text(self):
        if not self.exchanges:
            return "one core"
        return (f"a cache line's exchange {min(self.exchanges):.0f} to {max(self.exchanges):.0f} ns, copying 32 MiB "
                f"{min(self.copies):.1f} to {max(self.copies):.1f} GB/s on each of two cores at once"
                + (f", an all-gather of 128 KiB of ordinary memory by hand, one copy of each block, {min(self.gathers):.1f} to "
                   f"{max(self.gathers):.1f} us" if min(self.gathers) > 0 else ""))
