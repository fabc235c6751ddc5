#!/usr/bin/env python3
"""Compares the bits of Kolo's all-reduce with those of tinygrad's, over several CPU devices: S0.2, S0.3, S0.4 of tests/README.md.

usage: check_tinygrad.py LIBKOLO FOLDER

tinygrad's naive all-reduce has to give the bits of Kolo's one_shot, its ring those of Kolo's ring, for the same data: chunk for chunk, as both cut
alike. LIBKOLO is the library; tinygrad is installed into FOLDER. The exit status is 77 where tinygrad cannot be had, or its CPU devices do not work
here; the last line says why.
"""
import sys

sys.dont_write_bytecode = True

import ctypes
import os
import pickle
import random
import subprocess
import threading

import packages

TINYGRAD = "tinygrad==0.14.0"
SKIPPED = 77
FLOAT32, SUM = 7, 0  # koloDataType_t, koloRedOp_t
# Fewer elements than ranks, chunks of none, and each factor by which tinygrad cuts.
COUNTS = [1, 3, 7, 10, 32, 36, 48, 1000, 4097]
RANKS = [2, 3, 4, 5]


class Kolo:
    """Ranks that are threads of this process."""

    def __init__(self, library, ranks):
        self.kolo = library
        self.comms = (ctypes.c_void_p * ranks)()
        self.must(library.koloCommInitAll(self.comms, ranks, None))

    def must(self, result):
        if result != 0:
            raise RuntimeError(self.kolo.koloGetLastError(None).decode())

    def each(self, work):
        """Calls work(rank, communicator) on a thread for each rank."""
        faults = []

        def run(rank):
            try:
                work(rank, ctypes.c_void_p(self.comms[rank]))
            except RuntimeError as fault:
                faults.append(fault)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(self.comms))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if faults:
            raise faults[0]

    def all_reduce(self, algorithm, inputs):
        """The bytes that each rank gets."""
        count = len(inputs[0])
        results = [(ctypes.c_float * count)() for _ in inputs]

        def work(rank, comm):
            self.must(self.kolo.koloCommSetAlgorithm(comm, f"all_reduce:{algorithm}".encode()))
            given = (ctypes.c_float * count)(*inputs[rank])
            self.must(self.kolo.koloAllReduce(given, results[rank], ctypes.c_size_t(count), FLOAT32, SUM, comm, None))

        self.each(work)
        return [bytes(result) for result in results]

    def close(self):
        self.each(lambda _, comm: self.must(self.kolo.koloCommDestroy(comm)))


def inputs_of(ranks, count):
    """The same numbers each time, which float32 holds."""
    draw = random.Random(1000 * ranks + count)
    return [[ctypes.c_float(draw.uniform(-1, 1)).value for _ in range(count)] for _ in range(ranks)]


def reduce_by_tinygrad(ranks, count):
    """The bytes of the sum over tinygrad's CPU devices."""
    import tinygrad
    devices = tuple(f"CPU:{i}" for i in range(ranks))
    whole = tinygrad.Tensor(inputs_of(ranks, count)).shard(devices, axis=0)
    return bytes(whole.sum(axis=0).realize().to("CPU").data())


def tell(folder):
    """Writes all sums, or why there is one not, to standard output. RING says how tinygrad reduces: it is read once, and schedules are kept."""
    sys.path.insert(0, folder)
    results = {}
    for ranks in RANKS:
        for count in COUNTS:
            try:
                results[ranks, count] = reduce_by_tinygrad(ranks, count)
            except Exception as fault:  # whatever it needs, a compiler for instance
                results[ranks, count] = f"{type(fault).__name__}: {fault}".splitlines()[0]
    pickle.dump(results, sys.stdout.buffer)


def ask(folder, ring):
    """What tell() writes in a process of its own. It compiles there: each worker of tinygrad's would import tinygrad, every 16 kernels anew."""
    done = subprocess.run([sys.executable, __file__, "--tell", folder], stdout=subprocess.PIPE, check=True, timeout=600,
                          env={**os.environ, "RING": "2" if ring else "0", "PARALLEL": "0"})
    return pickle.loads(done.stdout)


def compare(library, algorithm, results):
    """The faults, and how many sums were compared."""
    faults, compared = [], 0
    for ranks in RANKS:
        kolo = Kolo(library, ranks)
        for count in COUNTS:
            expected = results[ranks, count]
            if isinstance(expected, str):
                continue
            compared += 1
            for rank, got in enumerate(kolo.all_reduce(algorithm, inputs_of(ranks, count))):
                if got != expected:
                    faults.append(f"{algorithm}, {ranks} ranks, {count} elements: rank {rank} has other bits than tinygrad")
        kolo.close()
    return faults, compared


def main():
    if sys.argv[1] == "--tell":
        return tell(sys.argv[2])
    library, folder = ctypes.CDLL(sys.argv[1]), sys.argv[2]
    library.koloGetLastError.restype = ctypes.c_char_p
    try:
        if not os.path.isdir(folder):
            packages.install(TINYGRAD, folder, 300)
    except packages.Unavailable as reason:
        print(f"not tried: {reason}")
        return SKIPPED
    status = 0
    for algorithm in ("one_shot", "ring"):
        results = ask(folder, algorithm == "ring")
        faults, compared = compare(library, algorithm, results)
        untold = {what for what in results.values() if isinstance(what, str)}
        if compared == 0:
            print(f"not tried: tinygrad's CPU devices do not work here: {untold.pop()}")
            return SKIPPED
        print("\n".join(faults) or f"{compared} all-reduces by {algorithm} have the bits of tinygrad's")
        print("\n".join(f"tinygrad does not do {len(results) - compared} others: {what}" for what in untold), end="")
        status = 1 if faults else status
    return status


if __name__ == "__main__":
    sys.exit(main())
