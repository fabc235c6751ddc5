"""Runs a test so that nothing of it stays: no process, however far it has detached itself, and no file.

Three processes: the one that was started only waits; if it goes, by whatever signal, the guard ends everything. The guard
adopts all orphans below it (PR_SET_CHILD_SUBREAPER), so that daemons and their children stay in its reach. The worker is its
child and does the work.
"""
import ctypes
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE = 15.0  # seconds that what was told to end may take for it

LIBC = ctypes.CDLL(None, use_errno=True)


def parents():
    """{pid: pid of its parent} of all processes; zombies, which hold nothing any more, left out."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] not in "ZX":
            found[int(name)] = int(fields[1])
    return found


def descendants(pid):
    known = parents()
    below = {pid}
    while True:
        more = {child for child, parent in known.items() if parent in below} - below
        if not more:
            return below - {pid}
        below |= more


def describe(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
        return f"{pid} ({b' '.join(words).decode(errors='replace').strip()})"
    except OSError:
        return str(pid)


def reap():
    """Ends of children that nobody waits for."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] > 0:
            pass
    except ChildProcessError:
        pass


def end_all():
    """Kills everything below this process, also what is started meanwhile."""
    deadline = time.monotonic() + GRACE
    while time.monotonic() < deadline:
        below = descendants(os.getpid())
        if not below:
            return
        for pid in below:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        reap()
        time.sleep(0.01)


def left_behind():
    """What is still there some time after the worker's end."""
    deadline = time.monotonic() + GRACE
    while True:
        reap()
        below = descendants(os.getpid())
        if not below or time.monotonic() > deadline:
            return below
        time.sleep(0.02)


def wait_for(pid):
    """The exit status of this child, as a shell would have it; other children are reaped meanwhile."""
    while True:
        ended, state = os.waitpid(-1, 0)
        if ended == pid:
            code = os.waitstatus_to_exitcode(state)
            return code if code >= 0 else 128 - code


def leave_with(function):
    """Ends this process with the exit status that the function returns."""
    status = 1
    try:
        status = function()
    except BaseException:  # pylint: disable=broad-except
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def work_in(folder, work):
    """The worker. Does not return."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ["TMPDIR"] = folder
    tempfile.tempdir = None
    leave_with(work)


def guard(work, starter):
    """In the guard. Its exit status."""
    os.setsid()
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    folder = tempfile.mkdtemp(prefix="kolo-launch-")

    def give_up(*_):
        end_all()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    signal.signal(signal.SIGTERM, give_up)
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != starter:  # it went before the line above
        give_up()
    worker = os.fork()
    if worker == 0:
        work_in(folder, work)
    status = wait_for(worker)
    left = left_behind()
    if left:
        print("left behind: " + ", ".join(describe(pid) for pid in sorted(left)))
        status = status or 1
    end_all()
    shutil.rmtree(folder, ignore_errors=True)
    return status


def run_guarded(work):
    """work() -> exit status, in a process of its own, with TMPDIR at a new folder. Returns the exit status."""
    sys.stdout.flush()
    starter = os.getpid()
    child = os.fork()
    if child == 0:
        leave_with(lambda: guard(work, starter))
    return wait_for(child)
