"""How Kolo stands beside its peers on the same device, and all that is expected beside what was measured."""

from gpu_checks import predictions
from gpu_checks.figures import size_text


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
        if where:
            text = f"{len(ratios)} sizes; least {least:.2f} times, at {size_text(where['bytes'])} by {where['ranks']}"
        yield {
            "target": f"faster than PyTorch's symmetric memory at every size, processes{' with MPS' if mps else ''}",
            "expected": "more than 1 times",
            "chance": None,
            "source": predictions.TARGET,
            "measured": text + (f"; behind at {', '.join(behind)}" if behind else "") if where else "not measured",
            "holds": not behind if where else None,
        }


def verdicts(document):
    return [*predictions.verdicts(document), *peer_verdicts(document["figures"])]
