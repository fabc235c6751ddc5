#!/usr/bin/env python3
"""Whether tools/run-gpu-checks runs its sections by the mock, and reports; also when every one of them fails.

usage: check_gpu_checks.py RUN_GPU_CHECKS BUILD
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

SECTIONS = ["kolo-info", "figures latency", "figures bandwidth", "tests messages", "kolo-perf threads"]


def run(script, build):
    """Exit status, output, the JSON report and the text."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([script, "--mock", "--build", build, "--out", folder, "--only", ",".join(SECTIONS)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        reports = {file.suffix: file.read_text() for file in Path(folder).iterdir()}
    return done.returncode, done.stdout, json.loads(reports[".json"]), reports[".txt"]


def expect(condition, what, output):
    if not condition:
        sys.exit(f"{what}; run-gpu-checks said:\n{output}")


def main():
    script, build = sys.argv[1:]
    status, output, report, text = run(script, build)
    expect(status == 0, f"exit status {status}", output)
    expect([section["name"] for section in report["sections"]] == SECTIONS, "other sections than asked for", output)
    expect(all(section["status"] == "passed" for section in report["sections"]), "not all passed", output)
    figures = [figure for figure in report["figures"] if "us" in figure]
    expect({figure["section"] for figure in figures} == {"latency", "bandwidth"}, "figures are missing", output)
    expect(not any(figure["wrong"] for figure in figures), "wrong results", output)
    expect(any(entry["holds"] is not None for entry in report["verdicts"]), "no target was looked at", output)
    expect(all(part in text for part in [*SECTIONS, "latency in us, 4 ranks", "bandwidth, 4 ranks"]), "the text lacks a part", text)

    with tempfile.TemporaryDirectory() as nothing:
        status, output, report, text = run(script, nothing)
    expect(status == 1, f"exit status {status} though nothing is there", output)
    expect([section["name"] for section in report["sections"]] == SECTIONS, "a failure hides a section", output)
    expect(all(section["status"].startswith("FAILED") or "No such file" in section["status"] for section in report["sections"]),
           "not all failed", output)


main()
