"""Kolo as a backend of torch.distributed, for tensors on the CPU and on CUDA devices.

    torch.distributed.init_process_group("kolo")

in_place_of_gloo(), or KOLO_TORCH_REPLACE_GLOO=1 in the environment, is for programs that ask for Gloo by name.
"""

import logging
import sys

import torch
import torch.distributed as dist

from ._build import TORCH, WITH_CUDA, __version__


def _named(version, with_cuda):
    return f"torch {version} {'with' if with_cuda else 'without'} CUDA"


def _check_torch():
    """c10d is outside torch's stable interface. Under another minor version the module calls the wrong functions, or is not
    loaded at all for want of a symbol."""
    here = ".".join(torch.__version__.split(".")[:2])
    if here == TORCH and (torch.version.cuda or not WITH_CUDA):
        return
    raise ImportError(
        f"kolo_torch {__version__} was built for {_named(TORCH, WITH_CUDA)}, and this is "
        f"{_named(torch.__version__, bool(torch.version.cuda))}. Build it for this one, in Kolo's source folder, by "
        f"tools/build-torch-wheel --python {sys.executable}; or install a torch that it was built for"
    )


_check_torch()

from . import _backend  # noqa: E402  pylint: disable=wrong-import-position
from ._backend import Options  # noqa: E402  pylint: disable=wrong-import-position
from .elastic import agree, grow_group, growth_id  # noqa: E402  pylint: disable=wrong-import-position

__all__ = ["Options", "agree", "grow_group", "growth_id", "in_place_of_gloo", "register", "version"]

version = _backend.version


def register():
    """Makes the backend known to torch under the name "kolo". Calling it again does nothing."""
    if not hasattr(dist.Backend, "KOLO"):
        dist.Backend.register_backend("kolo", _backend.create, extended_api=True, devices=["cpu", "cuda"])


class _InPlaceOfGloo:
    """Makes groups, as torch calls it, and says once in a job that it does so."""

    def __init__(self):
        self.said = False

    def __call__(self, group, options):
        if not self.said and group.group_rank == 0:
            logging.getLogger(__name__).warning("kolo_torch %s makes the groups that ask for gloo", __version__)
        self.said = True
        return _backend.create(
            group, options if isinstance(options, Options) else None
        )  # no options of Gloo's own class


def in_place_of_gloo():
    """Makes every group that asks for Gloo one of Kolo's, by init_process_group("gloo"), by new_group(backend="gloo"), or because
    torch takes Gloo for tensors on the CPU. Groups that are there already stay what they are, and so does what a program makes of
    the class ProcessGroupGloo itself. Calling it again does nothing."""
    plugins = dist.Backend._plugins  # pylint: disable=protected-access
    if "GLOO" not in plugins or not isinstance(plugins["GLOO"].creator_fn, _InPlaceOfGloo):
        plugins["GLOO"] = plugins["KOLO"]._replace(creator_fn=_InPlaceOfGloo())  # torch keeps Gloo's own out then


register()
