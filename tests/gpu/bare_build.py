#!/usr/bin/env python3
"""Whether what tools/run-gpu-checks --prepare brings is enough to configure Kolo, to compile and to link.

usage: bare_build.py DEPS BUILD

In the tree where it is called. Compiles, of everything that includes a header of a package, a file each; links and runs
a program with all the libraries.
"""

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path.cwd() / "tools"))
sys.dont_write_bytecode = True

from gpu_checks import building

FILES = {
    "fmt": "src/base/log.cc",
    "libsodium": "src/bootstrap/process_info.cc",
    "hwloc": "src/topology/topology.cc",
    "nlohmann_json": "perf/report.cc",
    "CLI11": "tools/kolo_info.cc",
    "catch2": "tests/support/watchdog.cc",
}
LINKED = ["fmt", "libsodium", "hwloc"]
PROGRAM = """\
#include <fmt/core.h>
#include <hwloc.h>
#include <sodium.h>
int main() {
  hwloc_topology_t topology;
  if (sodium_init() < 0 || hwloc_topology_init(&topology) != 0) return 1;
  fmt::print("linked\\n");
  hwloc_topology_destroy(topology);
}
"""


def main():
    deps, build = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    env = building.environment(deps)

    def run(*words, **more):
        done = subprocess.run([str(word) for word in words], env=env, text=True, **more)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, words))}: exit status {done.returncode}")
        return done.stdout

    run(*building.configure_command(build, True))
    objects = [f"{Path('..') / file if build.parent == Path.cwd() else Path.cwd() / file}^" for file in FILES.values()]
    run("ninja", "-C", build, "-k0", *objects)
    flags = run(env["PKG_CONFIG"], "--cflags", "--libs", *LINKED, stdout=subprocess.PIPE).split()
    run("g++", "-x", "c++", "-", "-o", build / "linked", *flags, input=PROGRAM)
    run(build / "linked")


main()
