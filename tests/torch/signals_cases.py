"""Signals that come while a rank waits: Python's handlers run, and what they raise ends the wait and the group."""

import datetime
import os
import signal
import sys
import time
import unittest

import torch
import torch.distributed as dist

import ranks
from cases import smoke
from group import STORES, expect_error, hear, kolo_group, say

GROUP = 600.0  # seconds that the groups wait for a rank


def reduce_now():
    dist.all_reduce(torch.zeros(100))


def wait_for_work():
    dist.all_reduce(torch.zeros(100), async_op=True).wait()


def receive():
    dist.recv(torch.zeros(100), 1)


def receive_later():
    dist.irecv(torch.zeros(100), 1).wait(datetime.timedelta(seconds=GROUP))


def end_the_group():
    dist.isend(torch.zeros(1_000_000), 1)
    dist.destroy_process_group()


WAITS = {
    "all_reduce": reduce_now,
    "work": wait_for_work,
    "recv": receive,
    "irecv": receive_later,
    "barrier": dist.barrier,
    "monitored_barrier": dist.monitored_barrier,
    "destroy": end_the_group,
}


def is_interrupted(rank, _, what):
    """Rank 0 waits for rank 1, which stays away until rank 0 has given up, and then hears why."""
    with kolo_group(GROUP):
        dist.barrier()
        if rank == 0:
            print("waits", flush=True)
            try:
                WAITS[what]()
            except KeyboardInterrupt:
                say("interrupted")
                if what != "destroy":
                    expect_error(dist.barrier, "KeyboardInterrupt")
                return
            raise AssertionError("no KeyboardInterrupt came")
        hear("interrupted", ranks.PATIENCE)
        expect_error(lambda: dist.recv(torch.zeros(100), 0), "rank 0", "KeyboardInterrupt")


def is_interrupted_alone(rank, _):
    """In a group that the others have not come to make."""
    with kolo_group(GROUP):
        if rank == 0:
            print("waits", flush=True)
            try:
                dist.new_group([0, 1])
            except KeyboardInterrupt:
                say("interrupted")
                return
            raise AssertionError("no KeyboardInterrupt came")
        hear("interrupted", ranks.PATIENCE)


def goes_on(rank, _, asynchronous):
    """The handler of a signal that comes in a wait runs at once, and the wait goes on."""
    with kolo_group(GROUP):
        if rank == 0:
            signal.signal(signal.SIGUSR2, lambda *_: say("handled"))
            dist.barrier()
            print("waits", flush=True)
        else:
            dist.barrier()
            hear("handled", ranks.PATIENCE)
        tensor = torch.ones(100)
        work = dist.all_reduce(tensor, async_op=asynchronous)
        if asynchronous:
            work.wait()
        assert tensor[0] == 2


def ends_in_its_handler(rank, _):
    """A handler ends the group, whose wait it is called in, and the program."""
    with kolo_group(GROUP):
        if rank == 0:

            def end(*_):
                dist.destroy_process_group()
                STORES[-1].set("ended", "said")
                sys.exit(3)

            signal.signal(signal.SIGTERM, end)
            dist.barrier()
            print("waits", flush=True)
            try:
                reduce_now()
            except SystemExit as ended:
                assert ended.code == 3
                return
            raise AssertionError("the handler did not end it")
        dist.barrier()
        hear("ended", ranks.PATIENCE)
        expect_error(lambda: dist.recv(torch.zeros(100), 0), "rank 0", "SystemExit")


class Signals(unittest.TestCase):
    def send(self, job, number):
        self.assertTrue(job.has_said(0, "waits"), job.output(0))
        time.sleep(0.3)  # it is most likely to wait by then; an earlier signal is Python's own affair
        sent = time.monotonic()
        job.kill(0, number)
        outcomes = job.outcomes()
        self.assertEqual([outcome.status for outcome in outcomes], [0] * len(outcomes), outcomes)
        return time.monotonic() - sent

    def check(self, function, *arguments):
        self.assertLess(self.send(ranks.Job(function, 2, *arguments), signal.SIGINT), ranks.PATIENCE / 2)

    def test_keyboard_interrupt_in_a_group_that_forms(self):
        self.check(is_interrupted_alone)

    @smoke
    def test_a_handler_runs_while_a_call_waits(self):
        self.send(ranks.Job(goes_on, 2, False), signal.SIGUSR2)

    def test_a_handler_runs_while_a_work_is_waited_for(self):
        self.send(ranks.Job(goes_on, 2, True), signal.SIGUSR2)

    def test_a_handler_ends_the_group(self):
        self.send(ranks.Job(ends_in_its_handler, 2), signal.SIGTERM)


def add(what):
    test = lambda self: self.check(is_interrupted, what)  # pylint: disable=unnecessary-lambda-assignment
    setattr(Signals, f"test_keyboard_interrupt_in_{what}", smoke(test) if what == "all_reduce" else test)


for each in WAITS:
    add(each)
