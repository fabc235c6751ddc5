"""Which targets the figures meet, and how Kolo stands beside PyTorch's symmetric memory."""

from gpu_checks.figures import KIB, MIB, WAYS, find, number, size_text

# Which part of the copy's bandwidth, or how many microseconds.
TARGET_OF_COPY = 0.85
TARGET_LAUNCHED_US, TARGET_RESIDENT_US = 12, 6


def verdict(target, value, text, holds):
    return {
        "target": target,
        "measured": text if value is not None else "not measured",
        "holds": holds if value is not None else None,
    }


def bandwidth_verdicts(figures):
    for algorithm, ranks in [("two_shot", 4), *((name, n) for name in ["ring", "biring"] for n in [4, 2, 8])]:
        figure = find(
            figures, section="bandwidth", algorithm=algorithm, ranks=ranks, bytes=256 * MIB, buffers="registered"
        )
        part = figure.get("of_copy") if figure else None
        yield verdict(
            f"{algorithm} of 256 MiB, {ranks} ranks: at least {TARGET_OF_COPY} of the copy's bandwidth by its own traffic",
            part,
            number(part, 3),
            part is not None and part >= TARGET_OF_COPY,
        )


def latency_verdicts(figures):
    for resident, most in [(False, TARGET_LAUNCHED_US), (True, TARGET_RESIDENT_US)]:
        for way in ["stream", "waited"]:
            figure = find(
                figures, section="latency", algorithm="auto", ranks=4, bytes=8 * KIB, resident=resident, way=way
            )
            us = figure["us"] if figure else None
            yield verdict(
                f"8 KiB, 4 ranks, {'resident' if resident else 'launched'}, {WAYS[way]}: at most {most} us",
                us,
                f"{number(us)} us",
                us is not None and us <= most,
            )


def best(figures, **wanted):
    """The least time back to back among the figures with these values."""
    return min(
        (
            figure["us"]
            for figure in figures
            if "us" in figure
            and figure["way"] == "stream"
            and all(figure.get(key) == value for key, value in wanted.items())
        ),
        default=None,
    )


def peer_comparisons(figures):
    """A row for each number of ranks and size at which PyTorch was measured: its better algorithm, Kolo's best."""
    rows = []
    for mps in [False, True]:
        alike = [figure for figure in figures if bool(figure.get("mps")) == mps and "us" in figure]
        peer = [figure for figure in alike if figure["section"] == "torch" and figure["datatype"] == "float32"]
        threads = [
            figure
            for figure in figures
            if figure["section"] in ("bandwidth", "latency") and figure.get("buffers") == "registered"
        ]
        for ranks, size in sorted({(figure["ranks"], figure["bytes"]) for figure in peer}):
            point = {"ranks": ranks, "bytes": size}
            row = {
                "mps": mps,
                **point,
                "one_shot": best(peer, algorithm="one_shot", **point),
                "two_shot": best(peer, algorithm="two_shot", **point),
                "peer": best(peer, **point),
                "kolo": best(alike, section="processes", **point),
                "threads": best(threads, resident=False, **point),
            }
            row["ratio"] = row["peer"] / row["kolo"] if row["peer"] and row["kolo"] else None
            rows.append(row)
    return rows


def peer_verdicts(figures):
    rows = peer_comparisons(figures)
    for mps in [False, True] if any(row["mps"] for row in rows) else [False]:
        ratios = [(row["ratio"], row) for row in rows if row["mps"] == mps and row["ratio"] is not None]
        least, where = min(ratios, default=(None, None), key=lambda pair: pair[0])
        behind = [f"{size_text(row['bytes'])} by {row['ranks']}" for ratio, row in ratios if ratio <= 1]
        text = ""
        if where is not None:
            text = f"{len(ratios)} sizes; least {least:.2f} times, at {size_text(where['bytes'])} by {where['ranks']}"
        yield verdict(
            f"faster than PyTorch's symmetric memory at every size, processes{' with MPS' if mps else ''}",
            least,
            text + (f"; behind at {', '.join(behind)}" if behind else ""),
            not behind,
        )


def verdicts(figures):
    return [*bandwidth_verdicts(figures), *latency_verdicts(figures), *peer_verdicts(figures)]
