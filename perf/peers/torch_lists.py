"""One rank of a measurement of coalesced calls; tools/compare-torch starts them and reads what rank 0 prints.

usage: torch_lists.py BACKEND COLLECTIVES MODELS, with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT in the environment

COLLECTIVES are all_reduce, all_gather and reduce_scatter, by commas. MODELS are resnet50 and layer (a transformer's, an eighth as
wide), of perf/parameter_lists.py. A line "collective model way microseconds" for each, where a way is how all the model's tensors
are communicated:

list     one coalesced call, which Kolo makes a list
group    calls between start and end of coalescing, which Kolo makes a group; Gloo has none
singles  a call for each tensor
flat     one call with a flat tensor, into which and out of which the others are copied
"""

import os
import pathlib
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist

import parameter_lists

SAMPLES, SECONDS = 5, 0.4  # of each way


def tensors_of(model):
    """Elements and type."""
    if model == "resnet50":
        return parameter_lists.resnet50(), torch.float32
    return parameter_lists.transformer(4096 // 8, 11008 // 8), torch.bfloat16


class Tensors:
    """The tensors of a model: whole, and this rank's parts of them."""

    def __init__(self, collective, model):
        self.collective, self.ranks = collective, dist.get_world_size()
        counts, dtype = tensors_of(model)
        parts = [-(-count // self.ranks) for count in counts]
        self.whole = [torch.ones(part * self.ranks, dtype=dtype) for part in parts]
        self.part = [torch.ones(part, dtype=dtype) for part in parts]
        self.flat_whole = torch.ones(sum(parts) * self.ranks, dtype=dtype)
        self.flat_part = torch.ones(sum(parts), dtype=dtype)
        self.parts_in_part = self.flat_part.split(parts)
        # Of each rank's block the part of each tensor, and the same of each tensor itself.
        self.parts_in_whole = [
            each for block in self.flat_whole.split(sum(parts)) for each in block.split(parts)
        ]
        self.parts_of_each = [tensor.chunk(self.ranks)[rank] for rank in range(self.ranks) for tensor in self.whole]

    def call(self, whole, part):
        """One call."""
        if self.collective == "all_reduce":
            dist.all_reduce(whole)
        elif self.collective == "all_gather":
            dist.all_gather_into_tensor(whole, part)
        else:
            dist.reduce_scatter_tensor(part, whole)

    def singles(self):
        for whole, part in zip(self.whole, self.part):
            self.call(whole, part)

    def list(self):
        with dist._coalescing_manager():  # pylint: disable=protected-access
            self.singles()

    def group(self):
        device = torch.device("cpu")
        with dist._coalescing_manager(device=device, async_ops=True) as manager:  # pylint: disable=protected-access
            self.singles()
        manager.wait()

    def flat(self):
        if self.collective == "all_gather":
            torch._foreach_copy_(self.parts_in_part, self.part)  # pylint: disable=protected-access
        else:
            torch._foreach_copy_(self.parts_in_whole, self.parts_of_each)  # pylint: disable=protected-access
        self.call(self.flat_whole, self.flat_part)
        if self.collective == "reduce_scatter":
            torch._foreach_copy_(self.part, self.parts_in_part)  # pylint: disable=protected-access
        else:
            torch._foreach_copy_(self.parts_of_each, self.parts_in_whole)  # pylint: disable=protected-access


WAYS = ["list", "group", "singles", "flat"]


def measure(ways, agree):
    """The medians, microseconds. The ways take turns, so that what a machine does meanwhile concerns all."""

    def once(way):
        dist.barrier()
        begin = time.perf_counter()
        way()
        return time.perf_counter() - begin

    for way in ways:
        once(way)
    repeats = agree(int(min(500, max(SAMPLES, SECONDS / max(once(ways[-1]), 1e-6)))))
    times = [sorted(turn) for turn in zip(*([once(way) for way in ways] for _ in range(repeats)))]
    return [each[repeats // 2] * 1e6 for each in times]


def main():
    backend, collectives, models = sys.argv[1:]
    torch.set_num_threads(1)
    if backend == "kolo":
        import kolo_torch  # noqa: F401  pylint: disable=import-outside-toplevel,unused-import
    dist.init_process_group(backend)

    def agree(number):
        tensor = torch.tensor([number])
        dist.broadcast(tensor, 0)
        return int(tensor)

    with torch.no_grad():
        for collective in collectives.split(","):
            for model in models.split(","):
                tensors = Tensors(collective, model)
                ways = WAYS if backend == "kolo" else ["singles", "flat"]
                took = measure([getattr(tensors, way) for way in ways], agree)
                for way, microseconds in zip(ways, took):
                    if dist.get_rank() == 0:
                        print(collective, model, way, f"{microseconds:.1f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
