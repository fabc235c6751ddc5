#!/usr/bin/env python3
"""Writes the parameters of known models, as kolo-perf --list reads them: a line of elements and datatype for each tensor.

usage: parameter_lists.py [FOLDER]     resnet50.txt and transformer7b.txt; the current folder where none is given
"""
import pathlib
import sys


def resnet50():
    """He et al., "Deep residual learning for image recognition", 2016: 161 tensors, 25,557,032 parameters."""
    counts = [7 * 7 * 3 * 64, 64, 64]
    channels = 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            counts += [channels * width, width, width, 9 * width * width, width, width, width * 4 * width, 4 * width, 4 * width]
            if block == 0:
                counts += [channels * 4 * width, 4 * width, 4 * width]
            channels = 4 * width
    return counts + [2048 * 1000, 1000]


def transformer(hidden, inner):
    """One layer of Touvron et al., "LLaMA", 2023."""
    return [hidden * hidden] * 4 + [hidden * inner] * 3 + [hidden] * 2


def transformer7b():
    """The layer as the model of 7 billion parameters has it: 9 tensors, 202,383,360 parameters."""
    return transformer(4096, 11008)


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    for name, counts, datatype in (("resnet50", resnet50(), "float32"), ("transformer7b", transformer7b(), "bfloat16")):
        (folder / f"{name}.txt").write_text("".join(f"{count} {datatype}\n" for count in counts))
        print(f"{name}.txt: {len(counts)} tensors, {sum(counts):,} elements")


if __name__ == "__main__":
    main()
