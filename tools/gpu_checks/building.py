"""What building needs, and the build."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

PACKAGES = [
    "libfmt-dev",
    "libfmt9",
    "libsodium-dev",
    "libsodium23",
    "libhwloc-dev",
    "libhwloc15",
    "libudev1",
    "nlohmann-json3-dev",
    "libcli11-dev",
    "catch2",
    "pkgconf-bin",
    "libpkgconf3",
]
LATE_PLUGIN = "tests/plugin/kolo-transport-late.so"
NCCL = "peers/libnccl.so.2"  # of tools/take-nccl-peer; only some builds have it
PERF, PERF_ON_MOCK = "perf/kolo-perf", "tests/mock_cuda/kolo-perf-on-mock"
TARGETS = [
    "tests/collectives/kolo-collectives",
    "tests/gpu/kolo-gpu",
    "tests/gpu/kolo-gpu-measure",
    "tools/kolo-info",
    LATE_PLUGIN,
]


def prepare(folder):
    """Unpacks the packages into a folder of their own; nothing is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(["apt-get", "download", *PACKAGES], cwd=place, check=True)
        for package in sorted(Path(place).glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
    for needless in ["usr/share/doc", "usr/share/man", "usr/share/lintian"]:
        shutil.rmtree(folder / needless, ignore_errors=True)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    print(f"{folder}: {size / 2**20:.1f} MiB")


def libraries_of(deps):
    return deps / "usr/lib/x86_64-linux-gnu"


def environment(deps):
    """For every section; deps: what prepare() has made, or None."""
    env = dict(os.environ)
    env["PYTHONUNBUFFERED"] = "1"
    env["PATH"] = f"{env.get('PATH', '')}:/usr/local/cuda/bin"
    if deps is None:
        return env
    libraries = libraries_of(deps)
    env["PKG_CONFIG"] = str(deps / "usr/bin/pkgconf")
    env["PKG_CONFIG_SYSROOT_DIR"] = str(deps)
    env["PKG_CONFIG_LIBDIR"] = f"{libraries}/pkgconfig:{deps}/usr/share/pkgconfig:{deps}/usr/lib/pkgconfig"
    add_libraries(env, libraries)
    return env


def add_libraries(env, folder):
    env["LD_LIBRARY_PATH"] = f"{folder}:{env.get('LD_LIBRARY_PATH', '')}"


def programs(mock):
    return [*TARGETS, PERF_ON_MOCK if mock else PERF]


def configure_command(build, mock):
    options = [
        "-Dtests=enabled",
        "-Dperf=enabled",
        "-Dcuda=enabled",
        f"-Dgpu_architectures={'' if mock else 'auto'}",
    ]
    if (build / "build.ninja").exists():
        return ["meson", "configure", build, *options]
    shutil.rmtree(build, ignore_errors=True)  # what a configuration that failed has left
    return ["meson", "setup", build, *options]


def build_command(build, mock):
    return ["ninja", "-C", build, f"-j{len(os.sched_getaffinity(0))}", "-k0", *programs(mock)]
