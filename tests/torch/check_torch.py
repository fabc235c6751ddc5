#!/usr/bin/env python3
"""Tests of the backend for torch.distributed, with ranks that are processes of this machine.

usage: PYTHON check_torch.py PACKAGE_FOLDER README [CASE...]

PYTHON is the one whose torch the backend was built for; PACKAGE_FOLDER has the package kolo_torch. KOLO_TEST_ALL in the
environment: every call with every type, reduction and layout, and torch's own tests.
"""

import os
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", folder) for folder in ("launchers", "support")]

import cases
import guard

SKIPPED = 77
MODULES = [
    "behaviour_cases",
    "signals_cases",
    "limits_cases",
    "groups_cases",
    "training_cases",
    "failure_cases",
    "elastic_cases",
    "launch_cases",
    "wheel_cases",
    "differential_cases",
    "torchs_own_cases",
    "frameworks_cases",
    "versions_cases",
]


def run(folder, readme, names):
    sys.path.insert(0, folder)
    os.environ["KOLO_TORCH_FOLDER"], os.environ["KOLO_TORCH_README"] = folder, readme
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        import torch  # noqa: F401  pylint: disable=import-outside-toplevel,unused-import
    except ImportError as error:
        print(f"not tried: torch cannot be imported: {error}")
        return SKIPPED
    return cases.run(MODULES, names)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    return guard.run_guarded(lambda: run(sys.argv[1], sys.argv[2], sys.argv[3:]))


if __name__ == "__main__":
    sys.exit(main())
