"""Ranks for tests of the PyTorch backend: forked from a process that has imported torch already, which takes seconds.

The process that forks never makes a process group, nor computes in parallel, so that it has one thread only.
"""

import faulthandler
import os
import re
import select
import signal
import socket
import sys
import tempfile
import time
import traceback

# What torch imports when DDP, FSDP2 or a checkpoint is first used: more than a second of each rank's processor.
import torch._dynamo  # noqa: F401  pylint: disable=unused-import
import torch.distributed.checkpoint  # noqa: F401  pylint: disable=unused-import
import torch.distributed.pipelining  # noqa: F401  pylint: disable=unused-import

PATIENCE = 120.0  # seconds for a job of a few ranks, on a busy machine
LINGER = 30.0  # seconds that rank 0 stays for the others, at most


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Outcome:
    """How one rank ended: its exit status (negative: by a signal; None: it had to be killed), and what it printed."""

    def __init__(self, status, output, seconds):
        self.status, self.output, self.seconds = status, output, seconds

    def __repr__(self):
        return f"<{self.status} after {self.seconds:.1f} s: {self.output}>"


def _rank(function, rank, ranks, port, output, others, arguments):
    """others: a pipe whose end for writing all ranks but rank 0 have, until they end."""
    os.close(others[1 if rank == 0 else 0])
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that runs the tests in the background ignores it
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    status = 1
    try:
        function(rank, ranks, *arguments)
        if rank == 0:  # it keeps the store (group.py), which the others may not have done with
            select.select([others[0]], [], [], LINGER)
        status = 0
    except BaseException:  # pylint: disable=broad-except
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


class Job:
    """Ranks that run function(rank, ranks, *arguments), each in a process of its own."""

    def __init__(self, function, ranks, *arguments):
        self.began = time.monotonic()
        self.outputs = [tempfile.TemporaryFile() for _ in range(ranks)]
        port = free_port()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pids = []
        self.ended = {}
        others = os.pipe()
        for rank in range(ranks):
            pid = os.fork()
            if pid == 0:
                _rank(function, rank, ranks, port, self.outputs[rank], others, arguments)
            self.pids.append(pid)
        for end in others:
            os.close(end)

    def output(self, rank):
        size = os.fstat(self.outputs[rank].fileno()).st_size
        return os.pread(self.outputs[rank].fileno(), size, 0).decode(errors="replace")

    def has_said(self, rank, pattern, seconds=PATIENCE):
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.output(rank)):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def kill(self, rank, number=signal.SIGKILL):
        os.kill(self.pids[rank], number)

    def _reap(self):
        for rank, pid in enumerate(self.pids):
            if rank in self.ended:
                continue
            ended, state = os.waitpid(pid, os.WNOHANG)
            if ended:
                self.ended[rank] = Outcome(
                    os.waitstatus_to_exitcode(state), self.output(rank), time.monotonic() - self.began
                )

    def outcomes(self, seconds=PATIENCE):
        """Waits for all ranks; those that are late are killed."""
        deadline = time.monotonic() + seconds
        while len(self.ended) < len(self.pids) and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.01)
        late = [rank for rank in range(len(self.pids)) if rank not in self.ended]
        for rank in late:  # says where it is
            os.kill(self.pids[rank], signal.SIGUSR1)
        if late:
            time.sleep(1)
        for rank, pid in enumerate(self.pids):
            if rank not in self.ended:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                self.ended[rank] = Outcome(None, self.output(rank), time.monotonic() - self.began)
        return [self.ended[rank] for rank in range(len(self.pids))]


def run(test, function, ranks, *arguments, seconds=PATIENCE):
    """All ranks have to succeed. Their outputs."""
    outcomes = Job(function, ranks, *arguments).outcomes(seconds)
    failed = [
        f"rank {rank} ended with {outcome.status} after {outcome.seconds:.1f} s:\n{outcome.output}"
        for rank, outcome in enumerate(outcomes)
        if outcome.status != 0
    ]
    if failed:
        test.fail("\n".join(failed))
    return [outcome.output for outcome in outcomes]
