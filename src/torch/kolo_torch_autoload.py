"""What torch calls at the end of its own import (the entry point of the group torch.backends). Most programs that import torch make no
group, so nothing else is imported here unless the environment asks for it."""

import os

VARIABLE = "KOLO_TORCH_REPLACE_GLOO"


def autoload():
    """With KOLO_TORCH_REPLACE_GLOO=1 in the environment, groups that ask for Gloo are made by Kolo."""
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{VARIABLE} is {value!r}, expected 1 (groups that ask for gloo are made by Kolo) or 0")
    if value == "1":
        import kolo_torch  # pylint: disable=import-outside-toplevel

        kolo_torch.in_place_of_gloo()
