#!/usr/bin/env python3
"""Whether the algorithms compute addresses: they name ranges of elements, and what lies where is said in src/device (views.h, work.h).

usage: check_addresses.py ROOT

Found are: bytes that are pointed to (`unsigned char*`), casts between addresses and numbers, and arithmetic on what points: the fields and functions of
`device` that are pointers, and names that were given one. An array of operands is no address: it may be indexed.
"""

import re
import sys
import tempfile
from pathlib import Path

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
BYTES = re.compile(r"\b(?:unsigned char|uint8_t|byte)\s*(?:const\s*)?\*")  # a plain char is of a text
CAST = re.compile(r"\breinterpret_cast\b|\buintptr_t\b")
POINTERS = r"(?:\.|->)(?:send|recv|scratch|data|begin_|payload|from|to|inSlots|outSlots)\b(?!\s*\()"
MAKERS = r"\b(?:awaitSlot|acquireSlot|bring|sendOf|recvOf)\s*\("
GIVEN = re.compile(r"\b(?:auto|void)\s*(?:const\s*)?\*\s*(?:const\s+)?(\w+)\s*=|\bauto\s+(\w+)\s*=\s*[^;]*?(?:%s\s*;|%s)" % (POINTERS, MAKERS))
ARITHMETIC = r"\s*(?:\+(?!\+)|-(?![->])|\+\+|--|\[)"


def faults_in(text):
    """By line, what is an address that is computed there."""
    text = COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    names = {name for pair in GIVEN.findall(text) for name in pair if name}
    patterns = [BYTES, CAST, re.compile(POINTERS + ARITHMETIC)]
    patterns += [re.compile(r"(?<![\w.>])%s%s" % (re.escape(name), ARITHMETIC)) for name in sorted(names)]
    for pattern in patterns:
        for found in pattern.finditer(text):
            yield text.count("\n", 0, found.start()) + 1, found[0].strip()


def faults(root):
    for file in sorted((root / "src" / "algorithms").iterdir()):
        if file.suffix == ".h":
            for line, what in sorted(faults_in(file.read_text())):
                yield f"{file}:{line}: {what}"


PLANTED = (
    "send(exchange, peer, {work.send + exchange.bytesOf(begin), bytes});",
    "unsigned char* const own = work.recv;",
    "inside.recv = work_.scratch + count * host;",
    "copy(exchange, block.data + pushed, 1);",
    "auto* const slot = awaitSlot(exchange, from); copy(exchange, slot + 8, 1);",
    "auto own = work.output(chunk).data; own[3] = 0;",
    "const void* input = flow.from - 1;",
    "const auto place = reinterpret_cast<std::uint64_t>(work.send);",
)
HARMLESS = (
    "send(exchange, peer, work.input({range.begin + chunk.begin, chunk.count}));  // work.send + 1",
    "inputs[count++] = awaitSlot(exchange, peer);",
    "inside.send = inside.recv = work_.output(mine).data;",
    "const std::uint64_t longest = a.count + b.count;",
    "const bool isInPlace = work.send == work.recv;",
)


def expect_to_find():
    """That each planted address is found, and nothing where there is none."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "src" / "algorithms" / "planted.h"
        file.parent.mkdir(parents=True)
        for text, wanted in [(each, True) for each in PLANTED] + [(each, False) for each in HARMLESS]:
            file.write_text(text + "\n")
            if any(faults(Path(place))) != wanted:
                sys.exit(f"{'missed' if wanted else 'wrongly found'}: {text}")


def main():
    expect_to_find()
    found = list(faults(Path(sys.argv[1])))
    for fault in found:
        print(fault)
    if found:
        sys.exit(1)
    print("the algorithms compute no addresses")


main()
