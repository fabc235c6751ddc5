"""The collectives of the OSU micro-benchmarks, run by the tools that compare MPI programs."""

import os

from comparing import fail, run

COLLECTIVES = ["allgather", "allgatherv", "allreduce", "alltoall", "alltoallv", "alltoallw", "barrier", "bcast", "gather", "gatherv",
               "reduce", "reduce_scatter", "reduce_scatter_block", "scatter", "scatterv"]
FOLDERS = {"blocking": "", "non_blocking": "i"}
LARGE = 8192  # bytes, up to which all iterations are made


class Osu:
    """Those of one size are runs of their own: a range of sizes would be all powers of 2 between."""

    def __init__(self, top, collectives, sizes, iterations, folders=tuple(FOLDERS)):
        """top: where the benchmarks were built; sizes: bytes; iterations: up to LARGE, a tenth above."""
        self.sizes, self.iterations, self.programs = sizes, iterations, {}
        for folder in folders:
            for name in collectives:
                program = top / "c" / "mpi" / "collective" / folder / f"osu_{FOLDERS[folder]}{name}"
                if not program.exists():
                    fail(f"there is no {program}; expected a folder in which the OSU micro-benchmarks 7.4 were built")
                self.programs[FOLDERS[folder] + name] = program
        self.cases = list(self.programs)

    def rows(self, command, case, environment, sizes, options):
        """Lists of words, one for each size, the size first; a barrier's is 0."""
        words = [*command, self.programs[case], *options]
        if not case.endswith("barrier"):
            words += ["-m", f"{sizes[0]}:{sizes[-1]}"]
        lines = run(words, env={**os.environ, **environment}).splitlines()
        found = [line.split() for line in lines if line.strip() and not line.startswith("#")]
        return [["0", *row] for row in found] if case.endswith("barrier") else found

    def validate(self, command, environment):
        for case in self.cases:
            if case.endswith("barrier"):
                continue
            rows = self.rows(command, case, environment, self.sizes, ["-c", "-i", "5", "-x", "1"])
            if not rows or any(row[-1] != "Pass" for row in rows):
                fail(f"osu_{case} does not validate under Kolo: {rows}")

    def measure(self, command, case, environment):
        """Microseconds by (size, figure)."""
        times = {}
        is_barrier = case.endswith("barrier")
        for large in (False, True):
            sizes = [size for size in self.sizes if (size > LARGE) == large]
            if not sizes or (is_barrier and large):
                continue
            iterations = max(1, self.iterations // (10 if large else 1))
            options = ["-i", str(iterations), "-x", str(max(1, iterations // 10))]
            for row in self.rows(command, case, environment, sizes, options):
                size = int(row[0])
                if case in COLLECTIVES:
                    times[size, "time"] = float(row[1])
                else:
                    times[size, "overall"], times[size, "pure"] = float(row[1]), float(row[3])
        return {key: value for key, value in times.items() if is_barrier or key[0] in self.sizes}
