#!/usr/bin/env python3
"""Trains small models by each of torch's ways to divide the work, and compares with a single process.

usage: PYTHON train_by.py [RANK_VARIABLE RANKS]

For launchers that do not set torch's variables: RANK_VARIABLE is what the launcher calls a rank's number. PYTHONPATH has the
folder of kolo_torch. Rank 0 prints a line for each way.
"""

import os
import shutil
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import torch.distributed as dist
import training_cases as cases
from behaviour_cases import batches, objects
from group import kolo_group


def in_one_folder(case):
    """case(rank, count, folder) with a folder that all ranks see: their hosts share the file system."""

    def run(rank, count):
        folder = [tempfile.mkdtemp() if rank == 0 else None]
        dist.broadcast_object_list(folder, src=0)
        case(rank, count, folder[0])
        dist.barrier()
        if rank == 0:
            shutil.rmtree(folder[0])

    return run


WAYS = {
    "DDP": lambda rank, count: cases.ddp(rank, count, {}, None, 1e-4),
    "DDP with a static graph": lambda rank, count: cases.ddp(rank, count, {"static_graph": True}, None, 1e-4),
    "DDP with a hook": lambda rank, count: cases.ddp(rank, count, {}, "fp16", 0.02),
    "DDP without synchronisation": cases.ddp_without_sync,
    "DDP of sparse gradients": cases.ddp_with_sparse_gradients,
    "DDP of uneven inputs": cases.ddp_with_uneven_inputs,
    "ZeRO": cases.zero_optimizer,
    "FSDP2": lambda rank, count: cases.fsdp(rank, count, False),
    "FSDP2 in bfloat16": lambda rank, count: cases.fsdp(rank, count, True),
    "tensor parallel": cases.tensor_parallel,
    "sequence parallel": cases.sequence_parallel,
    "pipeline": cases.pipeline,
    "functional collectives": cases.functional,
    "a compiled function": lambda rank, count: cases.compiled_function(rank, count, backend="aot_eager"),
    "checkpoint": in_one_folder(cases.checkpoint),
    "asynchronous checkpoint": in_one_folder(cases.save_asynchronously),
    "objects": objects,
    "batches of messages": batches,
}


def main():
    if len(sys.argv) > 2:
        os.environ.update(RANK=os.environ[sys.argv[1]], WORLD_SIZE=sys.argv[2])
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with kolo_group():
        for name, train in WAYS.items():
            train(rank, count)
            if rank == 0:
                print(f"{name}: as a single process", flush=True)


if __name__ == "__main__":
    main()
