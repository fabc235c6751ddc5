#!/usr/bin/env python3
"""Whether the house stays small: each room within its budget of lines, structs of at most 20 fields, decisions from at most 4 booleans.

usage: check_budgets.py ROOT [--renew | --raise ROOM REASON]

budgets.txt beside this has the budget of each room, documents included, and the structs that may have more, with the reason. Budgets only fall:
--renew writes what the rooms have now, where that is less. A commit that needs more for a feature raises one room's budget with --raise. The
reason then stands behind the room's budget.
"""

import re
import sys
from pathlib import Path

MOST_FIELDS, MOST_BOOLEANS = 20, 4
SLACK = 0.03  # of a room's budget, that it may have unused
BUDGETS = Path(__file__).with_name("budgets.txt")
CLASS = re.compile(r"^( *)(?:template <.*> )?(?:class|struct) (?:alignas\([\w:]+\) )?(\w+)(?: final)?(?: : .*)? \{$")
NO_FIELD = re.compile(r"^(?:using|friend|static|typedef|enum|struct|class|union|template|public|private|protected|explicit|virtual|KOLO_\w+|\[\[)\b")


def rooms(root):
    """(room, lines) of each folder of src and transports that has files, and of the public headers."""
    tops = [folder for parent in ("src", "transports") for folder in sorted((root / parent).iterdir()) if folder.is_dir()]
    for top in [*tops, root / "include"]:
        files = [file for file in top.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
        if files:
            yield str(top.relative_to(root)), sum(file.read_bytes().count(b"\n") for file in files)


def without_templates(text):
    while (shorter := re.sub(r"<[^<>()]*(?:\([^()]*\))?[^<>()]*>", "", text)) != text:
        text = shorter
    return text


def statements(lines, depth):
    """Those of a class's body at this depth, each in a line; what has braces within it is cut there."""
    held = ""
    for line in lines:
        line = re.sub(r"\s*//.*$", "", line)
        begins = line.startswith(depth) and not line.startswith(depth + " ")
        if not held and not begins:
            continue
        held = f"{held} {line.strip()}".strip()
        if re.search(r"[;}:]$|\{$", held):
            yield held
            held = ""


def fields(statement):
    """(name of its type, number) of what a statement declares, if it is data."""
    if NO_FIELD.match(statement) or not statement.endswith(";"):
        return "", 0
    text = without_templates(re.sub(r"\{[^{}]*\}", "", statement)).rstrip(";")
    text = re.sub(r"=[^,]*", "", re.sub(r"alignas\([^()]*\)", "", text))
    if "(" in text or not re.match(r"[\w:]", text):
        return "", 0
    words = text.split()
    return (words[0] if words[0] not in ("const", "mutable") else words[1]), 1 + text.count(",")


def structs(lines):
    """(name, fields, booleans among them) of each class."""
    for i, line in enumerate(lines):
        if found := CLASS.match(line):
            end = next(j for j in range(i + 1, len(lines)) if lines[j].startswith(found[1] + "}"))
            declared = [fields(statement) for statement in statements(lines[i + 1 : end], found[1] + "  ")]
            yield found[2], sum(count for _, count in declared), sum(count for kind, count in declared if kind == "bool")


def flagged(text):
    """(name, boolean parameters) of each function that is declared or defined."""
    for found in re.finditer(r"\b(\w+)\(((?:[^();{}]|\([^()]*\))*)\)(?: const)?(?: noexcept)?(?: override)?\s*[;{:]", re.sub(r"//.*", "", text)):
        yield found[1], len(re.findall(r"(?:^|,)\s*(?:const )?bool \w+", found[2]))


def faults_in(name, text, excused, needed):
    """What is too large, but for the names that are excused; those go to needed."""
    lines = [re.sub(r"\{  //.*$", "{", line) for line in text.split("\n")]
    for struct, count, booleans in structs(lines):
        if count > MOST_FIELDS or booleans > MOST_BOOLEANS:
            needed.add(struct)
            if struct not in excused:
                yield f"{name}: {struct} has {count} fields, {booleans} of them booleans, expected {MOST_FIELDS} and {MOST_BOOLEANS} at most"
    for function, booleans in flagged(text):
        if booleans > MOST_BOOLEANS:
            yield f"{name}: {function} decides from {booleans} booleans, expected {MOST_BOOLEANS} at most"


def check_itself():
    wide = "struct A {\n" + "".join(f"  std::map<int, std::function<int(int)>> f{i} = {{}};  // one\n" for i in range(20)) + "};\n"
    bools = "class B {\n  int f() const { return 1; }\n  bool a = false, b = false;\n  const bool c;\n  bool d{true};\n};\n"
    for text, count in ((wide, 0), (wide.replace("struct A {\n", "struct A {\n  int last;\n"), 1),
                        (bools, 0), (bools.replace("  bool d", "  bool e, d"), 1), ("int f(bool a, bool b, bool c, bool d);", 0),
                        ("int f(bool a, bool b, bool c,\n      bool d, bool e) const {", 1)):
        found = list(faults_in("text", text, {}, set()))
        assert len(found) == count, f"expected {count} faults, found {found}, in\n{text}"


def parsed(text):
    """((lines, reason of the last raise) of each room, reason of each exception)."""
    budgets, excused = {}, {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            first, _, reason = rest.strip().partition(" ")
            if first.isdigit():
                budgets[name] = (int(first), reason.strip())
            else:
                excused[name] = rest.strip()
    return budgets, excused


def renewed(text, now, raised="", reason=""):
    """The text with the budgets that have fallen, without rooms that are gone, and with the room that a reason raises."""
    budgets, _ = parsed(text)
    lines = [line for line in text.splitlines() if line.partition(" ")[0] not in budgets]
    end = next((i for i, line in enumerate(lines) if not line), len(lines))
    for room, has in sorted(now.items()):
        most, why = budgets.get(room, (0, ""))
        if room == raised:
            most, why = has, reason
        if most:
            lines.insert(end, f"{room} {min(has, most)} {why}".rstrip())
            end += 1
    return "\n".join(lines) + "\n"


def check_renewal():
    text = "# head\na 10\nb 20 one good reason\ngone 5\n\n# exceptions\nC as it has to be\n"
    now = {"a": 12, "b": 15, "new": 3}
    for given, wanted in (((), "# head\na 10\nb 15 one good reason\n\n# exceptions\nC as it has to be\n"),
                          (("a", "a feature"), "# head\na 12 a feature\nb 15 one good reason\n\n# exceptions\nC as it has to be\n"),
                          (("new", "a room"), "# head\na 10\nb 15 one good reason\nnew 3 a room\n\n# exceptions\nC as it has to be\n")):
        assert renewed(text, now, *given) == wanted, f"renewed({given}) gives\n{renewed(text, now, *given)}"


def main():
    check_itself()
    check_renewal()
    root, order = Path(sys.argv[1]), sys.argv[2:]
    now = dict(rooms(root))
    if order[:1] == ["--raise"]:
        if len(order) != 3 or order[1] not in now or len(order[2].split()) < 3:
            sys.exit(f"--raise needs a room (one of {', '.join(sorted(now))}) and a reason of three words at least; it was given {order[1:]}")
        BUDGETS.write_text(renewed(BUDGETS.read_text(), now, order[1], order[2]))
    elif order:
        if order != ["--renew"]:
            sys.exit(f"expected --renew or --raise ROOM REASON behind the root, found {order}")
        BUDGETS.write_text(renewed(BUDGETS.read_text(), now))
    budgets, excused = parsed(BUDGETS.read_text())
    faults = []
    for room in sorted({*now, *budgets}):
        has, most = now.get(room, 0), budgets.get(room, (0,))[0]
        if has > most:
            faults.append(f"{room}: {has} lines, its budget is {most}: make it smaller, or raise it for a feature (--raise ROOM REASON)")
        elif has < most * (1 - SLACK):
            faults.append(f"{room}: {has} lines, its budget is {most}: lower it (--renew)")
    needed = set()
    for file in sorted(file for folder in ("src", "transports") for pattern in ("*.h", "*.cc", "*.cu") for file in (root / folder).rglob(pattern)):
        faults += faults_in(file.relative_to(root), file.read_text(), excused, needed)
    faults += [f"budgets.txt: {name} needs no exception" for name in excused if name not in needed]
    faults += [f"budgets.txt: {name} has no reason" for name, reason in excused.items() if len(reason.split()) < 3]
    print("\n".join(faults) or f"{sum(now.values())} lines in {len(now)} rooms")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
