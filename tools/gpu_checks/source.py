"""Which code this is, also where there is no git."""

import hashlib
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ["include", "src", "transports", "tests", "perf", "tools"]


def commit():
    if not (ROOT / ".git").exists():
        return "unknown (no repository)"
    try:
        asked = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True)
    except OSError:
        return "unknown (no git)"
    return asked.stdout.strip() or "unknown"


def digest():
    """Of every source file, in a few digits: the same in every copy of the tree, whatever came with it."""
    found = hashlib.sha256()
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.is_file() and file.suffix != ".pyc" and "results" not in file.parts:
                found.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:12]
