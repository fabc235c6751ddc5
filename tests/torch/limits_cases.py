"""What the backend takes of the process: threads, requests, and what happens where there are none."""

import ctypes
import gc
import os
import time
import unittest

import torch
import torch.distributed as dist

import ranks
from cases import smoke
from group import expect_equal, expect_error, hear, kolo_group, say

MOST_THREADS = 65  # of futures (callbacks.h): 64 that are completed side by side, and one that sees that nothing goes on


def thread_count(name):
    """Threads of this process that have this name."""
    count = 0
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm", encoding="utf-8") as file:
                count += file.read().strip() == name
        except OSError:  # it has just ended
            pass
    return count


def await_no_threads(seconds=30.0):
    deadline = time.monotonic() + seconds
    while thread_count("kolo-futures") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert thread_count("kolo-futures") == 0, f"{thread_count('kolo-futures')} threads are left"


def burst(_, count):
    with kolo_group():
        tensors = [torch.ones(10) for _ in range(2000)]
        done = []
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        futures = [work.get_future().then(lambda _: done.append(1)) for work in works]
        most = thread_count("kolo-futures")
        for future in futures:
            future.wait()
            most = max(most, thread_count("kolo-futures"))
        assert len(done) == len(tensors)
        assert 0 < most <= MOST_THREADS, most
        for tensor in tensors:
            expect_equal(tensor, float(count))
    await_no_threads()
    with kolo_group():  # they come again
        dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()
        dist.destroy_process_group()
    await_no_threads()


def continuations_wait(rank, count):
    """More continuations than futures are completed side by side, each waiting for a future that comes behind them all."""
    turns = 20
    with kolo_group():
        tensors = [torch.ones(1) for _ in range(2 * turns)]
        if rank == 0:
            hear("all are attached")
            for tensor in tensors:
                dist.all_reduce(tensor)
        else:
            futures = [dist.all_reduce(tensor, async_op=True).get_future() for tensor in tensors]
            pairs = zip(futures[:turns], futures[turns:])
            outer = [first.then(lambda _, last=last: last.wait()) for first, last in pairs]
            say("all are attached")
            for future in outer:
                future.wait()
        for tensor in tensors:
            expect_equal(tensor, float(count))


class NoThreads:
    """In its scope no thread can be started: each is to have more memory for its stack than there are addresses."""

    def __init__(self):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.usual, self.huge = (ctypes.create_string_buffer(256) for _ in range(2))
        assert self.libc.pthread_getattr_default_np(self.usual) == 0
        assert self.libc.pthread_getattr_default_np(self.huge) == 0
        assert self.libc.pthread_attr_setstacksize(self.huge, ctypes.c_size_t(1 << 47)) == 0

    def __enter__(self):
        assert self.libc.pthread_setattr_default_np(self.huge) == 0

    def __exit__(self, *_):
        assert self.libc.pthread_setattr_default_np(self.usual) == 0


def without_threads(rank, count):
    """A future is refused with words, and a work that is dropped goes on."""
    with kolo_group():
        dist.barrier()
        first, second = torch.ones(10), torch.zeros(20)[::2]  # the second one is copied at the end
        if rank == 0:
            work = dist.all_reduce(first, async_op=True)
            dropped = dist.irecv(second, 1)
            with NoThreads():
                expect_error(work.get_future, "a thread", "ulimit -u")
                del dropped
            work.get_future()
            say("refused")
        else:
            hear("refused")
            dist.send(torch.ones(10), 0)
            work = dist.all_reduce(first, async_op=True)
        work.wait()
        expect_equal(first, float(count))
        deadline = time.monotonic() + ranks.PATIENCE / 2
        while rank == 0 and second[0] != 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        if rank == 0:
            expect_equal(second, 1.0)


def mappings():
    with open("/proc/self/maps", encoding="utf-8") as file:
        return sum("/memfd:kolo " in line for line in file)


def use_windows():
    import kolo_torch  # pylint: disable=import-outside-toplevel,import-error

    options = kolo_torch.Options()
    options.windows = True
    with kolo_group(pg_options=options) as group:
        backend = group._get_backend(torch.device("cpu"))
        tensor = backend.allocate_tensor(1000, dtype=torch.float32, device=torch.device("cpu")).fill_(1)
        dist.all_reduce(tensor)
        assert mappings() > 0
    return tensor


def memory_of_windows(_, count):
    """It goes with the last group and the last tensor, and comes again."""
    for _ in range(2):
        tensor = use_windows()
        gc.collect()
        expect_equal(tensor, float(count))
        assert mappings() > 0
        del tensor
        assert mappings() == 0


def many_receives(rank, _):
    with kolo_group():
        count = 20_000
        if rank == 0:
            tensors = torch.zeros(count)
            works = [dist.irecv(tensor, 1) for tensor in tensors.split(1)]
            dist.barrier()
            for work in works:
                work.wait()
            expect_equal(tensors, torch.arange(float(count)))
        else:
            dist.barrier()
            for number in torch.arange(float(count)).split(1):
                dist.send(number, 0)


class Limits(unittest.TestCase):
    @smoke
    def test_a_burst_of_futures_takes_few_threads_which_end(self):
        ranks.run(self, burst, 2)

    def test_continuations_that_wait_for_each_other(self):
        ranks.run(self, continuations_wait, 2)

    def test_without_threads(self):
        ranks.run(self, without_threads, 2)

    def test_memory_of_windows_goes(self):
        ranks.run(self, memory_of_windows, 2)

    def test_more_receives_than_a_table_begins_with(self):
        ranks.run(self, many_receives, 2)
