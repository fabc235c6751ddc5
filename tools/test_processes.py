"""Processes of tests: starting one with all that it starts, ending it, and disturbing all of them."""
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "tests", "support"))

import guard
import stops


def run(command, environment, workdir, timeout):
    """Exit status (None: timed out), output, seconds of processor time. A program that runs out of time goes with all that it started."""
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen(command, env=environment, cwd=workdir, stdin=subprocess.DEVNULL, stdout=output,
                              stderr=subprocess.STDOUT, start_new_session=True) as process:
            try:
                ended = ends_within(process, timeout)
            finally:
                end_session(process)
            status, used = reap(process)
        output.seek(0)
        return status if ended else None, output.read().decode(errors="replace"), used


def ends_within(process, timeout):
    descriptor = os.pidfd_open(process.pid)
    try:
        return bool(select.select([descriptor], [], [], timeout)[0])
    finally:
        os.close(descriptor)


def reap(process):
    """Exit status, seconds of processor time of the process and of its descendants that have been waited for."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime


def end_session(process):
    """What a test left running must not disturb the next one."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Disturbance:
    """Makes the machine busy while it lasts: a process for each core that calculates, and one thread that stops a process of the tests at
    random, and continues it up to 300 ms later, unless its test has stopped it meanwhile (tests/support/stops.h)."""

    LONGEST_STOP = 0.3  # seconds
    LONGEST_PAUSE = 0.1  # between two stops

    def __init__(self, seed):
        self._random = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._stop_and_continue, daemon=True)
        self._burners = []
        self._own = tempfile.TemporaryDirectory()
        self._held = ""  # the folder that names the processes that tests have stopped, one for runs within runs
        self.stops = 0

    def __enter__(self):
        self._held = os.environ.setdefault(stops.FOLDER, self._own.name)
        burn = [sys.executable, "-c", "while True: pass"]
        self._burners = [subprocess.Popen(burn, stdin=subprocess.DEVNULL) for _ in range(os.cpu_count() or 1)]
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()
        for burner in self._burners:
            burner.kill()
            burner.wait()
        if self._held == self._own.name:
            del os.environ[stops.FOLDER]
        self._own.cleanup()

    def _stop_and_continue(self):
        spared = {burner.pid for burner in self._burners}
        while not self._over.wait(self._random.uniform(0, self.LONGEST_PAUSE)):
            tests = sorted(pid for pid in guard.descendants(os.getpid()) - spared if not self._is_held(pid))
            if not tests:
                continue
            chosen = self._random.choice(tests)
            if send(chosen, signal.SIGSTOP):
                self.stops += 1
                time.sleep(self._random.uniform(0, self.LONGEST_STOP))
                if not self._is_held(chosen):
                    send(chosen, signal.SIGCONT)
                if self._is_held(chosen):  # since that look, too: its test has stopped it once, and does not do it again
                    send(chosen, signal.SIGSTOP)

    def _is_held(self, pid):
        """By the number that the process has where its test sees it: tests make PID namespaces of their own."""
        try:
            with open(f"/proc/{pid}/status", encoding="utf-8") as file:
                number = next(line.split()[-1] for line in file if line.startswith("NSpid:"))
        except (OSError, StopIteration):
            return False
        return os.path.exists(os.path.join(self._held, number))


def send(pid, number):
    """Whether there was such a process."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
