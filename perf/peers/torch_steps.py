"""One rank that trains or decodes; tools/compare-torch --steps starts them and reads what rank 0 prints.

usage: torch_steps.py BACKEND STEP..., with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT in the environment

BACKEND is gloo, kolo, kolo-windows (memory of the group's own, in windows, for those steps whose buffers torch allocates there),
kolo-lists (fsdp2 by kolo_torch.fsdp.use_lists), or nothing, whose operations are over at once (steps of DDP and others not in one run). A line "step milliseconds" for each step, the median:

ddp         a step of 96 x Linear(512, 512), 25.2 million parameters, batch 4, under DistributedDataParallel, with SGD
ddp-view    the same with gradient_as_bucket_view
ddp-alone   the all_reduces of a step of ddp alone, of buckets of the same sizes: what there is to overlap with the backward pass
fsdp2       the same model under fully_shard, in groups of 8 layers
decode-N    a token of 8 layers divided by tensor parallelism: bfloat16, 16 all_reduce of N elements each
new-group   a group of all ranks is made, and the one before it destroyed
wait-recv   rank 0 waits a second for a message: the milliseconds of processor that its process takes; wait-sum: in an all_reduce
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

LAYERS, WIDTH, BATCH = 96, 512, 4
DECODE_LAYERS, HIDDEN = 8, 1024
SECONDS, LEAST = 6.0, 15  # of measuring a step


def model():
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def training(network):
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    inputs = torch.randn(BATCH, WIDTH)

    def step():
        optimizer.zero_grad()
        network(inputs).sum().backward()
        optimizer.step()

    return step


def ddp(**how):
    return training(nn.parallel.DistributedDataParallel(model(), **how))


def ddp_alone():
    network = nn.parallel.DistributedDataParallel(model())
    step_of_ddp = training(network)
    for _ in range(3):  # DDP makes its buckets anew in the second one
        step_of_ddp()
    sizes = network._get_ddp_logging_data()["bucket_sizes"]  # pylint: disable=protected-access
    buckets = [torch.zeros(int(size) // 4) for size in sizes.split(",")]

    def step():
        for work in [dist.all_reduce(bucket, async_op=True) for bucket in buckets]:
            work.wait()

    return step


def fsdp2(backend):
    from torch.distributed.fsdp import fully_shard  # pylint: disable=import-outside-toplevel

    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    layers = list(model())
    network = nn.Sequential(*(nn.Sequential(*layers[i : i + 8]) for i in range(0, LAYERS, 8)))
    for group in network:
        fully_shard(group, mesh=mesh)
    fully_shard(network, mesh=mesh)
    if backend == "kolo-lists":
        import kolo_torch.fsdp  # pylint: disable=import-outside-toplevel

        kolo_torch.fsdp.use_lists(network)
    if backend == "kolo-windows":
        for part in (network, *network):
            part.set_allocate_memory_from_process_group_for_comm(True)
    return training(network)


@torch.no_grad()
def decode(elements):
    """Activations are elements / HIDDEN rows. Each layer: two products by this rank's part of the columns and rows, and their sum."""
    ranks = dist.get_world_size()
    weights = [
        (torch.randn(HIDDEN, HIDDEN // ranks).bfloat16() / 32, torch.randn(HIDDEN // ranks, HIDDEN).bfloat16() / 32)
        for _ in range(2 * DECODE_LAYERS)
    ]
    tokens = torch.randn(elements // HIDDEN, HIDDEN).bfloat16()

    @torch.no_grad()
    def step():
        hidden = tokens
        for columns, rows in weights:
            hidden = (hidden @ columns).relu_() @ rows
            dist.all_reduce(hidden)

    return step


def new_group():
    made = []

    def step():
        made.append(dist.new_group())
        if len(made) > 1:
            dist.destroy_process_group(made.pop(0))  # which all have made: Gloo fails where a peer ends too early

    return step


def wait(take, give):
    """Rank 0 takes what the others give it a second later."""

    def step():
        if dist.get_rank() != 0:
            time.sleep(1)
        (give if dist.get_rank() != 0 else take)(torch.zeros(1))

    return step


def make(name, backend):
    if name.startswith("decode-"):
        return decode(int(name.removeprefix("decode-")))
    steps = {
        "ddp": ddp,
        "ddp-view": lambda: ddp(gradient_as_bucket_view=True),
        "ddp-alone": ddp_alone,
        "fsdp2": lambda: fsdp2(backend),
        "new-group": new_group,
        "wait-recv": lambda: wait(lambda tensor: dist.recv(tensor, 1), lambda tensor: dist.send(tensor, 0)),
        "wait-sum": lambda: wait(dist.all_reduce, dist.all_reduce),
    }
    return steps[name]()


def measure(step, agree, clock):
    def once(clock):
        begin = clock()
        step()
        return clock() - begin

    for _ in range(3):
        once(clock)
    count = agree(int(max(LEAST, SECONDS / max(once(time.perf_counter), 1e-6))))
    times = sorted(once(clock) for _ in range(count))
    return times[count // 2] * 1e3


class Nothing(dist.ProcessGroup):
    """All that DDP calls; its operations are over at once. (torch's backend "fake" makes no futures.)"""

    def _over(self, tensors):
        future = torch.futures.Future()
        future.set_result(tensors)
        return torch._C._distributed_c10d._create_work_from_future(future)  # pylint: disable=protected-access

    def allreduce(self, tensors, _=None):  # pylint: disable=missing-function-docstring
        return self._over(tensors)

    def broadcast(self, tensors, _=None):  # pylint: disable=missing-function-docstring
        return self._over(tensors)

    def allgather(self, outputs, inputs, _=None):  # pylint: disable=missing-function-docstring
        for output, given in zip(outputs, inputs):
            for tensor in output:
                tensor.copy_(given)
        return self._over(outputs[0])

    def barrier(self, opts=None):  # pylint: disable=missing-function-docstring,unused-argument
        return self._over([])


def join(backend, names):
    if backend == "nothing" and not names[0].startswith("ddp"):
        from torch.testing._internal.distributed.fake_pg import FakeStore  # pylint: disable=import-outside-toplevel

        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        return dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    if backend == "nothing":
        dist.Backend.register_backend("nothing", lambda _, rank, ranks, __: Nothing(rank, ranks), devices=["cpu"])
        return dist.init_process_group("nothing")
    if backend == "gloo":
        return dist.init_process_group("gloo")
    import kolo_torch  # pylint: disable=import-outside-toplevel

    options = kolo_torch.Options()
    options.windows = backend == "kolo-windows"
    if options.windows:
        os.environ["DDP_DISABLE_COMM_MEM"] = "0"  # else DDP does not ask the group for its buckets
    return dist.init_process_group("kolo", pg_options=options)


def main():
    backend, names = sys.argv[1], sys.argv[2:]
    torch.set_num_threads(1)
    join(backend, names)

    def agree(number):
        tensor = torch.tensor([number])
        dist.broadcast(tensor, 0)
        return int(tensor)

    for name in names:
        clock = time.process_time if name.startswith("wait-") else time.perf_counter
        took = measure(make(name, backend), agree, clock)
        if dist.get_rank() == 0:
            print(name, f"{took:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # a process that has used Gloo may abort at its end: "terminate called without an active exception"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
