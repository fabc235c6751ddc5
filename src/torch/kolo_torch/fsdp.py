"""FSDP2 on lists of Kolo's, for tensors on the CPU: parameters are gathered from the shards into the parameters, and gradients are
reduced from the gradients into the shards, with no copy into a flat buffer or out of it.

    model = fully_shard(...)
    kolo_torch.fsdp.use_lists(model)

torch copies outside of what a custom all-gather or reduce-scatter may do, but it makes the flat buffer by allocate() of these. So they
give it a tensor without memory, which notes what should be copied into it and out of it; the transfer does that. A gather is
therefore made where torch would copy out. If torch does anything else with the buffer, the buffer gets memory.
"""

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllgatherOptions, ReduceScatterOptions
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.utils._pytree import tree_map_only

__all__ = ["use_lists"]


class _Plan:
    """What is to happen with a flat buffer."""

    def __init__(self, numel, dtype, device):
        self.numel, self.dtype, self.device = numel, dtype, device
        self.inputs = None  # copied into it
        self.chunks = 0  # of a reduce-scatter
        self.group = None  # of an all-gather that has been called
        self.memory = None

    def gather(self, outputs):
        """All-gathers each input into its output. The plan cannot be used again."""
        options = AllgatherOptions()
        options.asyncOp = False
        inputs, self.inputs = self.inputs, None
        self.group.allgather_into_tensor_coalesced([output.reshape(-1) for output in outputs], inputs, options)

    def reduce_scatter(self, output, group, op):
        """Each input's chunks, reduced, one input behind the other in the output."""
        options = ReduceScatterOptions()
        options.asyncOp = False
        options.reduceOp = op
        inputs, self.inputs = [_padded(each, self.chunks) for each in self.inputs], None
        outputs = output.split([each.numel() // self.chunks for each in inputs])
        group.reduce_scatter_tensor_coalesced(list(outputs), inputs, options)

    def materialize(self):
        """The buffer as torch would have it."""
        if self.memory is None:
            self.memory = torch.empty(self.numel, dtype=self.dtype, device=self.device)
            if self.chunks:
                rows = self.memory.view(self.chunks, -1)
                torch._chunk_cat([each.to(self.dtype) for each in self.inputs], 0, self.chunks, out=rows)
                self.inputs = None
        return self.memory


def _padded(tensor, chunks):
    """With as many rows as so many equal chunks have."""
    missing = -tensor.size(0) % chunks
    return torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])]) if missing else tensor


class _Flat(torch.Tensor):
    """A flat buffer, or a view of it, without memory."""

    @staticmethod
    def __new__(cls, shape, plan):
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=plan.dtype, device=plan.device)

    def __init__(self, _, plan):
        self.plan = plan

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function.name()
        if name == "fsdp::all_gather_copy_in":
            args[1].plan.inputs = list(args[0])
            return args[1], args[1]
        if name == "fsdp::split_with_sizes_copy":
            args[0].plan.gather(kwargs["out"])
            return None
        if name in ("fsdp::chunk_cat", "fsdp::chunk_cat_mixed_dtype"):
            plan = kwargs["out"].plan
            plan.inputs, plan.chunks = list(args[0]), args[2]
            return None
        if name == "aten::view" and args[0].plan.memory is None:
            return cls(torch.empty(args[0].shape, device="meta").view(args[1]).shape, args[0].plan)
        args, kwargs = tree_map_only(cls, lambda flat: flat.plan.materialize().view(flat.shape), (args, kwargs))
        return function(*args, **kwargs)


def _flat(size, dtype, device):
    plan = _Plan(int(size[0]), dtype, device)
    return _Flat((plan.numel,), plan)


class _AllGatherList(AllGather):
    def allocate(self, size, *, dtype, device):
        return _flat(size, dtype, device)

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        output_tensor.plan.group = group


class _ReduceScatterList(ReduceScatter):
    def __init__(self):
        self._input = None  # which has been allocated, and its output has not

    def allocate(self, size, *, dtype, device):
        if self._input is not None and (self._input.inputs is not None or self._input.memory is not None):
            self._input = None
            return torch.empty(*size, dtype=dtype, device=device)
        flat = _flat(size, dtype, device)
        self._input = flat.plan
        return flat

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        if input_tensor.plan.memory is not None:
            return dist.reduce_scatter_tensor(
                output_tensor, input_tensor.plan.memory, op=op, group=group, async_op=async_op
            )
        return input_tensor.plan.reduce_scatter(output_tensor, group, op)


def use_lists(module):
    """Lets every part of the module that fully_shard() has been applied to use lists. Its group's backend for its parameters' device,
    the CPU, has to be Kolo. Prefetching has no effect, and torch.compile is not supported."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            if any(parameter.device.type not in ("cpu", "meta") for parameter in part.parameters()):
                raise ValueError("use_lists: a parameter is not on the CPU: on GPUs, coalesced calls make no lists")
            part.set_custom_all_gather(_AllGatherList())
            part.set_custom_reduce_scatter(_ReduceScatterList())
