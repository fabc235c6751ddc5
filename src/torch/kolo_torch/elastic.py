"""How a job goes on after it has lost ranks: the survivors agree on who is left, torch's shrink_group() leaves out the dead, and new
processes join the default group.

    flags, dead = kolo_torch.agree()
    torch.distributed.shrink_group(dead)
    if torch.distributed.get_rank() == 0:
        store.set("growth", kolo_torch.growth_id())
    kolo_torch.grow_group(store.get("growth").decode(), world_size, store)  # a new process gives its rank, too
"""

import hashlib

import torch.distributed as dist

from . import _backend

ALL_FLAGS = 2**64 - 1


def _group_or_world(function, group):
    group = group or dist.group.WORLD
    if group is None:
        raise ValueError(f"{function}: there is no default group: init_process_group() makes it")
    return group


def agree(flags=ALL_FLAGS, group=None):
    """Agrees among the ranks of the group that live, also after the group has failed. Collective over these ranks, which it waits for,
    KOLO_INIT_TIMEOUT_MS long each time. Returns, the same on all of them, whoever dies meanwhile:

    - the bitwise AND of their flags, each 0 to 2**64 - 1;
    - the list of the group's ranks that have died, in ascending order, as shrink_group() takes it if it is not empty. A rank that dies
      later may be missing. Then shrink_group() is an error that says so, and the survivors agree again.

    group: one of Kolo's, by default the default group. Errors are DistBackendErrors, those of koloCommAgree."""
    if not isinstance(flags, int) or not 0 <= flags <= ALL_FLAGS:
        raise ValueError(f"agree: flags is {flags!r}, expected an integer from 0 to 2**64 - 1")
    return _backend.agree(_group_or_world("agree", group), flags)


def growth_id():
    """Makes an id by which new processes join the default group, in one call of grow_group(). Rank 0 of the group calls it, because
    its process relays the control messages of the larger group, and hands it to all others as it likes. It is a string of hexadecimal
    digits. Who has it may join."""
    group = _group_or_world("growth_id", None)
    if group.rank() != 0:
        raise ValueError(f"growth_id: this is rank {group.rank()} of the default group, and only rank 0 makes an id")
    return _backend.growth_id(group).hex()


def grow_group(growth_id, world_size, store, rank=None, backend="kolo", pg_options=None, **init):  # pylint: disable=redefined-outer-name
    """Makes the default group anew, of its ranks, which keep their numbers, and of new processes. Collective over both. Returns the
    ProcessGroup, which is the default group then. As with shrink_group(), all other groups are destroyed.

    growth_id: rank 0's growth_id(), on all. Each call takes a new one, also after an error.
    world_size: the number of ranks afterwards, the same on all, larger than it is.
    store: what all reach, as for init_process_group(). It may have been used before.
    rank: a new process: a number that no other rank has. A rank of the default group: None.
    backend, pg_options, timeout and device_id: as for init_process_group(), the same on all.

    Waits for all, KOLO_INIT_TIMEOUT_MS long each time, and for the timeout of init_process_group(). Errors of Kolo's growth are
    DistBackendErrors, those of koloCommGrow, and ValueErrors. The default group goes on after these if it has not failed. It is
    destroyed when the ranks have grown together; then come the errors of init_process_group()."""
    group = dist.group.WORLD
    if group is None and rank is None:
        raise ValueError("grow_group: no rank is given, and there is no default group that grows: a new process gives its rank")
    if group is not None and rank is not None:
        raise ValueError(
            f"grow_group: rank {rank} is given, and this process is rank {group.rank()} of the default group, which it keeps: only "
            "a new process gives its rank"
        )
    try:
        key = bytes.fromhex(growth_id)
    except (TypeError, ValueError):
        raise ValueError(f"grow_group: growth_id is {growth_id!r}, expected the digits that growth_id() makes") from None
    if pg_options is not None and not isinstance(pg_options, _backend.Options):
        raise TypeError(f"grow_group: pg_options is a {type(pg_options).__name__}, expected kolo_torch.Options")
    rank = group.rank() if group is not None else rank
    token = "grown-" + hashlib.sha256(key).hexdigest()[:32]  # the id itself lets its holders in
    root = _backend.grow(group, key, token, rank, world_size, pg_options)
    del group
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(f"kolo/{token}", store),
        rank=rank,
        world_size=world_size,
        pg_options=pg_options,
        **init,
    )
    del root
    return dist.group.WORLD
