#!/usr/bin/env python3
"""Trains small models by each of torch's ways to divide the work, and compares with a single process.

usage: PYTHON train_by.py [RANK_VARIABLE RANKS]

For launchers that do not set torch's variables: RANK_VARIABLE is what the launcher calls a rank's number. PYTHONPATH has the
folder of kolo_torch. Rank 0 prints a line for each way.
"""

import os
import sys

if len(sys.argv) > 2:
    os.environ.update(RANK=os.environ[sys.argv[1]], WORLD_SIZE=sys.argv[2])

from group import kolo_group
from training_cases import ddp, fsdp, pipeline, tensor_parallel

WAYS = {
    "DDP": lambda rank, count: ddp(rank, count, {}, None, 1e-4),
    "FSDP2": lambda rank, count: fsdp(rank, count, False),
    "FSDP2 in bfloat16": lambda rank, count: fsdp(rank, count, True),
    "tensor parallel": tensor_parallel,
    "pipeline": pipeline,
}


def main():
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with kolo_group():
        for name, train in WAYS.items():
            train(rank, count)
            if rank == 0:
                print(f"{name}: as a single process", flush=True)


if __name__ == "__main__":
    main()
