"""How groups begin, divide and end."""

import datetime
import os
import signal
import tempfile
import threading
import time
import unittest

import torch
import torch.distributed as dist
import torch.distributed.run

import ranks
from cases import smoke
from group import expect_equal, expect_error, hear, kolo_group, say

HERE = os.path.dirname(os.path.abspath(__file__))
# torch before 2.15 splits only groups that are bound to an accelerator.
SPLITS_ON_CPU = tuple(int(word) for word in torch.__version__.split(".")[:2]) >= (2, 15)


def subgroups(rank, count):
    with kolo_group():
        halves = [dist.new_group([0, 1]), dist.new_group(list(range(2, count)))]
        mine = halves[0 if rank < 2 else 1]
        tensor = torch.ones(10)
        dist.all_reduce(tensor, group=mine)
        expect_equal(tensor, 2.0 if rank < 2 else float(count - 2))
        dist.destroy_process_group(halves[0])
        tensor = torch.ones(10)
        dist.all_reduce(tensor)
        expect_equal(tensor, float(count))


def split(rank, count):
    with kolo_group() as group:
        half = dist.split_group(split_ranks=[[0, 1], list(range(2, count))], parent_pg=group)
        tensor = torch.full((4,), float(rank))
        dist.all_reduce(tensor, group=half)
        expect_equal(tensor, 1.0 if rank < 2 else float(sum(range(2, count))))
        assert half.size() == (2 if rank < 2 else count - 2)


def shrink_after_a_death(rank, count):
    with kolo_group() as group:
        dist.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        expect_error(lambda: [dist.all_reduce(torch.zeros(10)) for _ in range(100)], "rank 1", "died")
        smaller = dist.shrink_group([1], group=group)
        tensor = torch.full((3,), float(rank))
        dist.all_reduce(tensor, group=smaller)
        expect_equal(tensor, float(sum(range(count)) - 1))
        assert smaller.size() == count - 1
        dist.monitored_barrier(group=smaller)


def monitored(rank, count):
    with kolo_group():
        for _ in range(3):
            dist.monitored_barrier()
        short = datetime.timedelta(seconds=2)  # in which those who come are there, on a busy machine too
        if rank in (1, 2):
            time.sleep(5)
            return
        words = ["Ranks 1, 2 failed to pass monitoredBarrier" if count > 3 else "Rank 1"]
        expect_error(lambda: dist.monitored_barrier(timeout=short, wait_all_ranks=True), *words)


def monitored_after_a_death(rank, _):
    """The others know in a second what they would else wait for as long as a group may wait: ten minutes here."""
    with kolo_group(600):
        dist.monitored_barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        begin = time.monotonic()
        words = ["failed to pass monitoredBarrier: "] if rank == 0 else ["successfully reached monitoredBarrier"]
        expect_error(dist.monitored_barrier, "rank 1", "died", *words)
        assert time.monotonic() - begin < 120


def backend_of(store, name, rank, count, options=None, seconds=60, global_ranks=()):
    """A backend as torch makes it; without global ranks its ranks are not those of another group."""
    import kolo_torch  # pylint: disable=import-outside-toplevel

    given = dist.distributed_c10d._DistributedBackendOptions()
    given.store, given.group_id = dist.PrefixStore(name, store), name
    given.group_rank, given.group_size, given.global_ranks_in_group = rank, count, list(global_ranks)
    given.timeout = datetime.timedelta(seconds=seconds)
    return kolo_torch._backend.create(given, options)


def expect_sum(backend, count):
    tensor = torch.ones(3)
    backend.allreduce([tensor]).wait()
    expect_equal(tensor, float(count))


def new_group_with_the_dead(rank, count):
    """The others know why it cannot be made long before they would have waited in vain: ten minutes here."""
    with kolo_group(600) as group:
        store = dist.distributed_c10d._get_default_store()
        if rank > 0:  # in a group with other numbers
            expect_sum(backend_of(store, "others", rank - 1, count - 1), count - 1)
        dist.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        begin = time.monotonic()
        first = "rank 1 of the group (rank 1 of the default group) has died"
        expect_error(lambda: dist.new_group(list(range(count))), f"{first}: rank 1 (pid ")
        say(f"{rank} knows")
        for each in (0, 2, 3):
            hear(f"{each} knows")
        if rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        second = "rank 1 of the group (rank 3 of the default group) has died"
        told = expect_error(lambda: dist.new_group([rank, 3], use_local_synchronization=True), second)
        assert "pid" not in told, told  # the communicator's own failure is the first death
        expect_error(lambda: dist.new_group([1, rank], use_local_synchronization=True), "(rank 1 of the default group)")
        if SPLITS_ON_CPU:
            words = "rank 1 of the group (rank 1 of the group that is split) has died"
            expect_error(lambda: dist.split_group(split_ranks=[[0, 1, 2]], parent_pg=group), words)
        expect_error(lambda: [dist.all_reduce(torch.zeros(10)) for _ in range(100)], "rank 1", "died")
        expect_error(lambda: dist.new_group(list(range(count))), first)
        living = dist.new_group([0, 2], use_local_synchronization=True)
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=living)
        expect_equal(tensor, 2.0)
        dist.shrink_group([1, 3], group=group)
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=dist.new_group([0, 1]))  # the living, as they count now
        expect_equal(tensor, 2.0)
        assert time.monotonic() - begin < 120


def goes_on_without_rank_0(rank, count, folder):
    """Groups that it was not in, before and after its death. An earlier group on the store counts the ranks otherwise."""
    store = dist.FileStore(f"{folder}/store", count)
    earlier = backend_of(store, "earlier", count - 1 - rank, count)
    expect_sum(earlier, count)
    with kolo_group(600, store=store, rank=rank, world_size=count):
        dist.barrier()
        before = dist.new_group([1, 2], use_local_synchronization=True) if rank > 0 else None
        dist.barrier()
        if rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        begin = time.monotonic()
        expect_error(lambda: dist.new_group(list(range(count))), "rank 0 of the group (rank 0 of the default group)")
        after = dist.new_group([2, 1], use_local_synchronization=True)
        for each in (before, after, before):
            tensor = torch.ones(3)
            dist.all_reduce(tensor, group=each)
            expect_equal(tensor, 2.0)
        assert time.monotonic() - begin < 120


def groups_of_their_members_alone(rank, count):
    """Each rank makes those that it is in, whatever the default group has begun, and whatever comes of it."""
    with kolo_group() as group:
        before = torch.ones(5)
        if rank == 0:
            work = dist.all_reduce(before, async_op=True)
        made = []
        for ranks_of_it in ([0, 1], [2, 3], [3, 0], [1, 2], list(range(count))):
            if rank in ranks_of_it:
                made.append(dist.new_group(ranks_of_it, use_local_synchronization=True))
        if rank == 0:
            work.wait()
        else:
            dist.all_reduce(before)
        expect_equal(before, float(count))
        group._get_backend(torch.device("cpu")).shutdown()
        for each in made:
            members = dist.get_process_group_ranks(each)
            tensor = torch.full((4,), float(rank))
            dist.all_reduce(tensor, group=each)
            expect_equal(tensor, float(sum(members)))


def groups_of_other_worlds(rank, count, folder):
    """As programs make them that combine a trainer and others: with a store and ranks of their own."""
    with kolo_group():
        stores = [dist.FileStore(f"{folder}/store", count - 1), dist.distributed_c10d._get_default_store()]
        others = [backend_of(store, "others", count - 1 - rank, count - 1) for store in stores if rank > 0]
        for ranks_of_it in ([0, 1], [1, 2], list(range(count))):
            made = dist.new_group(ranks_of_it)
            if rank in ranks_of_it:
                tensor = torch.full((3,), float(rank))
                dist.all_reduce(tensor, group=made)
                expect_equal(tensor, float(sum(ranks_of_it)))
        for each in others:
            expect_sum(each, count - 1)
            each.shutdown()
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=dist.new_group())
        expect_equal(tensor, float(count))


def groups_of_one_name(rank, count):
    """They are different ones, at the same time and one after another."""
    with kolo_group():
        store = dist.distributed_c10d._get_default_store()
        here, there = (backend_of(dist.PrefixStore(place, store), "name", rank, count) for place in ("here", "there"))
        here.abort()
        expect_sum(there, count)
        for _ in range(3):
            again = dist.new_group([0, 1], use_local_synchronization=True) if rank < 2 else None
            if again is not None:
                tensor = torch.ones(3)
                dist.all_reduce(tensor, group=again)
                expect_equal(tensor, 2.0)
                dist.destroy_process_group(again)


def groups_of_two_threads(rank, count):
    """Which make them side by side, in an order that differs from rank to rank."""
    with kolo_group():
        store = dist.distributed_c10d._get_default_store()
        failures = []

        def make(thread, members):
            try:
                for number in range(10):
                    if rank in members:
                        name = f"{thread} {number}"
                        backend = backend_of(store.clone(), name, members.index(rank), len(members))
                        expect_sum(backend, len(members))
            except Exception as error:  # pylint: disable=broad-except
                failures.append(error)

        sets = [list(range(count)), [0, 2], [0, 1], [2, 1]]
        threads = [threading.Thread(target=make, args=each) for each in enumerate(sets)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]


def groups_of_threads_of_one_rank(rank, _):
    """They offer the same communicators, whose rank they cannot share."""
    with kolo_group():
        store = dist.distributed_c10d._get_default_store()
        members = [0, 2] if rank == 0 else [1]
        failures = []

        def make(member, store):
            try:
                expect_sum(backend_of(store, "threads", member, 3), 3)
            except Exception as error:  # pylint: disable=broad-except
                failures.append(error)

        threads = [threading.Thread(target=make, args=(each, store.clone())) for each in members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]


class LateStore(dist.Store):
    """Its rank is late to read what rank 0 has chosen, until the event is set."""

    def __init__(self, store):
        super().__init__()
        self.store, self.has_begun, self.may_go_on = store, threading.Event(), threading.Event()

    def check(self, keys):
        return self.store.check(keys)

    def get(self, key):
        if key.endswith("/word"):
            self.has_begun.set()
            self.may_go_on.wait()
        return self.store.get(key)

    def set(self, key, value):
        self.store.set(key, value)


def groups_that_wait_for_another(rank, count):
    """A group waits for the one before it no longer than its own time, and the one before goes on."""
    with kolo_group():
        store = dist.distributed_c10d._get_default_store()
        slow = []
        late = LateStore(store.clone())

        def make_slowly(its_store):
            slow.append(backend_of(its_store, "slow", rank, 2))

        if rank < 2:
            maker = threading.Thread(target=make_slowly, args=(late if rank == 1 else store.clone(),))
            maker.start()
        if rank == 1:
            late.has_begun.wait()
            say("rank 0 waits for rank 1")
        hear("rank 0 waits for rank 1")
        if rank == 0:
            expect_error(
                lambda: backend_of(store, "quick", 0, 1, seconds=1),
                "waited 1000 ms for other groups with this rank 0 to be made",
            )
            say("0 has waited")
        elif rank == 1:
            hear("0 has waited")
            late.may_go_on.set()
        if rank < 2:
            maker.join()
            expect_sum(slow[0], 2)
        expect_sum(backend_of(store, "after", rank, count), count)
        # Numbers of another world say nothing of the default group.
        expect_sum(backend_of(store, "wider", rank, count, global_ranks=range(1, count + 1)), count)


def dies_when_all_have_met(rank, count):
    """In a group of its own transport, so that the ranks join anew: the other's error begins with the death."""
    import kolo_torch  # pylint: disable=import-outside-toplevel

    os.environ["KOLO_INIT_TIMEOUT_MS"] = "8000"  # which pass in vain, and suffice for the default group
    with kolo_group():
        options = kolo_torch.Options()
        options.transports = "shm"
        store = LateStore(dist.distributed_c10d._get_default_store())

        def make():
            return backend_of(store, "joins", rank, count, options, global_ranks=range(count))

        if rank == 1:
            threading.Thread(target=make).start()
            store.has_begun.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        told = expect_error(make, "rank 1 of the group (rank 1 of the default group) has died", "has not joined")
        assert told.index("has died") < told.index("has not joined"), told


class CountingStore(dist.Store):
    """What one rank asks of a store."""

    def __init__(self, store):
        super().__init__()
        self.store, self.checks, self.keys, self.gets = store, 0, 0, 0

    def check(self, keys):
        self.checks += 1
        self.keys += len(keys)
        return self.store.check(keys)

    def get(self, key):
        self.gets += 1
        return self.store.get(key)

    def set(self, key, value):
        self.store.set(key, value)


def asks_for_few_keys(_, __):
    """Ranks that are threads: followers ask for one key at a time, rank 0 for few, however long it waits."""
    count = 16
    store = dist.HashStore()
    stores = [CountingStore(store) for _ in range(count)]
    made = [None] * count

    def make(rank):
        while rank > 0 and stores[0].checks < 40:
            time.sleep(0.01)
        made[rank] = [backend_of(stores[rank], "threads", rank, count)]
        made[rank].append(backend_of(store, "again", count - 1 - rank, count))
        for backend in made[rank]:
            expect_sum(backend, count)

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert None not in made
    for follower in stores[1:]:
        assert follower.keys == follower.checks and follower.gets == 2, vars(follower)
    rounds = stores[0].gets // (count - 1)
    assert stores[0].keys <= stores[0].checks + 8 * rounds * count, vars(stores[0])


def asks_for_a_transport(_, count):
    """All that the group has goes by it, and is on the host, though the environment says something else."""
    import kolo_torch  # pylint: disable=import-outside-toplevel

    os.environ.update(KOLO_TRANSPORTS="none-of-kolo", KOLO_DEVICE="99")
    options = kolo_torch.Options()
    options.transports = "shm"
    with kolo_group(pg_options=options):
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=dist.new_group(pg_options=options))
        expect_equal(tensor, float(count))
        expect_error(dist.new_group, "none-of-kolo")


def abort(rank, _):
    """From another thread than the one that waits."""
    with kolo_group() as group:

        def give_up():
            group._get_backend(torch.device("cpu")).abort()
            say("aborted")

        dist.barrier()
        giving_up = threading.Timer(0.5, give_up)
        if rank == 0:
            giving_up.start()
        if rank != 1:
            expect_error(lambda: dist.all_reduce(torch.zeros(100)))
            expect_error(lambda: dist.all_reduce(torch.zeros(100)))
            if rank == 0:
                giving_up.join()  # the store serves one thread at a time
            hear("told")
            if rank == 2:
                say("2 leaves")
            else:
                hear("2 leaves")  # rank 0 keeps the store
        else:
            hear("aborted")
            expect_error(lambda: dist.all_reduce(torch.zeros(100)), "rank 0 called koloCommAbort")
            say("told")


def dies_in_the_middle(rank, _, asynchronous):
    with kolo_group():
        print("begins", flush=True)
        while True:
            if asynchronous:
                dist.all_reduce(torch.zeros(100_000), async_op=True).wait()
            else:
                dist.all_reduce(torch.zeros(100_000))


def dies_before_it_joins(rank, _):
    """Torch's store is there for all, then one of them dies."""
    store, _, count = next(dist.rendezvous("env://"))
    store.add("arrived", 1)
    while store.add("arrived", 0) < count:
        time.sleep(0.01)
    if rank == 2:
        os._exit(3)
    with kolo_group(seconds=3, store=dist.PrefixStore("group", store), rank=rank, world_size=count):
        pass


def allocates_windows(rank, count):
    """Memory of the group's own: on all ranks, on some, given back and taken again."""
    import kolo_torch  # pylint: disable=import-outside-toplevel

    options = kolo_torch.Options()
    options.windows = True
    cpu = torch.device("cpu")
    with kolo_group(pg_options=options) as group:
        backend = group._get_backend(cpu)
        assert backend.supports_tensor_alloc(cpu)
        for call in range(20):
            size = 1000 * (call % 4 + 1) + 7
            own = (
                backend.allocate_tensor(size, dtype=torch.float32, device=cpu)
                if (rank + call) % 3
                else torch.empty(size)
            )
            assert own.numel() == size and own.data_ptr() % 64 == 0 or (rank + call) % 3 == 0
            own.fill_(rank)
            work = dist.all_reduce(own, async_op=True) if call % 2 else dist.all_reduce(own)
            if call % 2:
                work.wait()
            expect_equal(own, float(sum(range(count))))
        large = backend.allocate_tensor(100_000_000, dtype=torch.float32, device=cpu)  # a segment of its own
        large[-1] = rank
        for _ in range(20):
            dist.all_reduce(large[-10:])
        again = backend.allocate_tensor(500, dtype=torch.bfloat16, device=cpu)
        gathered = backend.allocate_tensor(500 * count, dtype=torch.bfloat16, device=cpu)
        dist.all_gather_into_tensor(gathered, again.fill_(rank))
        expect_equal(gathered.float(), torch.arange(float(count)).repeat_interleave(500))
        for call in range(6):  # as a list, in windows or not
            several = [
                backend.allocate_tensor(size, dtype=torch.float32, device=cpu) if call % 3 else torch.empty(size)
                for size in (100_000, 7, 300_001)
            ]
            for place, tensor in enumerate(several):
                tensor.fill_(rank + place)
            with dist._coalescing_manager():
                for tensor in several:
                    dist.all_reduce(tensor)
            for place, tensor in enumerate(several):
                expect_equal(tensor, float(sum(range(count)) + place * count))
    with kolo_group() as group:
        assert not group._get_backend(cpu).supports_tensor_alloc(cpu)


def uses_a_data_loader(rank, count):
    """Workers are forked while the group is in use, and end before it."""
    with kolo_group():
        data = torch.utils.data.TensorDataset(torch.arange(64.0))
        for _ in range(2):
            loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, multiprocessing_context="fork")
            total = torch.zeros(1)
            for (batch,) in loader:
                part = batch.sum()
                dist.all_reduce(part)
                total += part
            expect_equal(total, float(count * sum(range(64))))


def is_destroyed_in_a_child(rank, count):
    with kolo_group():
        pid = os.fork()
        if pid == 0:
            expect_error(lambda: dist.all_reduce(torch.zeros(3)))
            dist.destroy_process_group()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        expect_equal(tensor, float(count))


def forks_workers_after_use(rank, count):
    """As launchers of notebooks do: the parent has used Kolo, and has no group any more."""
    with kolo_group():
        dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()
    with tempfile.TemporaryDirectory() as folder:
        workers = []
        for worker in range(2):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    store = dist.FileStore(f"{folder}/store", 2)
                    dist.init_process_group("kolo", store=store, rank=worker, world_size=2)
                    tensor = torch.ones(1000)
                    dist.all_reduce(tensor, async_op=True).get_future().wait()
                    dist.all_reduce(tensor)
                    expect_equal(tensor, 4.0)
                    dist.destroy_process_group()
                    status = 0
                finally:
                    os._exit(status)
            workers.append(pid)
        for pid in workers:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class Groups(unittest.TestCase):
    @smoke
    def test_subgroups(self):
        ranks.run(self, subgroups, 4)

    @unittest.skipIf(not SPLITS_ON_CPU, "torch before 2.15 splits only groups that are bound to an accelerator")
    @smoke
    def test_split(self):
        ranks.run(self, split, 4)

    def test_memory_of_the_group(self):
        ranks.run(self, allocates_windows, 3)

    def test_data_loader(self):
        ranks.run(self, uses_a_data_loader, 2)

    def test_a_forked_child_is_no_rank(self):
        ranks.run(self, is_destroyed_in_a_child, 2)

    def test_workers_are_forked_after_the_last_group(self):
        ranks.run(self, forks_workers_after_use, 2)

    def test_monitored_barrier_names_who_is_missing(self):
        ranks.run(self, monitored, 4)

    def test_a_monitored_barrier_ends_with_the_group(self):
        outcomes = ranks.Job(monitored_after_a_death, 3).outcomes()
        self.assertEqual([outcome.status for outcome in outcomes], [0, -9, 0], outcomes)

    def test_a_new_group_with_a_dead_rank_says_so(self):
        outcomes = ranks.Job(new_group_with_the_dead, 4).outcomes()
        self.assertEqual([outcome.status for outcome in outcomes], [0, -9, 0, -9], outcomes)

    def test_groups_go_on_without_rank_0(self):
        with tempfile.TemporaryDirectory() as folder:
            outcomes = ranks.Job(goes_on_without_rank_0, 3, folder).outcomes()
        self.assertEqual([outcome.status for outcome in outcomes], [-9, 0, 0], outcomes)

    @smoke
    def test_groups_are_made_by_their_members_alone(self):
        ranks.run(self, groups_of_their_members_alone, 4)

    def test_groups_of_other_worlds(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks.run(self, groups_of_other_worlds, 3, folder)

    def test_groups_of_one_name(self):
        ranks.run(self, groups_of_one_name, 3)

    def test_threads_make_groups(self):
        ranks.run(self, groups_of_two_threads, 3)

    def test_threads_of_one_rank_make_a_group(self):
        ranks.run(self, groups_of_threads_of_one_rank, 2)

    def test_a_group_waits_for_another_as_long_as_it_may(self):
        ranks.run(self, groups_that_wait_for_another, 3)

    def test_a_rank_that_dies_when_all_have_met(self):
        outcomes = ranks.Job(dies_when_all_have_met, 2).outcomes()
        self.assertEqual([outcome.status for outcome in outcomes], [0, -9], outcomes)

    def test_making_a_group_asks_for_few_keys(self):
        ranks.run(self, asks_for_few_keys, 1)

    def test_the_transport_of_a_group(self):
        ranks.run(self, asks_for_a_transport, 2)

    def test_abort(self):
        ranks.run(self, abort, 3)

    def test_shrink_after_a_death(self):
        outcomes = ranks.Job(shrink_after_a_death, 4).outcomes()
        self.assertEqual([outcome.status for outcome in outcomes], [0, -9, 0, 0], outcomes)

    def check_death(self, asynchronous):
        job = ranks.Job(dies_in_the_middle, 3, asynchronous)
        for rank in range(3):
            self.assertTrue(job.has_said(rank, "begins"))
        time.sleep(0.5)
        began = time.monotonic()
        job.kill(1)
        outcomes = job.outcomes(30)
        self.assertLess(time.monotonic() - began, 20)
        for rank in (0, 2):
            self.assertEqual(outcomes[rank].status, 1, outcomes)
            self.assertRegex(
                outcomes[rank].output,
                r"DistBackendError: kolo:all_reduce: .*rank 1 \(pid \d+ on [^)]*\) died",
                outcomes,
            )

    @smoke
    def test_a_killed_rank_is_named_by_all(self):
        self.check_death(False)

    def test_a_killed_rank_is_named_by_waiting_works(self):
        self.check_death(True)

    def test_a_rank_that_dies_before_it_joins(self):
        outcomes = ranks.Job(dies_before_it_joins, 3).outcomes(60)
        for rank in (0, 1):
            self.assertEqual(outcomes[rank].status, 1, outcomes)
        # Rank 0 keeps the store, and may be gone when rank 1's time is over.
        self.assertRegex(outcomes[0].output, "for ranks 2\n", outcomes)


def launch(_, __, words, variables):
    os.environ.update(variables)
    torch.distributed.run.main(words)


def torchrun(script, *words, count=2, **variables):
    """A script under torchrun, forked like a rank; what it starts is not. Its exit status, and what was printed."""
    words = [f"--nproc-per-node={count}", f"--master-port={ranks.free_port()}", *words, script]
    variables = {"PYTHONPATH": os.environ["KOLO_TORCH_FOLDER"], **variables}
    (outcome,) = ranks.Job(launch, 1, words, variables).outcomes()
    if outcome.status is None:
        raise TimeoutError(f"{script}: {outcome}")
    return outcome.status, outcome.output


class Scripts(unittest.TestCase):
    """Programs of their own, under torchrun."""

    def script(self, text):
        file = tempfile.NamedTemporaryFile("w", suffix=".py")
        self.addCleanup(file.close)
        file.write("import os, signal\nimport torch\nimport torch.distributed as dist\nimport kolo_torch\n" + text)
        file.flush()
        return file.name

    def test_exit_without_destroy(self):
        status, output = torchrun(
            self.script(
                "dist.init_process_group('kolo')\n"
                "t = torch.ones(5)\n"
                "works = [dist.all_reduce(t, async_op=True), dist.irecv(torch.zeros(3), 1 - dist.get_rank())]\n"
                "works[0].wait()\n"
                "os.write(1, b'sum %d\\n' % int(t[0]))\n"   # whole: both ranks write to one pipe
            )
        )
        self.assertEqual(status, 0, output)
        self.assertEqual(output.count("sum 2"), 2, output)
        self.assertNotRegex(output, "terminate|Segmentation|Aborted|Traceback")

    def test_torchrun_goes_on_after_a_killed_rank(self):
        status, output = torchrun(
            self.script(
                "dist.init_process_group('kolo')\n"
                "dist.all_reduce(torch.zeros(3))\n"
                "again = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
                "if again == 0 and dist.get_rank() == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
                "t = torch.ones(5)\n"
                "for _ in range(50): dist.all_reduce(t)\n"
                "os.write(1, b'attempt %d done\\n' % again)\n"
                "dist.destroy_process_group()\n"
            ),
            "--max-restarts=2",
        )
        self.assertEqual(status, 0, output)
        self.assertEqual(output.count("attempt 1 done"), 2, output)
