"""What ranks of the tests do first and last."""

import contextlib
import datetime
import warnings

import torch
import torch.distributed as dist


STORES = []  # kept until the process ends: other ranks may be later than rank 0


@contextlib.contextmanager
def kolo_group(seconds=60.0, **how):
    """The default group, on Kolo: the caller's if there is one already."""
    if dist.is_initialized():
        yield dist.group.WORLD
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    import kolo_torch  # noqa: F401  pylint: disable=import-outside-toplevel,unused-import

    dist.init_process_group("kolo", timeout=datetime.timedelta(seconds=seconds), **how)
    STORES.append(dist.distributed_c10d._get_default_store())
    yield dist.group.WORLD
    if dist.is_initialized():
        dist.destroy_process_group()


def say(word):
    """To all ranks, through the default group's store, which rank 0 keeps: not by Kolo."""
    dist.distributed_c10d._get_default_store().set(word, "said")


def hear(word, seconds=60.0):
    """Waits until a rank has said the word."""
    dist.distributed_c10d._get_default_store().wait([word], datetime.timedelta(seconds=seconds))


def expect_equal(got, wanted, what=""):
    wanted = torch.as_tensor(wanted, dtype=got.dtype)
    if not torch.equal(got, wanted.expand_as(got)):
        raise AssertionError(f"{what}: got {got}, expected {wanted}")


def expect_error(function, *words, kind=RuntimeError):
    """function() fails, and the message has all the words."""
    try:
        function()
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        if missing:
            raise AssertionError(f"{missing} not in: {error}") from error
        return str(error)
    raise AssertionError("no error came")
