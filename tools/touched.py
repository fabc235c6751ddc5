"""Which tests run whole: those of parts that the last commits have touched.

The tests of the table stand at the edge of the project: they wait for virtual machines, launchers and other people's programs, or try those.
What they depend on changes seldom. Where what it was some hours ago is what it is now, tools/run-tests runs a smoke of them, a minute or less: their
cases that are marked as such (tests/support/cases.py, the tag [smoke] of Catch2 programs). With --all they run whole. The hours end with
the newest commit, not now: which tests a commit gets does not depend on when they are run.

usage: touched.py TEST...   prints those of these tests that run whole
"""
import datetime
import fnmatch
import os
import subprocess
import sys

HOURS = 8  # of work on the main branch; what is merged from another counts from its merge

# Tests by their names in Meson: the folders and files that they depend on. What every test depends on, such as src/algorithms, is not named:
# other tests find faults there sooner.
TABLE = {
    "rdma-*": ["transports/ib", "src/drivers/verbs", "tests/rdma", "tools/rdma-vm"],
    "launch-*": ["src/bootstrap/launcher", "tests/launchers"],
    "network-*": ["transports/connect", "transports/tcp", "src/bootstrap", "src/network", "tests/network", "tools/namespaces"],
    "mpi-openmpi": ["src/mpi", "tests/mpi"],
    "mpi-mpich": ["src/mpi", "tests/mpi"],
    "mpi-hosts-*": ["src/mpi", "tests/mpi"],
    "mpi-wheels": ["src/mpi/loaded", "src/mpi/startup", "tools/kolo-mpirun", "tests/mpi/check_wheels.py"],
    "tinygrad": ["src/algorithms/ring", "src/algorithms/one_shot", "tests/tinygrad"],
    "torch": ["src/torch", "tests/torch", "tools/build-torch-wheel"],
    "gpu": ["src/gpu", "src/executor/cuda", "src/drivers/cuda", "src/device", "src/algorithms", "tests/gpu", "tests/mock_cuda", "tests/emulated"],
    "gpu-direct": ["src/gpu", "src/executor/cuda", "tests/gpu", "tests/mock_cuda", "tests/emulated", "tests/mock_verbs"],
    "gpu-posted": ["src/gpu", "src/executor/cuda", "tests/gpu", "tests/mock_cuda", "tests/emulated"],
    "gpu-kernels": ["src/algorithms", "src/device", "src/executor/cuda", "tests/gpu/check_kernels.py"],
    "gpu-older": ["src/executor/cuda", "src/drivers/cuda", "tests/gpu/versions_test.cc", "tests/mock_cuda"],
    "gpu-measure": ["tests/gpu/measure", "tests/gpu_probe", "tools/gpu_checks"],
    "gpu-checks": ["tests/gpu/check_gpu_checks.py", "tools/run-gpu-checks", "tools/gpu_checks"],
}


def files(root, hours=HOURS):
    """The files, but for documents, that differ from what the main branch had some hours before its newest commit. None where git does not
    know, as in a clone without the older commits: then all of them may."""
    def git(*words):
        return subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=True).stdout

    try:
        newest = datetime.datetime.fromtimestamp(int(git("log", "-1", "--format=%ct")), datetime.timezone.utc)
        until = (newest - datetime.timedelta(hours=hours)).isoformat()
        before = git("log", "-1", "--first-parent", f"--until={until}", "--format=%H").strip()
        names = git("diff", "--name-only", before).splitlines() if before else None
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None
    return None if names is None else {name for name in names if not name.endswith(".md")}


def runs_whole(test, changed, table=None):
    """Whether the test of this name runs whole: it is not in the table, or a file that it depends on is among `changed`."""
    paths = [path for pattern, paths in (TABLE if table is None else table).items() if fnmatch.fnmatch(test, pattern) for path in paths]
    return not paths or changed is None or any(name.startswith(path) for name in changed for path in paths)


if __name__ == "__main__":
    changed_files = files(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    print(*(test for test in sys.argv[1:] if runs_whole(test, changed_files)))
