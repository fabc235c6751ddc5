"""Figures: dictionaries with the keys of kolo-gpu-measure's lines, and how their values are written."""

KIB, MIB = 1024, 1024 * 1024
WAYS = {"stream": "back to back", "waited": "waited for", "graph": "in a graph"}


def size_text(size):
    for unit, name in [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")]:
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def number(value, digits=2):
    return "-" if value is None else f"{value:.{digits}f}"


def find(figures, has="us", **wanted):
    """The first figure with all these values that was measured (`has` is a key of it), or None."""
    for figure in figures:
        if has in figure and all(figure.get(key) == value for key, value in wanted.items()):
            return figure
    return None


def is_failure(entry):
    """Of a section's entry in the report."""
    return entry["status"] != "passed" and not entry["status"].startswith("skipped")
