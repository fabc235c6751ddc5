#!/usr/bin/env python3
"""Runs the suites of posted links over Soft-RoCE, in one virtual machine with two NICs.

usage: check_ib.py path/to/kolo-contract [TEST...]

Exit status 77, with the reason, where the machine cannot run.
"""
import os
import subprocess
import sys
from pathlib import Path

RDMA_VM = Path(__file__).resolve().parents[2] / "tools" / "rdma-vm"
# The kernel has sent a packet to itself before the call that posts it returns: here no queue ever fills.
LEFT_OUT = "what is queued is bounded*"
SECONDS = 500


def main():
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    contract = Path(sys.argv[1]).resolve()
    tests = sys.argv[2:] or [f'[posted]~"{LEFT_OUT}"', "an interface that goes down in the middle*"]
    lines = ["status=0"]
    for test in tests:
        lines.append(f"'{contract}' '{test}' --durations yes || status=1")
    lines.append("exit $status")
    variables = {"KOLO_TEST_REAL_VERBS": "1", "KOLO_TRANSPORTS": "ib", "KOLO_TRANSPORT_PLUGINS": "",
                 "KOLO_TEST_FAULT": "ip link set eth0 down"}
    command = [RDMA_VM, "--nics", "2", "--memory", "2G", "--timeout", str(SECONDS)]
    for name, value in variables.items():
        command += ["--env", f"{name}={value}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KOLO_") or name == "KOLO_VM_CACHE"}
    return subprocess.run([*command, "--", "sh", "-c", "\n".join(lines)], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
