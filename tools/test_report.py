"""What a test program said: its cases, and of its output what belongs to a failure."""
import re
import signal
import xml.etree.ElementTree as ElementTree

OUTPUT_LINES = 60  # the last ones of what is shown
REPORT_LINES = 40  # of each of a sanitizer's first reports, which come before them
REPORTS = 3
REPORT_BEGINS = ("WARNING: ThreadSanitizer", "ERROR: AddressSanitizer", "ERROR: LeakSanitizer", ": runtime error: ")
CASE_MARK = "== case "  # tests/support/case_marks.cc writes it
# What a failure says that is one of time alone: CHECK_WITHIN, a call that should have succeeded (EXPECT_OK), Python's limits.
LATE = re.compile(r"ran out of time|\b7 \(timed out\), expected 0 |^ *(subprocess\.)?Timeout(Expired|Error)\b", re.M)
LATE_CALL = re.compile(r": Info: .*: 7 \(timed out\)")  # REQUIRE_OK, CHECK_CODE say so before their assertion,
OF_SUCCESS = "koloGot == koloSuccess"  # which is this one where the call should have succeeded
HUNG = re.compile(r"watchdog: .* did not end in time")
UNITTEST_RULE = "=" * 70  # Python's unittest writes it before each failure, after the output of all cases


def parse_cases(report):
    """[(name, passed, text of failures)] of Catch2's XML; a case that never ended has passed None. The report of a
    program that died ends in mid-air, which a pull parser takes."""
    cases, running = [], None
    parser = ElementTree.XMLPullParser(["start", "end"])
    try:
        parser.feed(report)
        events = list(parser.read_events())
    except ElementTree.ParseError as problem:
        return [(f"unreadable report: {problem}", None, "")]
    for kind, element in events:
        if element.tag != "TestCase":
            continue
        name = element.get("name")
        running = name if kind == "start" else None
        if kind == "end":
            result = element.find("OverallResult")
            passed = result is not None and result.get("success") == "true"
            cases.append((name, passed, "" if passed else failure_text(element)))
    if running is not None:
        cases.append((running, None, ""))
    return cases


def is_late(text):
    """Whether each failure of a failure_text(), or what a script says of one, tells that a deadline has passed, and nothing else. What a test says of a
    failure (Info, Warning) stands before it, and may quote anything."""
    late, said = [], ""
    for part in filter(str.strip, re.split(r"(?m)^(?=    \S+:\d+: )", text)):
        if re.match(r"    \S+:\d+: (Info|Warning): ", part):
            said += part
            continue
        late.append(bool(LATE.search(part)) or (OF_SUCCESS in part and bool(LATE_CALL.search(said))))
        said = ""
    return bool(late) and all(late)


def has_hung(status, output):
    """Whether a program that died in a case was ended because of the time: by its watchdog, which aborts it, or by whoever has run it."""
    return status is None or (status == -signal.SIGABRT and HUNG.search(output) is not None)


def has_report(output):
    """Whether a sanitizer has found something."""
    return any(text in output for text in REPORT_BEGINS)


def failure_text(case):
    lines = []
    for element in case.iter():
        if element.tag == "Expression" and element.get("success") == "false":
            original = (element.findtext("Original") or "").strip()
            expanded = (element.findtext("Expanded") or "").strip()
            lines.append(f"{element.get('filename')}:{element.get('line')}: {original}\n      was {expanded}")
        if element.tag in ("Exception", "Failure", "FatalErrorCondition", "Info", "Warning"):
            place = f"{element.get('filename')}:{element.get('line')}: " if element.get("filename") else ""
            lines.append(f"{place}{element.tag}: {(element.text or '').strip()}")
    return "\n".join("    " + line for line in lines)


def ending(status, timeout):
    if status is None:
        return f"ran out of time ({timeout:.0f} s)"
    if status < 0:
        return f"died of {signal.Signals(-status).name}"
    return f"ended with status {status}"


def output_of_cases(output):
    """[(name of the case, its output)] in the order in which the cases ran; what was said before the first has the name ""."""
    parts, name, lines = [], "", []
    for line in output.splitlines():
        if line.startswith(CASE_MARK):
            parts.append((name, "\n".join(lines)))
            name, lines = line[len(CASE_MARK):], []
        else:
            lines.append(line)
    parts.append((name, "\n".join(lines)))
    return parts


def output_of_failures(output, failed):
    """Of a Catch2 program's output what the failed cases said, what a sanitizer reported in whichever case, and where neither is found
    (the program died behind its last case) what was said last. For people: indented, and each part under its case's name."""
    parts = output_of_cases(output)
    said = [(name, text) for name, text in parts
            if text.strip() and (name in failed or has_report(text))]
    if not said and not failed:
        said = [part for part in parts[-1:] if part[1].strip()]
    return "\n".join(f"    output of {name or 'the program before its first case'}:\n{essence(text)}" for name, text in said)


def output_of_script(output):
    """Of a script's output the failures that unittest lists at its end, or else its end."""
    begin = output.find(f"\n{UNITTEST_RULE}\n")
    return essence(output if begin < 0 else output[begin + 1:])


def essence(output):
    """The first reports of a sanitizer, which may stand anywhere, and the end of the output."""
    lines = output.strip("\n").rstrip().splitlines()
    begins = [i for i, line in enumerate(lines) if any(text in line for text in REPORT_BEGINS)][:REPORTS]
    kept = sorted({i for begin in begins for i in range(begin, min(begin + REPORT_LINES, len(lines)))}
                  | set(range(max(0, len(lines) - OUTPUT_LINES), len(lines))))
    shown, after = [], 0
    for i in kept:
        if i > after:
            shown.append(f"... {i - after} lines left out")
        shown.append(lines[i])
        after = i + 1
    return "\n".join("    | " + line for line in shown)
