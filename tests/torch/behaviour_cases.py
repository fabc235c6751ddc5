"""What the backend does beside moving and reducing: works, messages, groups, and their ends."""

import ctypes
import datetime
import os
import platform
import threading
import time
import unittest

import torch
import torch.distributed as dist

import ranks
from group import expect_equal, expect_error, hear, kolo_group, say

BACK = 0.3  # seconds that a rank stays away


def tags_in_any_order(rank, _):
    with kolo_group():
        if rank == 0:
            for tag in (3, 1, 2):
                dist.send(torch.full((5,), float(tag)), 1, tag=tag)
        else:
            for tag in (1, 2, 3):
                tensor = torch.zeros(5)
                dist.recv(tensor, 0, tag=tag)
                expect_equal(tensor, float(tag))


def any_source(rank, count):
    with kolo_group():
        if rank == 0:
            seen = []
            for _ in range(count - 1):
                tensor = torch.zeros(3)
                source = dist.recv(tensor, tag=5)
                expect_equal(tensor, float(source))
                seen.append(source)
            assert sorted(seen) == list(range(1, count)), seen
        else:
            dist.send(torch.full((3,), float(rank)), 0, tag=5)


def hundreds_under_way(rank, _):
    """Receives first on both ranks, waited for in another order than they were posted."""
    with kolo_group():
        received = [torch.zeros(50 + i) for i in range(200)]
        works = [dist.irecv(tensor, 1 - rank, tag=i) for i, tensor in enumerate(received)]
        sends = [dist.isend(torch.full((50 + i,), float(i + rank)), 1 - rank, tag=i) for i in reversed(range(200))]
        for i in reversed(range(200)):
            works[i].wait()
            expect_equal(received[i], float(i + 1 - rank))
        for work in sends:
            work.wait()


def futures_and_polls(rank, _):
    """Both who completes the future and who asks without a pause see the end, and let tensors go."""
    with kolo_group():
        for turn in range(300):
            work = dist.isend(torch.ones(1), 1) if rank == 0 else dist.irecv(torch.zeros(1), 0)
            future = work.get_future()
            while turn % 2 == 0 and not work.is_completed():
                pass
            del work
            future.wait()
        for _ in range(100):
            dist.all_gather_into_tensor(torch.zeros(2), torch.ones(1), async_op=True).get_future().wait()


def large_messages_both_ways(rank, _):
    with kolo_group():
        for count in (1, 10_000, 3_000_000):
            tensor = torch.zeros(count)
            receive, send = dist.irecv(tensor, 1 - rank), dist.isend(torch.full((count,), float(rank)), 1 - rank)
            receive.wait()
            send.wait()
            expect_equal(tensor, float(1 - rank))


def batches(rank, count):
    with kolo_group():
        right, left = (rank + 1) % count, (rank - 1) % count
        for size in (1, 1000, 500_000):
            received = [torch.zeros(size) for _ in range(3)]
            ops = [dist.P2POp(dist.isend, torch.full((size,), float(10 * i + rank)), right) for i in range(3)]
            ops += [dist.P2POp(dist.irecv, tensor, left) for tensor in received]
            works = dist.batch_isend_irecv(ops)
            assert len(works) == 1, works
            for work in works:
                work.wait()
            for i, tensor in enumerate(received):
                expect_equal(tensor, float(10 * i + left))


def failed_batch_leaves_nothing_open(rank, _):
    with kolo_group() as group:
        group._start_coalescing(torch.device("cpu"))
        group.send([torch.zeros(3)], 1 - rank, 0)
        # what would have ended the batch was passed over by an exception
        group._start_coalescing(torch.device("cpu"))
        group._end_coalescing(torch.device("cpu"))
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        expect_equal(tensor, 2.0)


def short_message(rank, _):
    with kolo_group():
        if rank == 0:
            dist.send(torch.zeros(3), 1)
        else:
            expect_error(lambda: dist.recv(torch.zeros(5), 0), "rank 0 sent 3 elements", "the tensor has 5")
        dist.barrier()


def many_collectives_under_way(rank, count):
    with kolo_group():
        given = [torch.full((100 * i + 1,), float(i + rank)) for i in range(100)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in given]
        for i in reversed(range(100)):
            works[i].wait()
            expect_equal(given[i], float(sum(i + other for other in range(count))))


def coalesced_calls_convert(rank, count):
    """To the type of the output: before a reduction, so that bfloat16's digits do not limit the sum."""
    with kolo_group() as group:
        given = [torch.full((4, 3), rank + 1.001), torch.full((6,), float(rank)).bfloat16()]
        outputs = [torch.zeros(4 * count, 3, dtype=torch.bfloat16), torch.zeros(6 * count)]
        group.allgather_into_tensor_coalesced(outputs, given).wait()
        expect_equal(outputs[0], torch.cat([torch.full((4, 3), r + 1.001) for r in range(count)]).bfloat16())
        expect_equal(outputs[1], torch.cat([torch.full((6,), float(r)) for r in range(count)]))
        blocks = [torch.full((5 * count,), 256.0 if rank else 1.0).bfloat16(), torch.ones(count, dtype=torch.int32)]
        outputs = [torch.zeros(5), torch.zeros(1, dtype=torch.int32)]
        group.reduce_scatter_tensor_coalesced(outputs, blocks).wait()
        expect_equal(outputs[0], 1.0 + 256.0 * (count - 1))
        expect_equal(outputs[1], count)


def coalesced_calls_name_the_item(rank, _):
    with kolo_group() as group:
        expect_error(
            lambda: group.allgather_into_tensor_coalesced(
                [torch.zeros(6), torch.zeros(6)], [torch.ones(3), torch.ones(3).int()]
            ),
            "item 1",
            "int32",
            kind=ValueError,
        )
        tensors = [torch.ones(2), torch.ones(3 + rank), torch.ones(4)]
        expect_error(lambda: dist.all_reduce_coalesced(tensors), "kolo:all_reduce", "list")


def dropped_works_go_on(rank, count):
    """Nobody keeps the work, nor the tensor of one side."""
    with kolo_group():
        kept = [torch.full((1000,), float(rank)) for _ in range(20)]
        for tensor in kept:
            dist.all_reduce(tensor, async_op=True)
        strided = torch.full((4, 6), float(rank)).t()
        dist.all_reduce(strided, async_op=True)
        dist.isend(torch.full((2_000_000,), float(rank)), (rank + 1) % count)
        received = torch.zeros(2_000_000)
        dist.recv(received, (rank - 1) % count)
        expect_equal(received, float((rank - 1) % count))
        dist.barrier()
        deadline = time.monotonic() + 10
        while strided.ne(sum(range(count))).any() and time.monotonic() < deadline:
            time.sleep(0.01)  # the copy back is made by whoever sees the end
        for tensor in [*kept, strided]:
            expect_equal(tensor, float(sum(range(count))))


def progress_without_waiting(rank, _):
    """While one rank calculates, the other's work comes to its end."""
    with kolo_group():
        tensor = torch.ones(1_000_000)
        dist.barrier()
        work = dist.all_reduce(tensor, async_op=True)
        if rank == 0:
            hear("the other's is over", 30)
        work.wait()
        if rank == 1:
            say("the other's is over")
        expect_equal(tensor, 2.0)
        dist.barrier()


def waiting_leaves_the_core(rank, _):
    """Both ranks on one core: while one waits for the other, whose autograd calculates, it takes little of the core."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with kolo_group():
        for asynchronous in (False, True):
            weights = torch.ones(300, 300, requires_grad=True)
            dist.barrier()
            if rank == 1:
                hear(f"begins {asynchronous}")
            began, since = time.process_time(), time.monotonic()
            if rank == 0:
                say(f"begins {asynchronous}")
            while rank == 1 and time.process_time() - began < BACK:
                (weights @ weights).sum().backward()
            work = dist.all_reduce(torch.ones(10), async_op=asynchronous)
            if asynchronous:
                work.wait()
            took, lasted = time.process_time() - began, time.monotonic() - since
            assert rank == 1 or took < lasted / 3, f"waiting took {took} s of the core in {lasted} s"


def futures(rank, count):
    with kolo_group():
        total = float(sum(range(count)))
        work = dist.all_reduce(torch.full((10,), float(rank)), async_op=True)
        halved = work.get_future().then(lambda future: future.value()[0] / 2)
        expect_equal(halved.wait(), total / 2)

        def next_one(future):  # as PowerSGD's hook does
            tensor = future.value()[0].clone()
            return dist.all_reduce(tensor, async_op=True).get_future().wait()[0]

        chained = [dist.all_reduce(torch.full((10,), float(rank)), async_op=True) for _ in range(1)]
        results = [work.get_future().then(next_one) for work in chained]
        for result in results:
            expect_equal(result.wait(), total * count)
        work = dist.all_reduce(torch.zeros(1), async_op=True)
        work.wait()
        assert work.get_future().done()


def futures_fail(rank, _):
    with kolo_group():
        work = dist.all_reduce(torch.zeros(3 + rank), async_op=True)
        expect_error(work.get_future().wait, "rank 0", "rank 1", "count 3", "count 4")


def waiting_has_a_limit(rank, _):
    with kolo_group():
        tensor = torch.ones(10)
        if rank == 1:
            hear("waited")
        work = dist.all_reduce(tensor, async_op=True)
        if rank == 0:
            expect_error(lambda: work.wait(datetime.timedelta(seconds=BACK / 2)), "not over after", "goes on")
            say("waited")
        work.wait()
        expect_equal(tensor, 2.0)


def a_call_has_a_deadline(rank, _):
    """Its own, shorter than the group's; the error names who was waited for."""
    with kolo_group() as group:
        dist.barrier()
        if rank == 1:
            hear("waited")
            say("heard")
            # What rank 0 has sent may be enough for the first one.
            expect_error(lambda: [dist.all_reduce(torch.zeros(7)) for _ in range(2)], "all_reduce")
            return
        options = dist.AllreduceOptions()
        options.timeout = datetime.timedelta(seconds=BACK)
        options.asyncOp = False
        began = time.monotonic()
        expect_error(lambda: group.allreduce([torch.zeros(7)], options), "rank 1", "all_reduce", "count 7")
        assert time.monotonic() - began < 20, time.monotonic() - began  # the group's is a minute
        say("waited")
        hear("heard")


def a_group_has_a_deadline(rank, _):
    with kolo_group() as group:
        (
            group._set_timeout(datetime.timedelta(seconds=BACK))
            if hasattr(group, "_set_timeout")
            else dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=BACK))
        )
        if rank == 1:
            hear("waited")
            say("heard")
            # What rank 0 has sent may be enough for the first one.
            expect_error(lambda: [dist.all_reduce(torch.zeros(7)) for _ in range(2)], "all_reduce")
            return
        expect_error(lambda: dist.all_reduce(torch.zeros(7)), "rank 1", "all_reduce")
        say("waited")
        hear("heard")


def mismatch(rank, _):
    with kolo_group() as group:
        expect_error(lambda: dist.all_reduce(torch.zeros(3 + rank)), "rank 0", "rank 1", "count 3", "count 4")
        assert group._get_backend(torch.device("cpu")).get_error() != 0


def arguments_are_refused(rank, count):
    """On the rank that is wrong, before anything is sent: the group goes on."""
    with kolo_group():
        for function, kind, word in [
            (lambda: dist.all_reduce(torch.ones(3), op=dist.ReduceOp.BAND), ValueError, "BAND"),
            (lambda: dist.all_gather_into_tensor(torch.zeros(count + 1), torch.zeros(1)), ValueError, "world_size"),
            (
                lambda: dist.all_gather_into_tensor(torch.zeros(count, dtype=torch.int32), torch.zeros(1)),
                ValueError,
                "types",
            ),
            (
                lambda: dist.all_to_all_single(
                    torch.zeros(2 * count), torch.zeros(2 * count), [1] * count, [2] * count
                ),
                ValueError,
                "splits",
            ),
            (
                lambda: dist.group.WORLD.alltoall(
                    [torch.zeros(2, dtype=torch.float16)] * count, [torch.zeros(2)] * count
                ),
                ValueError,
                "one type",
            ),
            (lambda: dist.all_reduce(torch.zeros(3).to(torch.float8_e4m3fnuz)), TypeError, "Float8_e4m3fnuz"),
        ]:
            expect_error(function, word, kind=kind)
        tensor = torch.full((3,), float(rank))
        dist.all_reduce(tensor)
        expect_equal(tensor, float(sum(range(count))))


def sequence_numbers(rank, _):
    with kolo_group() as group:
        begin = group._get_sequence_number_for_group()
        for _ in range(5):
            dist.all_reduce(torch.zeros(1))
        assert group._get_sequence_number_for_group() == begin + 5
        gathered = [None, None]
        dist.all_gather_object(gathered, group._get_sequence_number_for_group())
        assert gathered[0] == gathered[1], gathered


def profiler(rank, _):
    with kolo_group():
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, record_shapes=True) as profiled:
            dist.all_reduce(torch.zeros(1000))
            dist.broadcast(torch.zeros(900), 0, async_op=True).wait()
            dist.all_gather_into_tensor(torch.zeros(14), torch.zeros(7))
            dist.all_gather([torch.zeros(2, 4), torch.zeros(2, 4)], torch.zeros(2, 4), async_op=True).wait()
            if rank == 0:
                dist.send(torch.zeros(10), 1)
            else:
                dist.recv(torch.zeros(10), 0)
        seen = [(event.name, event.input_shapes) for event in profiled.events() if event.name.startswith("kolo:")]
        wanted = [
            ("kolo:all_reduce", [[1000]]),
            ("kolo:broadcast", [[900]]),
            ("kolo:all_gather", [[7]]),
            ("kolo:all_gather", [[2, 4]]),
            ("kolo:send" if rank == 0 else "kolo:recv", [[10]]),
        ]
        assert sorted(seen) == sorted(wanted), seen


def sparse(rank, count):
    with kolo_group():
        for dense in ((), (3,)):

            def of(other):
                rows = torch.tensor([[other, other + 1, 0]])  # row 0 and neighbours are shared; rank 0 names one twice
                return torch.sparse_coo_tensor(rows, torch.ones((3, *dense)) * (other + 1), (count + 1, *dense))

            for asynchronous in (False, True):
                mine = of(rank)
                work = dist.all_reduce(mine, async_op=asynchronous)
                if asynchronous:
                    work.wait()
                expect_equal(mine.to_dense(), sum(of(other).to_dense() for other in range(count)))
        mine = torch.sparse_coo_tensor([[rank, 0]], torch.tensor([rank + 1, 5]), (count,))
        dist.all_reduce(mine, op=dist.ReduceOp.AVG)  # of integers: truncated, as of dense tensors
        wanted = torch.arange(1, count + 1)
        wanted[0] += 5 * count
        expect_equal(mine.to_dense(), wanted.div(count, rounding_mode="trunc"))
        truth = torch.sparse_coo_tensor([[0]], torch.tensor([True]), (4,))
        expect_error(lambda: dist.all_reduce(truth, op=dist.ReduceOp.AVG), "bool has no average", kind=ValueError)
        empty = torch.sparse_coo_tensor(torch.zeros((1, 0), dtype=torch.int64), torch.zeros((0, 3)), (4, 3))
        mine = empty if rank == 0 else torch.sparse_coo_tensor([[2]], torch.ones((1, 3)), (4, 3))
        dist.all_reduce(mine)
        assert mine.to_dense().sum() == 3 * (count - 1), mine
        sparse_in_other_modes(rank)
        wrong = torch.sparse_coo_tensor([[0]], torch.ones(1), (4 + rank,))
        expect_error(lambda: dist.all_reduce(wrong), "(4)", kind=(ValueError, RuntimeError))


def sparse_in_other_modes(rank):
    """Kolo sums in the usual floating-point mode, whatever a thread has set: sparse tensors, too. One of two blocks is named twice."""
    libm = ctypes.CDLL("libm.so.6")

    def bits_of_sums(values):
        mine = torch.sparse_coo_tensor([[0, 1, 1]], values, (2,))
        dist.all_reduce(mine)
        return mine._values().view(torch.int32).tolist()

    wanted = {}
    for usual in (True, False):
        torch.set_flush_denormal(not usual)
        small = bits_of_sums(torch.tensor([1000, 10, 20], dtype=torch.int32).view(torch.float32))
        torch.set_flush_denormal(False)
        nearest, upward = libm.fegetround(), {"x86_64": 0x800, "aarch64": 0x400000}.get(platform.machine())
        if not usual and upward is not None:
            assert libm.fesetround(upward) == 0
        values = torch.tensor([1.0 if rank == 0 else 2.0**-26, 1.0, 2.0**-26])
        wanted[usual] = small, bits_of_sums(values)
        assert libm.fesetround(nearest) == 0
    assert wanted[False] == wanted[True], wanted


def other_types(rank, count):
    """Types that Kolo does not have are moved, as bytes."""
    with kolo_group():
        for dtype in (torch.complex32, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.uint8):
            size = torch.empty((), dtype=dtype).element_size()

            def of(other):
                return (torch.arange(6 * size) + 7 * other).to(torch.uint8).view(dtype)  # noqa: B023

            everyone = [torch.empty_like(of(0)) for _ in range(count)]
            dist.all_gather(everyone, of(rank))
            roots = of(rank)
            dist.broadcast(roots, src=count - 1)
            for other, got in enumerate([*everyone, roots]):
                expect_equal(got.view(torch.uint8), of(min(other, count - 1)).view(torch.uint8))


def barriers(rank, count):
    """A barrier that is asynchronous ends when all have come, and not before."""
    with kolo_group() as group:
        store = dist.PrefixStore("barriers", dist.distributed_c10d._get_default_store())
        for turn in range(3):
            if rank == turn % count:
                time.sleep(BACK)
                assert store.add(f"over {turn}", 0) == 0
            dist.barrier(group, async_op=True).wait()
            store.add(f"over {turn}", 1)


def objects(rank, count):
    with kolo_group():
        gathered = [None] * count
        dist.all_gather_object(gathered, {"rank": rank, "long": "x" * (1000 * rank)})
        assert [each["rank"] for each in gathered] == list(range(count))
        one = [{"of": "rank 0"} if rank == 0 else None]
        dist.broadcast_object_list(one, src=0)
        assert one == [{"of": "rank 0"}]
        got = [None]
        dist.scatter_object_list(got, [f"for {other}" for other in range(count)] if rank == 0 else None, src=0)
        assert got == [f"for {rank}"]
        collected = [None] * count if rank == 0 else None
        dist.gather_object(rank * 2, collected, dst=0)
        assert rank != 0 or collected == [2 * other for other in range(count)]


def threads_with_groups_of_their_own(rank, count):
    with kolo_group():
        groups = [dist.new_group() for _ in range(3)]
        errors = []

        def work(group, number):
            try:
                for i in range(50):
                    tensor = torch.full((1000,), float(rank + i + number))
                    dist.all_reduce(tensor, group=group)
                    expect_equal(tensor, float(sum(other + i + number for other in range(count))))
            except BaseException as error:  # pylint: disable=broad-except
                errors.append(error)

        threads = [threading.Thread(target=work, args=(group, i)) for i, group in enumerate(groups)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors


class Behaviour(unittest.TestCase):
    """Each function above, with as many ranks as stand here."""


RANKS = {
    tags_in_any_order: 2,
    any_source: 4,
    hundreds_under_way: 2,
    futures_and_polls: 2,
    large_messages_both_ways: 2,
    batches: 3,
    failed_batch_leaves_nothing_open: 2,
    short_message: 2,
    many_collectives_under_way: 3,
    coalesced_calls_convert: 3,
    coalesced_calls_name_the_item: 2,
    dropped_works_go_on: 3,
    progress_without_waiting: 2,
    waiting_leaves_the_core: 2,
    futures: 3,
    futures_fail: 2,
    waiting_has_a_limit: 2,
    a_call_has_a_deadline: 2,
    a_group_has_a_deadline: 2,
    mismatch: 2,
    arguments_are_refused: 3,
    sequence_numbers: 2,
    profiler: 2,
    sparse: 3,
    other_types: 3,
    barriers: 3,
    objects: 3,
    threads_with_groups_of_their_own: 3,
}
for function, count in RANKS.items():
    setattr(
        Behaviour,
        f"test_{function.__name__}",
        lambda self, function=function, count=count: ranks.run(self, function, count) and None,
    )
