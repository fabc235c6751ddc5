"""Builds the package that pyproject.toml describes, for pip and for tools/build-torch-wheel.

The package carries libkolo and the libraries that libkolo needs beside those of every Linux, with their licences. c10d is outside
torch's stable interface, so a package is for the minor version of torch that it was built with. The wheel requires that version, which
only the build knows: meson-python takes no requirement from there, so this is for setuptools.

KOLO_TORCH_BUILD in the environment is a build folder that is built already. Without it the folder build-torch in Kolo's source is
configured, with the options in KOLO_TORCH_OPTIONS too, and built.
"""

import atexit
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
OF_EVERY_LINUX = re.compile(r"(linux-vdso|libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|ld-linux-[\w-]+)\.so")
# The first glibc of which distributions have the libstdc++ with these symbols (manylinux has the same table).
GLIBC_OF_GLIBCXX = {29: 34, 30: 35, 31: 38, 32: 38, 33: 39}


def run(*command):
    done = subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        sys.stderr.write(done.stdout)
        sys.exit(f"kolo_torch: exit status {done.returncode} from: {' '.join(map(str, command))}")
    return done.stdout


def torch_version():
    found = subprocess.run(
        [sys.executable, HERE / "find_torch.py"], stdout=subprocess.PIPE, text=True, check=False
    ).stdout.splitlines()
    if not found:
        sys.exit(f"kolo_torch: {sys.executable} finds no torch with c10d::Backend, or has no headers of its own")
    return ".".join(found[0].split(".")[:2])


def build():
    """The folder in which everything that a wheel needs is built, and little else."""
    if given := os.environ.get("KOLO_TORCH_BUILD"):
        return pathlib.Path(given)
    for program in ("meson", "ninja"):
        if shutil.which(program) is None:
            sys.exit(f"kolo_torch: {program} is not found; pip install meson ninja")
    folder = TOP / "build-torch"
    options = [
        "-Dtorch=enabled",
        f"-Dtorch_python={sys.executable}",
        "-Dtests=disabled",
        "-Dperf=disabled",
        "-Dmpi=disabled",
        "-Dprefix=/usr",
        "-Dlibdir=lib",
        "-Dunity=on",
        "-Dunity_size=16",
        *shlex.split(os.environ.get("KOLO_TORCH_OPTIONS", "")),
    ]
    again = ["--reconfigure"] if (folder / "build.ninja").exists() else []
    run("meson", "setup", *again, folder, TOP, *options)
    run("ninja", "-C", folder)
    return folder


def needs(library):
    """{name: path} of what the library needs, and of what that needs, beside what every Linux has."""
    found = dict(re.findall(r"^\s*(\S+) => (\S+)", run("ldd", library), re.M))
    ours = {name: pathlib.Path(path) for name, path in found.items() if not OF_EVERY_LINUX.match(name)}
    for name, path in ours.items():
        if not path.exists():
            sys.exit(f"kolo_torch: {library} needs {name}, which is not found")
    return ours


def lay_out(build_dir, package):
    """The package as it is to be installed. Its module looks for libraries in its folder lib, also for what those need."""
    with tempfile.TemporaryDirectory() as root:
        run("meson", "install", "-C", build_dir, "--no-rebuild", "--destdir", root, "--tags", "torch,runtime")
        module = next(pathlib.Path(root).rglob("_backend*.so"), None)
        libkolo = next(pathlib.Path(root).rglob("libkolo.so.[0-9]"), None)
        if module is None or libkolo is None:
            sys.exit(f"kolo_torch: {build_dir} has no backend for torch")
        if f'TORCH = "{TORCH}"' not in (module.parent / "_build.py").read_text(encoding="utf-8"):
            sys.exit(
                f"kolo_torch: what is built in {build_dir} is for another torch than {TORCH}, which {sys.executable} has"
            )
        shutil.copytree(module.parent, package, dirs_exist_ok=True)
        (package / "lib").mkdir(exist_ok=True)
        shutil.copy(libkolo.resolve(), package / "lib" / libkolo.name)
        for name, path in needs(libkolo).items():
            shutil.copy(path, package / "lib" / name)


def licences(build_dir):
    """{name: file}: Kolo's licence, and those of what the package carries or was compiled with, as Debian's packages have them."""
    found = {"LICENSE": TOP / "LICENSE"}
    headers = run("pkg-config", "--variable=pcfiledir", "nlohmann_json").strip()
    carried = needs(next((build_dir / "src").glob("libkolo.so.[0-9]")))
    for path in [*carried.values(), pathlib.Path(headers, "nlohmann_json.pc")]:
        owner = owner_of(path.resolve())
        text = pathlib.Path("/usr/share/doc", owner, "copyright") if owner else None
        if text is not None and text.exists():
            found[f"{owner}.txt"] = text
        else:
            print(f"kolo_torch: no licence is known here of {path}; whoever passes the wheel on has to add it")
    return found


def owner_of(path):
    """The Debian package that has the file, if dpkg is here and knows."""
    try:
        done = subprocess.run(["dpkg-query", "-S", path], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.split(":")[0] if done.returncode == 0 else None


def oldest_glibc(package):
    """(major, minor) of the oldest glibc with whose distributions the libraries of the package can be loaded."""
    symbols = "".join(run("readelf", "--version-info", "--wide", path) for path in package.rglob("*.so*"))
    minors = [int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", symbols)]
    cxx = max((int(minor) for minor in re.findall(r"GLIBCXX_3\.4\.(\d+)", symbols)), default=0)
    minors += [glibc for symbol, glibc in GLIBC_OF_GLIBCXX.items() if symbol <= cxx]
    if cxx > max(GLIBC_OF_GLIBCXX):
        minors.append(int(os.confstr("CS_GNU_LIBC_VERSION").split(".")[1]))
    return 2, max(minors)


class Compiled(Distribution):
    """A package for one Python and one kind of machine."""

    def has_ext_modules(self):
        return True


class Package(build_py):
    """Builds Kolo, and lays the package out where setuptools wants it."""

    def run(self):
        into = pathlib.Path(self.build_lib)
        into.mkdir(parents=True, exist_ok=True)
        lay_out(build(), into / "kolo_torch")
        shutil.copy(HERE / "kolo_torch_autoload.py", into)


class Wheel(bdist_wheel):
    """Named after the glibc that it needs, with the licences of all that is in it."""

    def get_tag(self):
        python, abi, _ = super().get_tag()
        major, minor = oldest_glibc(pathlib.Path(self.bdist_dir))
        return python, abi, f"manylinux_{major}_{minor}_{os.uname().machine}"

    def write_wheelfile(self, wheelfile_base, *rest, **more):
        super().write_wheelfile(wheelfile_base, *rest, **more)
        folder = pathlib.Path(wheelfile_base, "licenses")
        folder.mkdir(exist_ok=True)
        for name, path in licences(pathlib.Path(os.environ.get("KOLO_TORCH_BUILD") or TOP / "build-torch")).items():
            shutil.copy(path, folder / name)


TORCH = torch_version()
KOLO = re.search(r"version: '([^']+)'", (TOP / "meson.build").read_text(encoding="utf-8")).group(1)
STAGE = tempfile.mkdtemp()  # so that nothing is written beside the source
atexit.register(shutil.rmtree, STAGE, ignore_errors=True)

setup(
    version=f"{KOLO}+torch{TORCH}",
    install_requires=[f"torch=={TORCH}.*"],
    packages=["kolo_torch"],
    py_modules=["kolo_torch_autoload"],
    distclass=Compiled,
    cmdclass={"build_py": Package, "bdist_wheel": Wheel},
    options={"build": {"build_base": STAGE}, "egg_info": {"egg_base": STAGE}},
    zip_safe=False,
)
