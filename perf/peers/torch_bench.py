"""One rank of a measurement of torch.distributed; tools/compare-torch starts them and reads what rank 0 prints.

usage: torch_bench.py BACKEND MODE SIZES TYPES COLLECTIVES, with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT in the environment

MODE is sync, async (a call, then the wait for its work), or none: a backend that does nothing, by which Python's and c10d's own
part is seen. A line "collective bytes type microseconds" for each; bytes are those of the larger buffer of one rank.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

SECONDS = 0.15  # for one sample
SAMPLES = 5


def calls(name, size, dtype, rank, ranks):
    """A function that makes one call; asynchronous: it returns the work."""
    count = max(1, size // torch.empty(0, dtype=dtype).element_size())
    part = max(1, count // ranks)
    large, small = torch.ones(part * ranks, dtype=dtype), torch.ones(part, dtype=dtype)
    other = torch.ones_like(large)
    peer = 1 - rank

    def message(is_async):
        if rank > 1:
            return None
        if is_async:
            works = [dist.irecv(other, peer), dist.isend(large, peer)]
            works[0].wait()
            return works[1]
        if rank == 0:
            dist.send(large, 1)
            dist.recv(other, 1)
        else:
            dist.recv(other, 0)
            dist.send(large, 0)
        return None

    return {
        "all_reduce": lambda is_async: dist.all_reduce(large, async_op=is_async),
        "all_gather_into_tensor": lambda is_async: dist.all_gather_into_tensor(large, small, async_op=is_async),
        "reduce_scatter_tensor": lambda is_async: dist.reduce_scatter_tensor(small, large, async_op=is_async),
        "all_to_all_single": lambda is_async: dist.all_to_all_single(other, large, async_op=is_async),
        "broadcast": lambda is_async: dist.broadcast(large, 0, async_op=is_async),
        "send_recv": message,
    }[name]


def measure(call, is_async, agree):
    """The median of the samples, microseconds a call. How many calls make a sample, rank 0 decides for all."""

    def sample(repeats):
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(repeats):
            work = call(is_async)
            if work is not None:
                work.wait()
        return (time.perf_counter() - begin) / repeats

    repeats = agree(int(min(20000, max(3, SECONDS / max(sample(5), 1e-7)))))
    times = sorted(sample(repeats) for _ in range(SAMPLES))
    return times[len(times) // 2] * 1e6


def main():
    backend, mode, sizes, types, collectives = sys.argv[1:]
    torch.set_num_threads(1)
    if backend == "kolo":
        import kolo_torch  # noqa: F401  pylint: disable=import-outside-toplevel,unused-import
    if backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore  # pylint: disable=import-outside-toplevel

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    else:
        dist.init_process_group(backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def agree(number):
        tensor = torch.tensor([number])
        dist.broadcast(tensor, 0)
        return int(tensor)

    for name in collectives.split(","):
        for type_name in types.split(","):
            for size in map(int, sizes.split(",")):
                call = calls(name, size, getattr(torch, type_name), rank, ranks)
                took = measure(call, mode == "async", agree)
                if rank == 0:
                    print(name, size, type_name, f"{took:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
