"""The functions of a GPU's machine code, as nvdisasm prints it: what they load and store, and in which loops."""
import re
from collections import Counter

MEMORY = {"LD": "load", "LDG": "load", "ST": "store", "STG": "store", "LDL": "local", "STL": "local"}
NARROW = {"U8", "S8", "U16", "S16"}


def access(opcode):
    """(kind, bits) of an instruction that loads or stores global or local memory, else None. Generic accesses count as global ones."""
    name, *modifiers = opcode.split(".")
    if name not in MEMORY:
        return None
    for modifier in modifiers:
        if modifier in NARROW or modifier in ("64", "128"):
            return MEMORY[name], int(modifier.lstrip("US"))
    return MEMORY[name], 32


def accesses(opcodes):
    return Counter(found for opcode in opcodes if (found := access(opcode)))


class Function:
    """opcodes: by place. jumps: {place: (label, conditional)}; labels: {label: place}; calls: the function that each names."""

    def __init__(self):
        self.opcodes, self.jumps, self.labels, self.calls = [], {}, {}, []

    def narrow(self):
        return sum(count for (kind, bits), count in accesses(self.opcodes).items() if kind != "local" and bits < 32)

    def fences(self):
        """How many instructions wait until what was stored is seen by other devices."""
        return sum(name == "MEMBAR" and "SYS" in modifiers for name, *modifiers in (opcode.split(".") for opcode in self.opcodes))

    def divisions(self):
        """How many calls divide numbers of 64 bits: a hundred instructions each."""
        return sum(re.search(r"__cuda_sm20_(div|rem)_[su]64", name) is not None for name in self.calls)

    def loops(self):
        """The instructions of each loop, without those of loops within it."""
        blocks, successors = self._blocks()
        found = natural_loops(successors)
        own = []
        for header, members in found.items():
            inner = set().union(*(other for h, other in found.items() if h != header and h in members and other < members))
            own.append([self.opcodes[i] for block in sorted(members - inner) for i in range(*blocks[block])])
        return own

    def _blocks(self):
        """[(first, end)], and which follow each."""
        starts = {0, *self.labels.values(), *(place + 1 for place in self.jumps)}
        starts |= {place + 1 for place, opcode in enumerate(self.opcodes) if self._ends(opcode)}
        starts = sorted(start for start in starts if start < len(self.opcodes))
        blocks = list(zip(starts, starts[1:] + [len(self.opcodes)]))
        number = {first: i for i, (first, _) in enumerate(blocks)}
        successors = []
        for i, (_, end) in enumerate(blocks):
            follow = []
            label, conditional = self.jumps.get(end - 1, (None, not self._ends(self.opcodes[end - 1])))
            if label in self.labels and self.labels[label] in number:
                follow.append(number[self.labels[label]])
            if conditional and i + 1 < len(blocks):
                follow.append(i + 1)
            successors.append(follow)
        return blocks, successors

    @staticmethod
    def _ends(opcode):
        return opcode.split(".")[0] in ("EXIT", "RET", "BRX", "JMX", "KILL")


def natural_loops(successors):
    """{header: blocks}: those from which a jump leads back to a block that all ways to them go through."""
    order, seen, stack = [], {0}, [(0, iter(successors[0]))]
    while stack:
        block, rest = stack[-1]
        following = next((s for s in rest if s not in seen), None)
        if following is None:
            order.append(block)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(successors[following])))
    order.reverse()
    predecessors = {block: [] for block in order}
    for block in order:
        for following in successors[block]:
            predecessors[following].append(block)
    dominators = dominators_of(order, predecessors)
    loops = {}
    for block in order:
        for header in successors[block]:
            if header in dominators[block]:
                loops.setdefault(header, {header}).update(reaching(block, header, predecessors))
    return loops


def dominators_of(order, predecessors):
    """{block: the blocks that every way to it goes through, itself included}"""
    dominators = {order[0]: {order[0]}}
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            known = [dominators[p] for p in predecessors[block] if p in dominators]
            new = set.intersection(*known) | {block}
            if dominators.get(block) != new:
                dominators[block] = new
                changed = True
    return dominators


def reaching(block, header, predecessors):
    members, waiting = {header, block}, [block] if block != header else []
    while waiting:
        for before in predecessors[waiting.pop()]:
            if before not in members:
                members.add(before)
                waiting.append(before)
    return members


def functions(text):
    """{symbol: Function}"""
    found, declared, current = {}, set(), None
    instruction = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)(.*?);")
    for line in text.splitlines():
        if match := instruction.match(line):
            if current is None:
                continue
            guard, opcode, operands = match.groups()
            if opcode.split(".")[0] in ("BRA", "JMP"):
                target = re.search(r"`\(([.$\w]+)\)", operands)
                conditional = guard is not None or re.match(r"\s*!?U?P\d", operands) is not None or ".DIV" in opcode
                current.jumps[len(current.opcodes)] = (target[1] if target else None, conditional)
            elif guard is not None and current._ends(opcode):
                opcode = "conditional." + opcode
            elif opcode.split(".")[0] == "CALL" and (target := re.search(r"`\(([.$\w]+)\)", operands)):
                current.calls.append(target[1])
            current.opcodes.append(opcode)
        elif match := re.match(r"\s+\.type\s+(\S+),@function", line):
            declared.add(match[1])
        elif match := re.match(r"([.$\w]+):", line):
            if match[1] in declared:
                current = found.setdefault(match[1], Function())
            elif current is not None:
                current.labels[match[1]] = len(current.opcodes)
    return found
