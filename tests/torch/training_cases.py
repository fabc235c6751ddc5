"""Training on Kolo gives what one process gives: small models, by each of torch's ways to divide the work."""

import copy
import os
import re
import runpy
import tempfile
import unittest

import torch
import torch.distributed as dist
from torch import nn

import ranks
from cases import smoke
from group import expect_equal, kolo_group
from groups_cases import torchrun

STEPS, BATCH, WIDTH, HIDDEN = 4, 24, 16, 48  # which 2, 3 and 4 ranks divide


def model_of(seed=3):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))


def data_of(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, 1, generator=generator)


def part_of(tensor, rank, count):
    return tensor.chunk(count)[rank]


def alone(model, optimizer_of=lambda parameters: torch.optim.SGD(parameters, lr=0.1)):
    """The parameters after training in one process, and the losses."""
    optimizer = optimizer_of(model.parameters())
    losses = []
    for step in range(STEPS):
        inputs, targets = data_of(step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train(model, rank, count, optimizer=None):
    """The same, each rank with its part of a batch. The losses of whole batches."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        inputs, targets = data_of(step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(part_of(inputs, rank, count)), part_of(targets, rank, count))
        loss.backward()
        optimizer.step()
        loss = loss.detach()
        dist.all_reduce(loss, op=dist.ReduceOp.AVG)
        losses.append(loss.item())
    return losses


def expect_close(got, wanted, tolerance=1e-4):
    if not torch.allclose(torch.tensor(got), torch.tensor(wanted), rtol=tolerance, atol=tolerance):
        raise AssertionError(f"losses {got}, expected {wanted}")


def ddp(rank, count, how, hook, tolerance):
    with kolo_group():
        wanted = alone(model_of())
        # PowerSGD calls further collectives when a future is completed. With several buckets their order would depend on when that is, on
        # each rank, whatever the backend; so it has one.
        cap = 25 if hook == "power" else 0.001
        model = nn.parallel.DistributedDataParallel(model_of(), bucket_cap_mb=cap, **how)
        if hook == "fp16":
            from torch.distributed.algorithms.ddp_comm_hooks import (
                default_hooks,
            )  # pylint: disable=import-outside-toplevel

            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif hook == "power":
            from torch.distributed.algorithms.ddp_comm_hooks import (
                powerSGD_hook as power,
            )  # pylint: disable=import-outside-toplevel

            state = power.PowerSGDState(
                None, matrix_approximation_rank=16, start_powerSGD_iter=2, min_compression_rate=1
            )
            model.register_comm_hook(state, power.powerSGD_hook)
        expect_close(train(model, rank, count), wanted, tolerance)


def ddp_without_sync(rank, count):
    """Two halves of each part, the gradients summed up before they are exchanged."""
    with kolo_group():
        model = nn.parallel.DistributedDataParallel(model_of())
        single = model_of()
        inputs, targets = data_of(0)
        nn.functional.mse_loss(single(inputs), targets).backward()
        halves = list(zip(part_of(inputs, rank, count).chunk(2), part_of(targets, rank, count).chunk(2)))
        with model.no_sync():
            (nn.functional.mse_loss(model(halves[0][0]), halves[0][1]) / 2).backward()
        (nn.functional.mse_loss(model(halves[1][0]), halves[1][1]) / 2).backward()
        for got, wanted in zip(model.parameters(), single.parameters()):
            torch.testing.assert_close(got.grad, wanted.grad)


def ddp_with_sparse_gradients(rank, count):
    with kolo_group():
        torch.manual_seed(5)
        single = nn.EmbeddingBag(20, 4, mode="sum", sparse=True)
        model = nn.parallel.DistributedDataParallel(copy.deepcopy(single))
        rows = torch.randint(0, 20, (BATCH, 3), generator=torch.Generator().manual_seed(1))
        single(rows).pow(2).mean().backward()
        model(part_of(rows, rank, count)).pow(2).mean().backward()
        torch.testing.assert_close(model.module.weight.grad.to_dense(), single.weight.grad.to_dense())


def alone_with_uneven_inputs(count):
    """What Join gives: in each step the mean over all ranks, of which those that have ended give zero gradients."""
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1 + count):
        inputs, targets = data_of(step)
        takers = sum(1 for rank in range(count) if step < 2 + rank)
        optimizer.zero_grad()
        (nn.functional.mse_loss(model(inputs), targets) * takers / count).backward()
        optimizer.step()
    return model


def ddp_with_uneven_inputs(rank, count):
    from torch.distributed.algorithms.join import Join  # pylint: disable=import-outside-toplevel

    with kolo_group():
        single = alone_with_uneven_inputs(count)
        model = nn.parallel.DistributedDataParallel(model_of())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Join([model]):  # which divides by the number of all ranks
            for step in range(2 + rank):
                inputs, targets = data_of(step)
                optimizer.zero_grad()
                nn.functional.mse_loss(model(inputs), targets).backward()
                optimizer.step()
        for parameter, wanted in zip(model.parameters(), single.parameters()):
            gathered = [torch.empty_like(parameter) for _ in range(count)]
            dist.all_gather(gathered, parameter.detach())
            for other in gathered:
                expect_equal(other, gathered[0])
            torch.testing.assert_close(parameter, wanted)


def zero_optimizer(rank, count):
    from torch.distributed.optim import ZeroRedundancyOptimizer  # pylint: disable=import-outside-toplevel

    with kolo_group():
        wanted = alone(model_of(), lambda parameters: torch.optim.Adam(parameters, lr=0.01))
        model = nn.parallel.DistributedDataParallel(model_of())
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
        expect_close(train(model, rank, count, optimizer), wanted)


def sharded(count, **how):
    """The model by FSDP2, each layer a group of its own."""
    from torch.distributed.fsdp import fully_shard  # pylint: disable=import-outside-toplevel

    mesh = dist.device_mesh.init_device_mesh("cpu", (count,))
    model = model_of()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **how)
    return fully_shard(model, mesh=mesh, **how)


def fsdp(rank, count, low_precision):
    from torch.distributed.fsdp import MixedPrecisionPolicy  # pylint: disable=import-outside-toplevel

    with kolo_group():
        how = (
            {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)}
            if low_precision
            else {}
        )
        expect_close(train(sharded(count, **how), rank, count), alone(model_of()), 0.05 if low_precision else 1e-4)


def fsdp_by_lists(rank, count, how, uses_buffer):
    """The same losses as with torch's all-gathers and reduce-scatters of flat buffers, which are not called any more, but where torch
    does something of its own with a buffer. The last layer's one row is not divided evenly."""
    import kolo_torch.fsdp  # pylint: disable=import-outside-toplevel
    from torch.distributed.fsdp import MixedPrecisionPolicy  # pylint: disable=import-outside-toplevel

    calls = []

    def count_calls(name):
        function = getattr(dist, name, None)
        setattr(dist, name, lambda *given, **more: calls.append(name) or function(*given, **more))

    with kolo_group():
        policy = MixedPrecisionPolicy(**how)
        wanted = train(sharded(count, mp_policy=policy), rank, count)
        model = sharded(count, mp_policy=policy)
        kolo_torch.fsdp.use_lists(model)
        for name in ("all_gather_into_tensor", "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single"):
            count_calls(name)
        expect_close(train(model, rank, count), wanted, 0.02 if how else 1e-6)
        if bool(calls) != uses_buffer or any("gather" in name for name in calls):
            raise AssertionError(f"calls with flat buffers: {calls}")


def mappings():
    """Of this process: (begin, end, number of the file, its name) each."""
    with open("/proc/self/maps", encoding="ascii") as file:
        for line in file:
            span, _, _, _, number, *name = line.split(maxsplit=5)
            yield *(int(word, 16) for word in span.split("-")), int(number), "".join(name)


def file_of(tensor):
    """The number of the file in which it lies, if that is memory of Kolo's, which can become a window; else 0."""
    for begin, end, number, name in mappings():
        if begin <= tensor.data_ptr() < end:
            return number if "memfd:kolo" in name else 0
    raise AssertionError("no mapping has the tensor")


def expect_windows(files, rank, count):
    """All lie in memory of Kolo's, and each rank has mapped that of the others, as windows are."""
    if not files or not all(files):
        raise AssertionError(f"files in which buffers lie: {files}")
    everyones = [None] * count
    dist.all_gather_object(everyones, set(files))
    mapped = {number for _, _, number, _ in mappings()}
    for other, theirs in enumerate(everyones):
        if not theirs <= mapped:
            raise AssertionError(f"rank {rank} has not mapped {theirs - mapped} of rank {other}")


def windows():
    import kolo_torch  # pylint: disable=import-outside-toplevel

    options = kolo_torch.Options()
    options.windows = True
    return options


def ddp_in_windows(rank, count):
    """The gradients are views of DDP's buckets, which torch allocates by the group, if it is told to."""
    os.environ["DDP_DISABLE_COMM_MEM"] = "0"
    with kolo_group(pg_options=windows()):
        model = nn.parallel.DistributedDataParallel(model_of(), gradient_as_bucket_view=True)
        expect_close(train(model, rank, count), alone(model_of()))
        expect_windows([file_of(parameter.grad) for parameter in model.parameters()], rank, count)


def fsdp_in_windows(rank, count):
    """What is given to the collectives lies in memory that FSDP2 allocates by the group."""
    with kolo_group(pg_options=windows()):
        model = sharded(count)
        for module in model.modules():
            if hasattr(module, "set_allocate_memory_from_process_group_for_comm"):
                module.set_allocate_memory_from_process_group_for_comm(True)
        places = []
        for name in ("all_gather_into_tensor", "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single"):
            note_places(name, places)
        expect_close(train(model, rank, count), alone(model_of()))
        expect_windows(places, rank, count)


def note_places(name, places):
    """The files in which the outputs and inputs of calls of this function of torch.distributed lie."""
    function = getattr(dist, name, None)

    def noting(*given, **more):
        tensors = [each for each in [*given, *more.values()] if isinstance(each, torch.Tensor)]
        places.extend(file_of(tensor) for tensor in tensors if tensor.numel() > 0)
        return function(*given, **more)

    setattr(dist, name, noting)


def tensor_parallel(rank, count):
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )  # pylint: disable=import-outside-toplevel

    with kolo_group():
        mesh = dist.device_mesh.init_device_mesh("cpu", (count,))
        single = model_of()
        model = parallelize_module(model_of(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        inputs, targets = data_of(0)
        wanted = nn.functional.mse_loss(single(inputs), targets)
        got = nn.functional.mse_loss(model(inputs), targets)
        torch.testing.assert_close(got, wanted)
        wanted.backward()
        got.backward()
        for left, right in zip(model.parameters(), single.parameters()):
            grad = left.grad.full_tensor() if hasattr(left.grad, "full_tensor") else left.grad
            torch.testing.assert_close(grad, right.grad)


def sequence_parallel(rank, count):
    """Each rank has a part of the sequence, which is gathered for the first layer and scattered by the second."""
    from torch.distributed.tensor import Shard  # pylint: disable=import-outside-toplevel
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )  # pylint: disable=import-outside-toplevel

    def block():
        torch.manual_seed(6)
        return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))

    with kolo_group():
        plan = {
            "0": SequenceParallel(sequence_dim=0),
            "1": ColwiseParallel(input_layouts=Shard(0)),
            "3": RowwiseParallel(output_layouts=Shard(0)),
        }
        single, model = block(), parallelize_module(block(), dist.device_mesh.init_device_mesh("cpu", (count,)), plan)
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (single, model)]
        for step in range(STEPS):
            sequence = data_of(step)[0]
            wanted = single(sequence).pow(2).sum() / sequence.numel()
            got = model(part_of(sequence, rank, count)).pow(2).sum() / sequence.numel()
            wanted.backward()
            got.backward()
            total = got.detach().clone()
            dist.all_reduce(total)
            torch.testing.assert_close(total, wanted.detach())
            for left, right in zip(model.parameters(), single.parameters()):
                torch.testing.assert_close(left.grad.full_tensor(), right.grad)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()


def pipeline(rank, count):
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe  # pylint: disable=import-outside-toplevel

    with kolo_group():
        torch.manual_seed(4)
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(count)]
        single = nn.Sequential(*copy.deepcopy(layers))
        stage = PipelineStage(layers[rank], rank, count, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
        inputs, targets = data_of(0)[0], data_of(1)[0]
        losses = []
        if rank == 0:
            schedule.step(inputs)
        elif rank == count - 1:
            schedule.step(target=targets, losses=losses)
        else:
            schedule.step()
        nn.functional.mse_loss(single(inputs), targets).backward()
        torch.testing.assert_close(layers[rank].weight.grad, single[rank].weight.grad)


def checkpoint(rank, count, folder):
    import torch.distributed.checkpoint as dcp  # pylint: disable=import-outside-toplevel
    from torch.distributed.tensor import DTensor, Shard  # pylint: disable=import-outside-toplevel

    with kolo_group():
        mesh = dist.device_mesh.init_device_mesh("cpu", (count,))
        whole = torch.arange(float(8 * count)).view(4 * count, 2)
        saved = {"tensor": dist.tensor.distribute_tensor(whole, mesh, [Shard(0)]), "step": 7}
        dcp.save(saved, checkpoint_id=folder)
        loaded = {"tensor": dist.tensor.distribute_tensor(torch.zeros_like(whole), mesh, [Shard(0)]), "step": 0}
        dcp.load(loaded, checkpoint_id=folder)
        assert isinstance(loaded["tensor"], DTensor) and loaded["step"] == 7
        expect_equal(loaded["tensor"].full_tensor(), whole)
        dist.barrier()


def save_asynchronously(_, count, folder):
    import torch.distributed.checkpoint as dcp  # pylint: disable=import-outside-toplevel
    from torch.distributed.tensor import Shard  # pylint: disable=import-outside-toplevel

    with kolo_group():
        mesh = dist.device_mesh.init_device_mesh("cpu", (count,))
        saved = {"tensor": dist.tensor.distribute_tensor(torch.arange(24.0).view(12, 2), mesh, [Shard(0)])}
        # In a group of its own: a thread of torch's makes the save's collectives, in no order with this thread's.
        under_way = dcp.async_save(saved, checkpoint_id=folder, process_group=dist.new_group())
        total = torch.ones(3)
        dist.all_reduce(total)  # meanwhile
        expect_equal(total, float(count))
        under_way.result()
        dist.barrier()


def load(_, count, folder):
    import torch.distributed.checkpoint as dcp  # pylint: disable=import-outside-toplevel
    from torch.distributed.tensor import Shard  # pylint: disable=import-outside-toplevel

    with kolo_group():
        mesh = dist.device_mesh.init_device_mesh("cpu", (count,))
        loaded = {"tensor": dist.tensor.distribute_tensor(torch.zeros(12, 2), mesh, [Shard(0)])}
        dcp.load(loaded, checkpoint_id=folder)
        expect_equal(loaded["tensor"].full_tensor(), torch.arange(24.0).view(12, 2))


def functional(rank, count):
    import torch.distributed._functional_collectives as functional_collectives  # pylint: disable=import-outside-toplevel

    with kolo_group() as group:
        total = functional_collectives.all_reduce(torch.full((5,), float(rank)), "sum", group)
        expect_equal(total + 0, float(sum(range(count))))
        gathered = functional_collectives.all_gather_tensor(torch.full((2,), float(rank)), 0, group)
        expect_equal(gathered + 0, torch.arange(float(count)).repeat_interleave(2))
        parts = functional_collectives.reduce_scatter_tensor(torch.arange(float(2 * count)), "avg", 0, group)
        expect_equal(parts + 0, torch.arange(2.0) + 2 * rank)
        several = functional_collectives.all_reduce_coalesced([torch.ones(3), torch.ones(4)], "sum", group)
        for tensor in several:
            expect_equal(tensor + 0, float(count))


def compiled_function(rank, count, **how):
    """Collectives inside of a compiled function; how: of torch.compile, Inductor if nothing is said."""
    import torch.distributed._functional_collectives as functional_collectives  # pylint: disable=import-outside-toplevel

    with kolo_group() as group:

        @torch.compile(fullgraph=True, **how)
        def function(tensor):
            total = functional_collectives.all_reduce(tensor * 2, "sum", group) + 1
            parts = functional_collectives.reduce_scatter_tensor(total, "sum", 0, group)
            return functional_collectives.all_gather_tensor(parts - 1, 0, group).sin()

        given = torch.arange(4.0 * count)
        total = sum(2.0 * (given + other) for other in range(count)) + 1
        torch.testing.assert_close(function(given + rank), (total * count - 1).sin())


def compiled(rank, count):
    """By Inductor: other collectives inside of compiled functions, and a DDP model that is compiled."""
    import torch.distributed._functional_collectives as functional_collectives  # pylint: disable=import-outside-toplevel

    with kolo_group() as group:
        compiled_function(rank, count)

        @torch.compile(fullgraph=True)
        def exchange(tensor):
            return functional_collectives.all_to_all_single(tensor * 2, receives, sends, group) + 1

        sends = [other + rank for other in range(count)]  # rows for each rank
        receives = [rank + other for other in range(count)]
        rows = torch.full((sum(sends), 3), float(rank))
        wanted = torch.cat([torch.full((rank + other, 3), 2.0 * other + 1) for other in range(count)])
        torch.testing.assert_close(exchange(rows), wanted)

        @torch.compile(fullgraph=True)
        def several(tensors):
            totals = functional_collectives.all_reduce_coalesced([tensor + 1 for tensor in tensors], "sum", group)
            return [total * 2 for total in totals]

        for got, size in zip(several([torch.full((size,), float(rank)) for size in (3, 7)]), (3, 7), strict=True):
            torch.testing.assert_close(got, torch.full((size,), 2.0 * (count + sum(range(count)))))

        wanted = alone(model_of())
        model = torch.compile(nn.parallel.DistributedDataParallel(model_of()))
        expect_close(train(model, rank, count), wanted)


def compiled_into_buckets(rank, count):
    """Inductor's passes make one collective of three. The group's sequence number says how many were called."""
    import torch.distributed._functional_collectives as functional_collectives  # pylint: disable=import-outside-toplevel

    with kolo_group() as group:

        def function(tensors):
            totals = [functional_collectives.all_reduce(tensor, "sum", group) for tensor in tensors]
            parts = [functional_collectives.reduce_scatter_tensor(tensor * 2, "sum", 0, group) for tensor in tensors]
            wholes = [functional_collectives.all_gather_tensor(tensor + 1, 0, group) for tensor in tensors]
            return [tensor * 2 for tensor in totals + parts + wholes]

        def calls_of(**passes):
            torch.compiler.reset()
            with torch._inductor.config.patch(**passes):  # pylint: disable=protected-access
                compiled_function = torch.compile(function, fullgraph=True)
                before = group._get_sequence_number_for_group()
                results = compiled_function([base + rank for base in bases])
                return group._get_sequence_number_for_group() - before, results

        bases = [torch.arange(float(count * size)).sin() for size in (3, 5, 8)]
        total = lambda base: count * base + sum(range(count))  # noqa: E731
        wanted = [total(base) for base in bases]
        wanted += [2 * total(base).chunk(count)[rank] for base in bases]
        wanted += [torch.cat([base + other + 1 for other in range(count)]) for base in bases]
        passes = {f"bucket_{kind}_fx": "all" for kind in ("all_reduces", "reduce_scatters", "all_gathers")}
        all_results = []
        for how, calls in ({}, 9), (passes, 3):
            called, results = calls_of(**how)
            all_results.append(results)
            if called != calls:
                raise AssertionError(f"{called} collectives with {how}, expected {calls}")
            for got, value in zip(results, wanted, strict=True):
                torch.testing.assert_close(got, value * 2)
        for single, merged in zip(*all_results, strict=True):
            expect_equal(merged, single)  # bit for bit


def compiled_fsdp(rank, count):
    with kolo_group():
        expect_close(train(torch.compile(sharded(count)), rank, count), alone(model_of()))


class Training(unittest.TestCase):
    @smoke
    def test_ddp(self):
        for how in ({}, {"static_graph": True}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}):
            with self.subTest(**how):
                ranks.run(self, ddp, 2, how, None, 1e-4)

    def test_ddp_with_hooks(self):
        ranks.run(self, ddp, 2, {}, "fp16", 0.02)
        ranks.run(self, ddp, 3, {}, "power", 0.3)

    def test_ddp_without_sync(self):
        ranks.run(self, ddp_without_sync, 2)

    def test_ddp_with_sparse_gradients(self):
        ranks.run(self, ddp_with_sparse_gradients, 2)

    def test_ddp_with_uneven_inputs(self):
        ranks.run(self, ddp_with_uneven_inputs, 3)

    def test_zero_optimizer(self):
        ranks.run(self, zero_optimizer, 2)

    @smoke
    def test_fsdp(self):
        ranks.run(self, fsdp, 2, False)
        ranks.run(self, fsdp, 3, True)

    def test_fsdp_by_lists(self):
        ranks.run(self, fsdp_by_lists, 2, {}, False)
        ranks.run(self, fsdp_by_lists, 3, {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}, False)
        ranks.run(self, fsdp_by_lists, 2, {"param_dtype": torch.bfloat16}, False)
        ranks.run(self, fsdp_by_lists, 2, {"reduce_dtype": torch.float16}, True)  # torch divides before it reduces

    def test_ddp_in_windows(self):
        ranks.run(self, ddp_in_windows, 2)

    def test_fsdp_in_windows(self):
        ranks.run(self, fsdp_in_windows, 2)

    def test_tensor_parallel(self):
        ranks.run(self, tensor_parallel, 2)

    def test_sequence_parallel(self):
        ranks.run(self, sequence_parallel, 2)

    def test_pipeline(self):
        ranks.run(self, pipeline, 3)

    def test_checkpoint(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks.run(self, checkpoint, 2, folder)

    def test_checkpoint_on_another_number_of_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks.run(self, save_asynchronously, 2, folder)
            ranks.run(self, load, 3, folder)

    def test_functional_collectives(self):
        ranks.run(self, functional, 3)

    @unittest.skipUnless("KOLO_TEST_ALL" in os.environ, "part of tools/run-tests --all: it calls a C++ compiler")
    def test_compiled(self):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
            self.addCleanup(os.environ.pop, "TORCHINDUCTOR_CACHE_DIR")
            for function in (compiled, compiled_into_buckets, compiled_fsdp):
                with self.subTest(function.__name__):
                    ranks.run(self, function, 2, seconds=600)


def readme_script(test, prelude=""):
    """The path of the script that src/torch/README.md shows, until the test is over."""
    with open(os.environ["KOLO_TORCH_README"], encoding="utf-8") as file:
        text = re.search(r"^```python\n(.*?)^```$", file.read(), re.M | re.S).group(1)
    test.assertLess(text.count("\n"), 40)
    file = tempfile.NamedTemporaryFile("w", suffix=".py")
    test.addCleanup(file.close)
    file.write(prelude + "import kolo_torch\n" + text)
    file.flush()
    return file.name


def runs(_, __, script):
    runpy.run_path(script, run_name="__main__")


class Readme(unittest.TestCase):
    def test_one_process_and_several_learn_the_same(self):
        """Under torchrun, and as other numbers of ranks that have imported torch already."""
        script = readme_script(self)
        status, output = torchrun(script, count=2)
        self.assertEqual(status, 0, output)
        losses = []
        for output in (*("".join(ranks.run(self, runs, count, script)) for count in (1, 3)), output):
            losses.append([float(loss) for loss in re.findall(r"loss ([\d.]+)", output)])
            self.assertEqual(len(losses[-1]), 5, output)
            self.assertLess(losses[-1][-1], losses[-1][0], output)
            for got, wanted in zip(losses[-1], losses[0]):
                self.assertAlmostEqual(got, wanted, places=4)
