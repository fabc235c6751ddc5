"""A rank that fails in the middle of a step, of each of torch's ways to divide the work: every survivor's error names it, all end,
and nothing is left behind. Without KOLO_TEST_ALL in the environment: each way with a rank that is killed, and DDP with the others."""

import glob
import os
import signal
import time
import unittest

import torch
import torch.distributed as dist
from torch import nn

import ranks
import stops
from group import kolo_group
from training_cases import BATCH, WIDTH, data_of, model_of, sharded

COUNT, CULPRIT, GOOD_STEPS = 3, 1, 2
EVERY = "KOLO_TEST_ALL" in os.environ
SILENCE = 3.0  # seconds that a group waits for a rank that says nothing


def ddp_step(rank):
    model = nn.parallel.DistributedDataParallel(model_of(), bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number):
        inputs, targets = data_of(number)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs.chunk(COUNT)[rank]), targets.chunk(COUNT)[rank]).backward()
        optimizer.step()

    return step, model.module[2]


def fsdp_step(rank):
    model = sharded(COUNT)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number):
        inputs, targets = data_of(number)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs.chunk(COUNT)[rank]), targets.chunk(COUNT)[rank]).backward()
        optimizer.step()

    return step, model[2]


def pipeline_step(rank):
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe  # pylint: disable=import-outside-toplevel

    torch.manual_seed(rank)
    layer = nn.Linear(WIDTH, WIDTH)
    stage = PipelineStage(layer, rank, COUNT, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)

    def step(number):
        if rank == 0:
            schedule.step(data_of(number)[0])
        elif rank == COUNT - 1:
            schedule.step(target=torch.zeros(BATCH, WIDTH))
        else:
            schedule.step()

    return step, layer


WAYS = {"DDP": ddp_step, "FSDP2": fsdp_step, "pipeline": pipeline_step}


def fail(fault, way):
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stopped":
        stops.stop(os.getpid())
    elif fault == "aborted":
        dist.distributed_c10d._abort_process_group()  # pylint: disable=protected-access
    elif way == "pipeline":  # a message of another size than the one that is expected
        dist.send(torch.zeros(7), CULPRIT + 1)
    else:
        dist.all_reduce(torch.zeros(7))


def train(rank, _, way, fault):
    with kolo_group(SILENCE if fault == "stopped" else 60):
        step, layer = WAYS[way](rank)
        failing = []
        if rank == CULPRIT:  # when the layer is gone through backwards, in the middle of the step
            layer.register_full_backward_pre_hook(lambda *_: fail(fault, way) if failing and failing.pop() else None)
        for number in range(GOOD_STEPS):
            step(number)
        print("trained", flush=True)
        failing.append(True)
        for number in range(GOOD_STEPS, GOOD_STEPS + 3):
            step(number)
        print("nothing went wrong", flush=True)


class Failure(unittest.TestCase):
    def check(self, way, fault, *words):
        before = set(glob.glob("/dev/shm/kolo*"))
        job = ranks.Job(train, COUNT, way, fault)
        survivors = [rank for rank in range(COUNT) if rank != CULPRIT]
        for rank in range(COUNT):
            self.assertTrue(job.has_said(rank, "trained"), job.output(rank))
        if fault == "stopped":
            deadline = time.monotonic() + ranks.PATIENCE
            while time.monotonic() < deadline and not all("Error" in job.output(rank) for rank in survivors):
                time.sleep(0.05)
            job.kill(CULPRIT)
        outcomes = job.outcomes()
        for rank in survivors:
            output = outcomes[rank].output
            self.assertEqual(outcomes[rank].status, 1, f"rank {rank}: {output}")
            self.assertIn("DistBackendError", output, f"rank {rank}")
            self.assertIn(f"rank {CULPRIT}", output, f"rank {rank}")
            for word in words:
                self.assertIn(word, output, f"rank {rank}")
            if way == "pipeline" and fault == "mismatches" and rank == CULPRIT + 1:  # who was sent the wrong message
                self.assertRegex(output, rf"rank {CULPRIT} sent 7 elements.*the tensor has {BATCH // 4 * WIDTH}", f"rank {rank}")
        self.assertEqual(set(glob.glob("/dev/shm/kolo*")) - before, set())


def add(way, fault, *words):
    name = f"test_{way.lower()}_with_a_rank_that_{fault}".replace("rank_that_mismatches", "call_that_mismatches")
    test = lambda self: self.check(way, fault.split("_")[-1], *words)  # pylint: disable=unnecessary-lambda-assignment
    if not (EVERY or way == "DDP" or fault == "is_killed"):
        test = unittest.skip("part of tools/run-tests --all")(test)
    setattr(Failure, name, test)


for each in WAYS:
    add(each, "is_killed", "died")
    add(each, "is_stopped")
    add(each, "is_aborted", "koloCommAbort")
    add(each, "mismatches", *([] if each == "pipeline" else ["count 7"]))
