"""Programs for tests that the Python package index has: installed by pip into a folder of the build, where they stay."""
import os
import shutil
import subprocess
import sys


class Unavailable(Exception):
    """Why a test that needs a package is skipped."""


def install(name, folder, seconds, layout="--target"):
    """`folder` is there afterwards, whole. layout: pip's option for it; --prefix, unlike --target, puts programs and libraries where the package wants them.
    Unavailable: the index is not reached within so many seconds, or has no such package for this machine."""
    fresh = f"{folder}.part"
    shutil.rmtree(fresh, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--timeout", "15", "--retries", "1", "install", "--quiet",
               "--no-deps", "--only-binary", ":all:", layout, fresh, name]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as late:
        raise Unavailable(f"{name}: pip took longer than {seconds} s") from late
    if done.returncode != 0:
        lines = done.stdout.decode(errors="replace").strip().splitlines() or ["nothing"]
        raise Unavailable(f"{name} cannot be had: pip says {lines[-1]}")
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(fresh, folder)
