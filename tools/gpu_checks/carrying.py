"""A build in a few files, for a machine that begins without one.

The archive has the programs, stripped, in the places in which they were built, so that they find each other, and in
lib/ the libraries that the system of the next machine may lack. It is cut into pieces.
"""

import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from gpu_checks import building, source

NAME = "kolo-build.tar.gz."
PIECE = 15 << 20
MOST_BYTES = 60 << 20  # that can be carried to such a machine, beside the tree
LIBRARY = "src/libkolo.so.0"
ABOUT = "about.json"
# Part of every system that has a compiler, and of one version with the rest of it.
OF_THE_SYSTEM = (
    "linux-vdso",
    "ld-linux",
    "libc.so",
    "libm.so",
    "libdl.so",
    "libpthread.so",
    "librt.so",
    "libstdc++.so",
    "libgcc_s.so",
    "libcuda.so",
)


def pieces(folder):
    return sorted(folder.glob(NAME + "*"))


def libraries_used(files, env):
    """Shared libraries that are neither the system's nor in the build."""
    found = {}
    for file in files:
        listed = subprocess.run(["ldd", file], env=env, capture_output=True, text=True).stdout
        for line in listed.splitlines():
            name, arrow, rest = line.strip().partition(" => ")
            path = Path(rest.split(" (")[0])
            if arrow and not name.startswith(OF_THE_SYSTEM) and name != Path(LIBRARY).name and path.is_file():
                found[name] = path
    return found


def stripped(file, place):
    """A copy without symbols; or with them, where they cannot be taken out."""
    copy = place / "stripped"
    shutil.copy(file, copy)
    try:
        subprocess.run(["strip", copy], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        shutil.copy(file, copy)
    return copy


class Pieces(io.RawIOBase):
    """A file that goes on in the next one before it gets too large."""

    def __init__(self, folder):
        self.folder, self.count, self.file, self.used = folder, 0, None, 0

    def writable(self):
        return True

    def write(self, data):
        if self.file is None or self.used == PIECE:
            self.close_piece()
            self.file = open(self.folder / f"{NAME}{self.count:02}", "wb")
            self.count, self.used = self.count + 1, 0
        part = bytes(data[: PIECE - self.used])
        self.file.write(part)
        self.used += len(part)
        return len(part)

    def close_piece(self):
        if self.file is not None:
            self.file.close()

    def close(self):
        self.close_piece()
        super().close()


def has_kernels(build, env):
    info = subprocess.run([build / "tools/kolo-info", "--json"], env=env, capture_output=True, text=True, check=True)
    features = json.loads(info.stdout)["build"]["features"]
    return any(feature["built"] for feature in features if feature["name"] == "CUDA kernels")


def pack(build, folder, env, mock):
    """What of the build is there; says what is not. Whether anything is, and can be carried."""
    if not mock and (build / "tools/kolo-info").is_file() and not has_kernels(build, env):
        print(f"{build} has no kernels: configure it with -Dgpu_architectures=90")
        return False
    folder.mkdir(parents=True, exist_ok=True)
    for old in pieces(folder):
        old.unlink()
    wanted = [LIBRARY, *building.programs(mock)]
    there = [name for name in wanted if (build / name).is_file()]
    for name in set(wanted) - set(there):
        print(f"not built, and so left out: {name}")
    libraries = libraries_used([build / name for name in there], env)
    about = {"commit": source.commit(), "sources": source.digest()}
    with (
        tempfile.TemporaryDirectory() as place,
        io.BufferedWriter(Pieces(folder), PIECE) as whole,
        tarfile.open(fileobj=whole, mode="w|gz") as archive,
    ):
        for name in there:
            archive.add(stripped(build / name, Path(place)), name)
        if (build / building.NCCL).is_file():
            archive.add(build / building.NCCL, building.NCCL)
        for name, path in sorted(libraries.items()):
            archive.add(path.resolve(), f"lib/{name}")
        text = json.dumps(about).encode()
        entry = tarfile.TarInfo(ABOUT)
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    sizes = {piece: piece.stat().st_size for piece in pieces(folder)}
    for piece, size in sizes.items():
        print(f"{piece}: {size / 2**20:.1f} MiB")
    if sum(sizes.values()) > MOST_BYTES:
        print(f"{folder}: more than the {MOST_BYTES >> 20} MiB that can be carried; build for fewer architectures (-Dgpu_architectures=90)")
        return False
    return bool(there)


class Joined(io.RawIOBase):
    """The pieces as one file."""

    def __init__(self, files):
        self.files, self.file = list(files), None

    def readable(self):
        return True

    def readinto(self, buffer):
        while True:
            if self.file is None:
                if not self.files:
                    return 0
                self.file = open(self.files.pop(0), "rb")
            count = self.file.readinto(buffer)
            if count:
                return count
            self.file.close()
            self.file = None


def unpack(folder, place):
    """Into `place`; what is known of the build's source."""
    with tarfile.open(fileobj=io.BufferedReader(Joined(pieces(folder))), mode="r|gz") as archive:
        archive.extractall(place)
    return json.loads((place / ABOUT).read_text())


if __name__ == "__main__":  # as a section: gpu_checks.carrying BUILD FOLDER [--mock]
    import os

    done = pack(Path(sys.argv[1]), Path(sys.argv[2]), os.environ, "--mock" in sys.argv)
    sys.exit(0 if done else "nothing is built")
