#!/usr/bin/env python3
"""The tests of torch.distributed that come with torch, on CPU tensors, with Gloo or with Kolo.

usage: PYTHON torchs_own.py PACKAGE_FOLDER BACKEND RANKS [TEST...]

BACKEND: gloo; kolo; or kolo-as-gloo, Kolo under Gloo's name, for the many tests that are for Gloo by its name. PACKAGE_FOLDER
has the package kolo_torch. For each test it prints a line of a word (passed, skipped or failed), the test's name and a reason.

The ranks are forked from a process that has imported torch already, which takes seconds. Needs the package expecttest.
"""

import contextlib
import io
import logging
import multiprocessing
import os
import sys
import tempfile
import unittest

PATIENCE = 100  # seconds for a test


def make_tests(backend):
    """The class of torch's tests, to be made with a test's name."""
    from torch.testing._internal import common_distributed  # pylint: disable=import-outside-toplevel
    from torch.testing._internal.distributed import distributed_test  # pylint: disable=import-outside-toplevel

    if backend == "kolo":
        common_distributed.DistTestCases.backend_feature["ddp"].add("kolo")
    if backend == "kolo-as-gloo":
        import kolo_torch  # pylint: disable=import-outside-toplevel

        kolo_torch.in_place_of_gloo()
        distributed_test.get_profiling_event = as_of_gloo(distributed_test.get_profiling_event)
    logging.disable(logging.CRITICAL)

    class TorchsOwn(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        """pylint: disable=protected-access,too-many-ancestors"""

        def setUp(self):
            super().setUp()
            self._start_processes(multiprocessing.get_context("fork").Process)

    common_distributed.TIMEOUT_DEFAULT = PATIENCE
    return TorchsOwn


def as_of_gloo(find):
    """The function that finds events of the profiler by name, where names have the backend's."""

    def find_renamed(name, *rest):
        found = find(name.replace("gloo:", "kolo:"), *rest)
        for event in found:
            event.name = event.name.replace("kolo:", "gloo:")
        return found

    return find_renamed


def reason_of(text):
    """The lines that say most."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line.split(":")[0] or line.startswith("Process ")]
    return " / ".join(errors[-2:] or lines[-1:])


def run(test):
    """How it ended, and why."""
    result = unittest.TestResult()
    with contextlib.redirect_stderr(io.StringIO()):
        test.run(result)
    for _, text in result.errors + result.failures:
        return "failed", text
    for _, text in result.skipped:
        return "skipped", text
    return "passed", ""


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    folder, backend, count, chosen = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
    if backend not in ("gloo", "kolo", "kolo-as-gloo"):
        sys.exit(f"the backend is {backend}; expected gloo, kolo or kolo-as-gloo")
    sys.path.insert(0, folder)
    with tempfile.TemporaryDirectory() as temporary:
        os.environ.update(
            BACKEND="kolo" if backend == "kolo" else "gloo",
            WORLD_SIZE=count,
            TEMP_DIR=temporary,
            OMP_NUM_THREADS="1",
        )
        if backend == "kolo":
            import kolo_torch  # noqa: F401  pylint: disable=import-outside-toplevel,unused-import
        tests = make_tests(backend)
        names = chosen or unittest.TestLoader().getTestCaseNames(tests)
        tests.setUpClass()
        for name in names:
            how, why = run(tests(name))
            print(how, name, reason_of(why), flush=True)
            if chosen and why:
                print(why)
        tests.tearDownClass()


if __name__ == "__main__":
    main()
