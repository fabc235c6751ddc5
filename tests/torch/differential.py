"""Every call, of every type, on Kolo: against what it should give, and against Gloo where Gloo has it.

All ranks draw the same cases from the same numbers. A case is a call on a group of one to all ranks. Every rank knows the
inputs of all ranks, and so computes what it should have got.
"""

import datetime
import random
import warnings

import torch
import torch.distributed as dist

import tensors
from tensors import expect, laid_out, values, wide

OPS = {
    "SUM": dist.ReduceOp.SUM,
    "AVG": dist.ReduceOp.AVG,
    "PRODUCT": dist.ReduceOp.PRODUCT,
    "MIN": dist.ReduceOp.MIN,
    "MAX": dist.ReduceOp.MAX,
    "BAND": dist.ReduceOp.BAND,
    "BOR": dist.ReduceOp.BOR,
    "BXOR": dist.ReduceOp.BXOR,
    "PREMUL_SUM": None,
}
FACTOR = 2.0
WAYS = ["sync", "wait", "future", "poll"]
LONG_TYPES = [torch.float32, torch.bfloat16, torch.int8, torch.complex128, torch.bool]
GLOO_TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64]
GLOO_OPS = ["SUM", "PRODUCT", "MIN", "MAX"]


def reduction(name):
    return dist._make_nccl_premul_sum(FACTOR) if name == "PREMUL_SUM" else OPS[name]


def is_defined(name, dtype):
    if dtype.is_complex:  # Python takes complex tensors apart; MIN and the like have no meaning
        return name in ("SUM", "AVG", "PREMUL_SUM")
    if dtype == torch.bool:
        return name not in ("AVG", "PREMUL_SUM")
    if dtype.is_floating_point:
        return name not in ("BAND", "BOR", "BXOR")
    return True


def fold(name, inputs):
    """The reduction of a list of tensors, in wide types."""
    stack = torch.stack([wide(tensor).reshape(-1) for tensor in inputs])
    dtype = inputs[0].dtype
    if dtype == torch.bool:
        return {
            "SUM": stack.any,
            "MAX": stack.any,
            "BOR": stack.any,
            "PRODUCT": stack.all,
            "MIN": stack.all,
            "BAND": stack.all,
            "BXOR": lambda dim: stack.sum(dim) % 2 == 1,
        }[name](dim=0)
    if name in ("BAND", "BOR", "BXOR"):
        function = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}[name]
        result = stack[0]
        for row in stack[1:]:
            result = function(result, row)
        return result
    if name == "AVG":
        return (
            torch.div(stack.sum(0), len(inputs), rounding_mode="trunc")
            if tensors.is_integer(dtype)
            else stack.sum(0) / len(inputs)
        )
    if name == "PREMUL_SUM":
        return (stack * (int(FACTOR) if tensors.is_integer(dtype) else FACTOR)).sum(0)
    return {"SUM": stack.sum, "PRODUCT": stack.prod, "MIN": stack.amin, "MAX": stack.amax}[name](dim=0)


class Case:
    """One call on one group: what is drawn, and what the calls below have in common."""

    def __init__(self, number, name, group, ranks, dtype, op, way, layout, count, root):
        self.number, self.name, self.group, self.ranks, self.dtype, self.op = number, name, group, ranks, dtype, op
        self.way, self.layout, self.count, self.root = way, layout, count, root
        self.size = len(ranks)
        self.me = ranks.index(dist.get_rank())
        self.on_gloo = dist.get_backend(group) == "gloo"
        self.even = False  # Gloo's gather, scatter and lists want one length

    def __str__(self):
        return (
            f"case {self.number}: {self.name} of {self.count} {self.dtype} by {self.op} on {self.ranks}, {self.way}, {self.layout}, "
            f"root {self.root}"
        )

    def input(self, rank, count=None, which=0):
        return values(self.count if count is None else count, self.dtype, 1000003 * self.number + 1009 * which + rank)

    def inputs(self, count=None, which=0):
        return [self.input(rank, count, which) for rank in range(self.size)]

    def empty(self, count):
        return laid_out(torch.zeros(count, dtype=self.dtype), self.layout)

    def given(self, tensor):
        return laid_out(tensor, self.layout)

    def spread(self, tensor):
        """The same of one dimension, with gaps between the elements in every layout that is not contiguous."""
        return laid_out(tensor, "sliced") if self.layout in ("sliced", "transposed") else tensor.clone()

    def uneven(self, rank):
        """A length for each rank, 0 among them."""
        if self.even:
            return self.count
        return (self.count + 3 * rank) % 11 if self.count < 100 else self.count + 7 * rank

    def long(self):
        """Elements of a rank's block so that the blocks of all ranks are a list of Kolo's."""
        return (256 << 10) // (self.dtype.itemsize * self.size) + self.count % 1000 + 1

    def rank_of(self, member):
        return self.ranks[member]

    def end(self, work):
        """The call's end, in the way that was drawn."""
        if self.way == "sync":
            return
        if self.way == "future":
            work.get_future().wait()
        elif self.way == "poll":
            while not work.is_completed():
                pass
        work.wait()
        if not work.is_completed() or not work.is_success():
            raise AssertionError("the work is over and does not say so")

    @property
    def is_async(self):
        return self.way != "sync"

    def expect(self, got, wanted, what="result"):
        expect(got, wanted, f"{self}: {what} of rank {self.me}")


def all_reduce(case):
    tensor = case.given(case.input(case.me))
    case.end(dist.all_reduce(tensor, op=reduction(case.op), group=case.group, async_op=case.is_async))
    case.expect(tensor, fold(case.op, case.inputs()))
    return [tensor]


def coalesced_all_reduce(case):
    mine = [case.given(case.input(case.me, case.count + which, which)) for which in range(3)]
    with dist._coalescing_manager(group=case.group, async_ops=case.is_async) as manager:
        for tensor in mine:
            dist.all_reduce(tensor, op=reduction(case.op), group=case.group)
    if case.is_async:
        manager.wait()
    for which, tensor in enumerate(mine):
        case.expect(tensor, fold(case.op, case.inputs(case.count + which, which)))
    return mine


def reduce(case):
    tensor = case.given(case.input(case.me))
    case.end(
        dist.reduce(tensor, case.rank_of(case.root), op=reduction(case.op), group=case.group, async_op=case.is_async)
    )
    if case.me == case.root:
        case.expect(tensor, fold(case.op, case.inputs()))
        return [tensor]
    if not case.on_gloo:  # which uses it as scratch
        case.expect(tensor, wide(case.input(case.me)))
    return []


def broadcast(case):
    tensor = case.given(case.input(case.me))
    case.end(dist.broadcast(tensor, case.rank_of(case.root), group=case.group, async_op=case.is_async))
    case.expect(tensor, wide(case.input(case.root)))
    return [tensor]


def all_gather(case):
    outputs = [case.empty(case.count) for _ in range(case.size)]
    case.end(dist.all_gather(outputs, case.given(case.input(case.me)), group=case.group, async_op=case.is_async))
    for rank, output in enumerate(outputs):
        case.expect(output, wide(case.input(rank)))
    return outputs


def all_gather_of_large(case):
    """Long enough for a list of Kolo's, some ranks' tensors in a row and in place, others' apart."""
    if case.dtype not in LONG_TYPES:
        return
    count = case.long()
    whole = torch.zeros(case.size * count, dtype=case.dtype)
    parts = list(whole.split(count)) if case.number % 2 == case.me % 2 else None
    outputs = parts or [case.empty(count) for _ in range(case.size)]
    mine = case.input(case.me, count)
    mine = parts[case.me].copy_(mine) if parts else case.given(mine)
    case.end(dist.all_gather(outputs, mine, group=case.group, async_op=case.is_async))
    for rank, output in enumerate(outputs):
        case.expect(output, wide(case.input(rank, count)))


def all_gather_in_row(case):
    """A list whose tensors are the parts of one, this rank's input among them."""
    whole = torch.zeros(case.size * case.count, dtype=case.dtype)
    outputs = list(whole.split(case.count)) if case.count else [whole] * case.size
    outputs[case.me].copy_(case.input(case.me))
    case.end(dist.all_gather(outputs, outputs[case.me], group=case.group, async_op=case.is_async))
    case.expect(whole, torch.cat([wide(tensor) for tensor in case.inputs()]))


def uneven_all_gather(case):
    outputs = [case.empty(case.uneven(rank)) for rank in range(case.size)]
    mine = case.given(case.input(case.me, case.uneven(case.me)))
    case.end(dist.all_gather(outputs, mine, group=case.group, async_op=case.is_async))
    for rank, output in enumerate(outputs):
        case.expect(output, wide(case.input(rank, case.uneven(rank))))


def all_gather_into_tensor(case):
    output = case.empty(case.size * case.count)
    if case.layout == "offset":  # in place
        output = torch.empty(case.size * case.count, dtype=case.dtype)
        mine = output[case.me * case.count : (case.me + 1) * case.count].copy_(case.input(case.me))
    else:
        mine = case.given(case.input(case.me))
        output = output.reshape(-1) if case.layout == "transposed" else output
    case.end(dist.all_gather_into_tensor(output, mine, group=case.group, async_op=case.is_async))
    case.expect(output, torch.cat([wide(tensor) for tensor in case.inputs()]))
    return [output] if case.layout == "plain" else []


def rows(case, lead, columns, seed):
    """A tensor of lead x columns in the case's layout, and its values."""
    flat = values(lead * columns, case.dtype, seed).view(lead, columns)
    if case.layout == "transposed":
        return torch.empty((columns, lead), dtype=case.dtype).t().copy_(flat), flat
    if case.layout == "sliced":
        return torch.empty((2 * lead, columns + 1), dtype=case.dtype)[::2, 1:].copy_(flat), flat
    return flat.clone(), flat


def gather_of_arrays(case):
    """Coalesced, of two dimensions, every tensor in a layout of its own; the second is used as it lies on one side only."""
    seed = lambda which, rank: 1000003 * case.number + 1009 * which + rank  # noqa: E731
    shapes = [(2, 3), (case.count % 7, 5), (1, 1 + case.count % 300)]
    mine = [rows(case, *shape, seed(which, case.me))[0] for which, shape in enumerate(shapes)]
    outputs = [torch.zeros_like(rows(case, case.size * lead, columns, 0)[0]) for lead, columns in shapes]
    outputs[1] = outputs[1].contiguous()
    with dist._coalescing_manager(group=case.group, async_ops=case.is_async) as manager:
        for output, tensor in zip(outputs, mine):
            dist.all_gather_into_tensor(output, tensor, group=case.group)
    if case.is_async:
        manager.wait()
    for which, (shape, output) in enumerate(zip(shapes, outputs)):
        case.expect(output, torch.cat([wide(rows(case, *shape, seed(which, r))[1]) for r in range(case.size)]))


def reduce_scatter_of_arrays(case):
    """Likewise."""
    seed = lambda which, rank: 1000003 * case.number + 1009 * which + rank  # noqa: E731
    shapes = [(2, 3), (case.count % 7, 5), (1, 1 + case.count % 300)]
    of_rank = lambda which, lead, columns, r: rows(case, case.size * lead, columns, seed(which, r))  # noqa: E731
    mine = [of_rank(which, *shape, case.me)[0] for which, shape in enumerate(shapes)]
    outputs = [rows(case, *shape, 0)[0].zero_() for shape in shapes]
    outputs[1] = outputs[1].contiguous()
    with dist._coalescing_manager(group=case.group, async_ops=case.is_async) as manager:
        for output, tensor in zip(outputs, mine):
            dist.reduce_scatter_tensor(output, tensor, op=reduction(case.op), group=case.group)
    if case.is_async:
        manager.wait()
    for which, ((lead, columns), output) in enumerate(zip(shapes, outputs)):
        folded = fold(case.op, [of_rank(which, lead, columns, r)[1] for r in range(case.size)])
        case.expect(output, folded.view(-1, columns)[case.me * lead : (case.me + 1) * lead])


def coalesced_all_reduce_of_types(case):
    """One call with three types, of which one may have a reduction of its own."""
    types = [case.dtype] + [dtype for dtype in (torch.float32, torch.int32, torch.bool) if is_defined(case.op, dtype)]
    inputs = lambda which, dtype: [  # noqa: E731
        values(case.count + which, dtype, 1000003 * case.number + 1009 * which + rank) for rank in range(case.size)
    ]
    mine = [case.given(inputs(which, dtype)[case.me]) for which, dtype in enumerate(types)]
    with dist._coalescing_manager(group=case.group, async_ops=case.is_async) as manager:
        for tensor in mine:
            dist.all_reduce(tensor, op=reduction(case.op), group=case.group)
    if case.is_async:
        manager.wait()
    for which, (dtype, tensor) in enumerate(zip(types, mine)):
        case.expect(tensor, fold(case.op, inputs(which, dtype)))


def coalesced_all_gather(case):
    """The second is in place."""
    outputs = [torch.zeros(case.size * (case.count + which), dtype=case.dtype) for which in range(3)]
    mine = [case.given(case.input(case.me, case.count + which, which)).reshape(-1) for which in range(3)]
    mine[1] = outputs[1].view(case.size, -1)[case.me].copy_(mine[1])
    with dist._coalescing_manager(group=case.group, async_ops=case.is_async) as manager:
        for output, tensor in zip(outputs, mine):
            dist.all_gather_into_tensor(output, tensor, group=case.group)
    if case.is_async:
        manager.wait()
    for which, output in enumerate(outputs):
        case.expect(output, torch.cat([wide(tensor) for tensor in case.inputs(case.count + which, which)]))


def all_gather_coalesced(case):
    """The old form, with lists of lists."""
    outputs = [[case.empty(case.count + which) for which in range(2)] for _ in range(case.size)]
    mine = [case.given(case.input(case.me, case.count + which, which)) for which in range(2)]
    future = dist.all_gather_coalesced(outputs, mine, group=case.group, async_op=case.is_async)
    if case.is_async:
        future.wait()
    for rank, lists in enumerate(outputs):
        for which, output in enumerate(lists):
            case.expect(output, wide(case.input(rank, case.count + which, which)))


def gather(case):
    is_root = case.me == case.root
    outputs = [case.empty(case.uneven(rank)) for rank in range(case.size)] if is_root else None
    mine = case.given(case.input(case.me, case.uneven(case.me)))
    case.end(dist.gather(mine, outputs, dst=case.rank_of(case.root), group=case.group, async_op=case.is_async))
    for rank, output in enumerate(outputs or []):
        case.expect(output, wide(case.input(rank, case.uneven(rank))))
    return outputs or []


def gather_single(case):
    if not hasattr(dist, "gather_single"):
        return
    is_root = case.me == case.root
    output = case.spread(torch.zeros(case.size * case.count, dtype=case.dtype)) if is_root else None
    mine = case.spread(case.input(case.me))
    case.end(dist.gather_single(mine, output, group_dst=case.root, group=case.group, async_op=case.is_async))
    if is_root:
        case.expect(output, torch.cat([wide(tensor) for tensor in case.inputs()]))


def scatter(case):
    blocks = (
        [case.given(case.input(case.root, case.uneven(rank), rank)) for rank in range(case.size)]
        if case.me == case.root
        else None
    )
    output = case.empty(case.uneven(case.me))
    case.end(dist.scatter(output, blocks, src=case.rank_of(case.root), group=case.group, async_op=case.is_async))
    case.expect(output, wide(case.input(case.root, case.uneven(case.me), case.me)))
    return [output]


def reduce_scatter(case):
    blocks = [case.given(case.input(case.me, case.uneven(rank), rank)) for rank in range(case.size)]
    output = case.empty(case.uneven(case.me))
    case.end(dist.reduce_scatter(output, blocks, op=reduction(case.op), group=case.group, async_op=case.is_async))
    case.expect(output, fold(case.op, case.inputs(case.uneven(case.me), case.me)))
    return [output]


def reduce_scatter_of_large(case):
    """Long enough for a list of Kolo's."""
    if case.dtype not in LONG_TYPES:
        return
    count = case.long()
    blocks = [case.given(case.input(case.me, count + rank, rank)) for rank in range(case.size)]
    output = blocks[case.me] if case.layout == "offset" else case.empty(count + case.me)
    case.end(dist.reduce_scatter(output, blocks, op=reduction(case.op), group=case.group, async_op=case.is_async))
    case.expect(output, fold(case.op, case.inputs(count + case.me, case.me)))


def reduce_scatter_tensor(case):
    mine = case.spread(case.input(case.me, case.size * case.count))
    output = case.spread(torch.zeros(case.count, dtype=case.dtype))
    if case.layout == "offset":  # in place
        mine = mine.clone()
        output = mine[case.me * case.count : (case.me + 1) * case.count]
    case.end(dist.reduce_scatter_tensor(output, mine, op=reduction(case.op), group=case.group, async_op=case.is_async))
    folded = fold(case.op, case.inputs(case.size * case.count))
    case.expect(output, folded[case.me * case.count : (case.me + 1) * case.count])
    return [output] if case.layout == "plain" else []


def coalesced_reduce_scatter(case):
    outputs = [case.spread(torch.zeros(case.count + which, dtype=case.dtype)) for which in range(3)]
    with dist._coalescing_manager(group=case.group, async_ops=case.is_async) as manager:
        for which, output in enumerate(outputs):
            mine = case.spread(case.input(case.me, case.size * output.numel(), which))
            dist.reduce_scatter_tensor(output, mine, op=reduction(case.op), group=case.group)
    if case.is_async:
        manager.wait()
    for which, output in enumerate(outputs):
        count = output.numel()
        folded = fold(case.op, case.inputs(case.size * count, which))
        case.expect(output, folded[case.me * count : (case.me + 1) * count])


def all_to_all(case):
    length = lambda source, target: (
        (case.count + source + 2 * target) % 9 if case.count < 100 else case.count + source
    )  # noqa: E731
    mine = [case.given(case.input(case.me, length(case.me, rank), rank)) for rank in range(case.size)]
    outputs = [case.empty(length(rank, case.me)) for rank in range(case.size)]
    case.end(dist.all_to_all(outputs, mine, group=case.group, async_op=case.is_async))
    for rank, output in enumerate(outputs):
        case.expect(output, wide(case.input(rank, length(rank, case.me), case.me)))


def all_to_all_single(case):
    mine = case.spread(case.input(case.me, case.size * case.count))
    output = case.spread(torch.zeros(case.size * case.count, dtype=case.dtype))
    case.end(dist.all_to_all_single(output, mine, group=case.group, async_op=case.is_async))
    blocks = [
        case.input(rank, case.size * case.count)[case.me * case.count : (case.me + 1) * case.count]
        for rank in range(case.size)
    ]
    case.expect(output, torch.cat([wide(block) for block in blocks]))
    return [output]


def all_to_all_splits(case):
    """Rows of two elements, differently many for each pair."""
    rows = lambda source, target: (case.count + 2 * source + target) % 5  # noqa: E731
    sends = [rows(case.me, rank) for rank in range(case.size)]
    receives = [rows(rank, case.me) for rank in range(case.size)]
    blocks = [case.input(case.me, 2 * count, rank) for rank, count in enumerate(sends)]
    mine = torch.cat(blocks).view(-1, 2)
    output = torch.zeros((sum(receives), 2), dtype=case.dtype)
    if case.layout in ("sliced", "transposed"):
        mine, output = (torch.empty((2 * len(each), 3), dtype=case.dtype)[::2, 1:].copy_(each) for each in (mine, output))
    case.end(dist.all_to_all_single(output, mine, receives, sends, group=case.group, async_op=case.is_async))
    case.expect(output, torch.cat([wide(case.input(rank, 2 * count, case.me)) for rank, count in enumerate(receives)]))
    return [output]


def messages(case):
    """A ring, each rank with its neighbours, to itself if it is alone."""
    right, left = (case.me + 1) % case.size, (case.me - 1) % case.size
    received = case.empty(case.count)
    receive = dist.irecv(received, group_src=left, group=case.group, tag=case.number % 7)
    send = dist.isend(case.given(case.input(case.me)), group_dst=right, group=case.group, tag=case.number % 7)
    case.way = "wait" if case.way == "sync" else case.way
    case.end(receive)
    case.end(send)
    case.expect(received, wide(case.input(left)))
    return [received]


REDUCING = [
    all_reduce,
    coalesced_all_reduce,
    coalesced_all_reduce_of_types,
    reduce,
    reduce_scatter,
    reduce_scatter_of_large,
    reduce_scatter_tensor,
    coalesced_reduce_scatter,
    reduce_scatter_of_arrays,
]
MOVING = [
    broadcast,
    all_gather,
    all_gather_in_row,
    all_gather_of_large,
    uneven_all_gather,
    all_gather_into_tensor,
    coalesced_all_gather,
    gather_of_arrays,
    all_gather_coalesced,
    gather,
    gather_single,
    scatter,
    all_to_all,
    all_to_all_single,
    all_to_all_splits,
    messages,
]
COUNTS = [0, 1, 2, 5, 8, 64, 1000]
LARGE = 300_000


def draw(numbers, every):
    """Cases without their group: (call, dtype, op, way, layout, count). every: all calls with all types and reductions."""
    if every:
        for call in REDUCING + MOVING:
            for dtype in tensors.ALL:
                ops = [op for op in OPS if is_defined(op, dtype)] if call in REDUCING else ["-"]
                for op in ops:
                    for way in WAYS:
                        for layout in tensors.LAYOUTS:
                            yield call, dtype, op, way, layout, numbers.choice(COUNTS)
                    is_common = dtype in (torch.float32, torch.bfloat16) and op in ("-", "SUM", "AVG")
                    for layout in tensors.LAYOUTS if is_common else []:
                        yield call, dtype, op, numbers.choice(WAYS), layout, LARGE
        return
    for call in REDUCING + MOVING:  # each call with each type, everything else at random
        for dtype in tensors.ALL:
            op = numbers.choice([op for op in OPS if is_defined(op, dtype)]) if call in REDUCING else "-"
            count = (
                LARGE if dtype in (torch.float32, torch.bfloat16) and numbers.random() < 0.2 else numbers.choice(COUNTS)
            )
            yield call, dtype, op, numbers.choice(WAYS), numbers.choice(tensors.LAYOUTS), count


ON_BOTH = [
    all_reduce,
    coalesced_all_reduce,
    reduce,
    broadcast,
    all_gather,
    all_gather_into_tensor,
    gather,
    scatter,
    reduce_scatter,
    reduce_scatter_tensor,
    all_to_all_single,
    all_to_all_splits,
    messages,
]


def is_for_gloo(call, case):
    return (
        call in ON_BOTH
        and case.dtype in GLOO_TYPES
        and case.op in ["-", *GLOO_OPS]
        and case.layout == "plain"
        and case.count > 0
        and (call is not messages or case.size > 1)  # Gloo sends nothing to itself
    )


def compare_with_gloo(call, case, gloo):
    """The same call on Gloo gives the same."""
    other = Case(
        case.number, case.name, gloo, case.ranks, case.dtype, case.op, "sync", case.layout, case.count, case.root
    )
    call(case)
    case.even = other.even = True
    ours, theirs = call(case), call(other)
    for left, right in zip(ours, theirs):
        expect(left, wide(right), f"{case}: beside Gloo's")


def run(rank, ranks, seed, every):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    import kolo_torch  # noqa: F401  pylint: disable=import-outside-toplevel,unused-import

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=90))
    numbers = random.Random(seed)
    members = [
        list(range(ranks)),
        [0],
        [ranks - 1, *range(ranks - 1)][:2],
        list(range(0, ranks, 2)),
        list(range(1, ranks)),
    ]
    groups = []
    for some in members:
        some = sorted(set(some))
        if some and some not in [known for known, *_ in groups]:
            groups.append((some, dist.new_group(some, backend="kolo"), dist.new_group(some, backend="gloo")))
    done = beside = 0
    for number, (call, dtype, op, way, layout, count) in enumerate(draw(numbers, every)):
        some, kolo, gloo = numbers.choice(groups)
        root = numbers.randrange(len(some))
        if rank not in some:
            continue
        case = Case(number, call.__name__, kolo, some, dtype, op, way, layout, count, root)
        try:
            if is_for_gloo(call, case):
                compare_with_gloo(call, case, gloo)
                beside += 1
            else:
                call(case)
        except Exception as error:
            raise AssertionError(f"{case}: {error}") from error
        done += 1
    dist.barrier()
    dist.destroy_process_group()
    print(f"{done} cases, {beside} beside Gloo")
