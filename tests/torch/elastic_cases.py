"""Jobs that lose ranks and go on: they agree on who is left, shrink, and take in new processes."""

import datetime
import os
import signal
import tempfile
import unittest

import torch
import torch.distributed as dist

import ranks
from group import expect_equal, expect_error, kolo_group

COUNT = 3


def shared_store(folder):
    """Which no rank's death ends."""
    return dist.FileStore(f"{folder}/store")


def works_together(count):
    """Every way to a default group of so many ranks."""
    rank = dist.get_rank()
    assert dist.get_world_size() == count
    tensor = torch.full((1000,), float(rank))
    dist.all_reduce(tensor)
    expect_equal(tensor, float(sum(range(count))), "all_reduce")
    tensor = torch.ones(100000)
    dist.all_reduce(tensor, async_op=True).wait()
    expect_equal(tensor, float(count), "asynchronous all_reduce")
    tensor = torch.ones(3)
    dist.group.WORLD.allreduce([tensor]).wait()
    expect_equal(tensor, float(count), "ProcessGroup.allreduce")
    tensor = torch.full((3,), float(rank))
    dist.broadcast(tensor, count - 1)
    expect_equal(tensor, float(count - 1), "broadcast of the last rank")
    dist.monitored_barrier()
    others = dist.new_group(list(range(1, count)))
    if rank > 0:
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=others)
        expect_equal(tensor, float(count - 1), "all_reduce without rank 0")
    dist.barrier()


def loses_and_grows(rank, count, folder, transports, victim):
    os.environ["KOLO_TRANSPORTS"] = transports
    store = shared_store(folder)
    with kolo_group(store=store, rank=rank, world_size=count):
        import kolo_torch  # pylint: disable=import-outside-toplevel

        works_together(count)
        if rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        expect_error(lambda: [dist.all_reduce(torch.zeros(10)) for _ in range(100)], f"rank {victim}", "died")
        flags, dead = kolo_torch.agree(6 if rank == (victim + 1) % count else 3)
        assert (flags, dead) == (2, [victim]), (flags, dead)
        dist.shrink_group(dead)
        works_together(count - 1)
        assert kolo_torch.agree() == (2**64 - 1, [])
        if dist.get_rank() == 0:
            store.set("growth", kolo_torch.growth_id())
        growth = store.get("growth").decode()
        print("shrunk", flush=True)
        before = dist.get_rank()
        group = kolo_torch.grow_group(growth, count, store, timeout=datetime.timedelta(seconds=60))
        assert isinstance(group, dist.ProcessGroup) and group is dist.group.WORLD
        assert dist.get_rank() == before
        works_together(count)


def joins(_, __, folder, transports):
    os.environ["KOLO_TRANSPORTS"] = transports
    import kolo_torch  # pylint: disable=import-outside-toplevel

    torch.set_num_threads(1)
    store = shared_store(folder)
    growth = store.get("growth").decode()
    group = kolo_torch.grow_group(growth, COUNT, store, rank=COUNT - 1, timeout=datetime.timedelta(seconds=60))
    assert (group.rank(), group.size()) == (COUNT - 1, COUNT)
    works_together(COUNT)
    dist.destroy_process_group()


def refuses_wrong_use(rank, count, folder):
    os.environ["KOLO_INIT_TIMEOUT_MS"] = "15000"
    import kolo_torch  # pylint: disable=import-outside-toplevel

    store = shared_store(folder)
    expect_error(kolo_torch.agree, "agree: there is no default group", kind=ValueError)
    expect_error(kolo_torch.growth_id, "growth_id: there is no default group", kind=ValueError)
    expect_error(lambda: kolo_torch.grow_group("00", 3, store), "a new process gives its rank", kind=ValueError)
    with kolo_group():
        if rank == 0:
            store.set("growth", kolo_torch.growth_id())
        else:
            expect_error(kolo_torch.growth_id, "this is rank 1", "only rank 0", kind=ValueError)
        growth = store.get("growth").decode()

        def refused(*words, kind=ValueError, given=growth, size=count + 1, **others):
            expect_error(lambda: kolo_torch.grow_group(given, size, store, **others), *words, kind=kind)

        refused(f"rank 2 is given, and this process is rank {rank}", rank=2)
        refused("growth_id is 'no digits'", given="no digits")
        refused("growth_id is None", given=None)
        refused("has 2 bytes, expected 128", given="abcd")
        refused("pg_options is a int", kind=TypeError, pg_options=3)
        refused(f"nranks is {count}, expected more than the {count}", kind=RuntimeError, size=count)
        refused("not a unique id", given="00" * 128)
        for flags in (-1, 2**64, "1"):
            expect_error(lambda flags=flags: kolo_torch.agree(flags), f"flags is {flags!r}", kind=ValueError)
        refused(f"{count} of {count + 1}", "not joined", "KOLO_INIT_TIMEOUT_MS", kind=RuntimeError)  # which does not come
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        expect_equal(tensor, float(count), "after the errors")
        if rank == 0:
            store.set("second", kolo_torch.growth_id())
        growth = store.get("second").decode()
    words = f"rank is 0, expected {count}..{count}"
    expect_error(lambda: kolo_torch.grow_group(growth, count + 1, store, rank=0), words)
    dist.init_process_group("gloo")
    expect_error(kolo_torch.agree, "agree: the group has no backend of Kolo's", kind=ValueError)
    expect_error(lambda: kolo_torch.grow_group(growth, 3, store), "no backend of Kolo's", kind=ValueError)
    dist.destroy_process_group()


class Elastic(unittest.TestCase):
    def check(self, transports, victim):
        with tempfile.TemporaryDirectory() as folder:
            job = ranks.Job(loses_and_grows, COUNT, folder, transports, victim)
            survivors = [rank for rank in range(COUNT) if rank != victim]
            for rank in survivors:
                self.assertTrue(job.has_said(rank, "shrunk|Error"), job.output(rank))
            added = ranks.Job(joins, 1, folder, transports)
            outcomes = job.outcomes()
            self.assertEqual([outcomes[rank].status for rank in survivors], [0, 0], outcomes)
            self.assertEqual(outcomes[victim].status, -signal.SIGKILL, outcomes)
            new = added.outcomes()
            self.assertEqual(new[0].status, 0, new)

    def test_a_job_loses_a_rank_and_grows_again_over_shm(self):
        self.check("shm", 1)

    def test_a_job_loses_a_rank_and_grows_again_over_tcp(self):
        self.check("tcp", 2)

    def test_a_job_loses_rank_0_and_grows_again(self):  # whose process relayed the control messages
        self.check("shm", 0)

    def test_wrong_use(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks.run(self, refuses_wrong_use, 2, folder)
