"""Kolo as a backend of torch.distributed, for tensors on the CPU and on CUDA devices.

    torch.distributed.init_process_group("kolo")

From torch 2.14 on that is all; before, import this package first.
"""

import torch
import torch.distributed as dist

from . import _backend
from ._backend import Options

__all__ = ["Options", "register", "version"]

version = _backend.version


def register():
    """Makes the backend known to torch under the name "kolo". Calling it again does nothing."""
    if not hasattr(dist.Backend, "KOLO"):
        dist.Backend.register_backend("kolo", _backend.create, extended_api=True, devices=["cpu", "cuda"])


register()
