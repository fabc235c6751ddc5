"""Kolo as a backend of torch.distributed, for tensors on the CPU and on CUDA devices.

    torch.distributed.init_process_group("kolo")
"""

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

__all__ = ["Options", "register", "version"]

version = _backend.version


def register():
    """Makes the backend known to torch under the name "kolo". Calling it again does nothing."""
    if not hasattr(dist.Backend, "KOLO"):
        dist.Backend.register_backend("kolo", _backend.create, extended_api=True, devices=["cpu", "cuda"])


register()
