"""What the report says, as tables, and as text."""

from dataclasses import dataclass

from gpu_checks.figures import WAYS, find, is_failure, number, size_text
from gpu_checks.predictions import PLANNER, constants
from gpu_checks.verdicts import peer_comparisons

OUTPUT_SHOWN = 40  # lines of a section that failed

TEXT_COLUMNS = {
    "target",
    "expected",
    "holds",
    "measured",
    "source",
    "step",
    "memory",
    "by",
    "mover",
    "datatype",
    "constant",
    "said",
    "call",
    "section",
    "result",
    "choice",
    "algorithm",
    "buffers",
    "way",
    "collective",
    "MPS",
    "dma-buf",
    "peer memory",
    "orders writes",
    "exported",
}


@dataclass(frozen=True)
class Table:
    """Words to the left, numbers to the right."""

    title: str
    heads: list
    rows: list

    def columns(self):
        """Of each column its head, whether it is words, and its cells."""
        return [(head, head in TEXT_COLUMNS, [str(row[at]) for row in self.rows]) for at, head in enumerate(self.heads)]


def table(title, heads, rows):
    """A list of one table; of none without rows."""
    return [Table(title, heads, rows)] if rows else []


def text_of(table):
    columns = []
    for head, is_words, cells in table.columns():
        width = max(map(len, [head, *cells]))
        columns.append([cell.ljust(width) if is_words else cell.rjust(width) for cell in [head, *cells]])
    return ["", table.title, *(("  " + "  ".join(line)).rstrip() for line in zip(*columns))]


def counts(figures, section, key):
    return sorted(
        {figure[key] for figure in figures if figure["section"] == section and key in figure and "us" in figure}
    )


def latency_tables(figures):
    tables = []
    columns = [
        ("launched", "auto", False, "stream"),
        ("in graph", "auto", False, "graph"),
        ("resident", "auto", True, "stream"),
        ("launched w", "auto", False, "waited"),
        ("resident w", "auto", True, "waited"),
        ("one_shot launched", "one_shot", False, "stream"),
        ("resident", "one_shot", True, "stream"),
        ("launched w", "one_shot", False, "waited"),
        ("resident w", "one_shot", True, "waited"),
    ]
    for ranks in counts(figures, "latency", "ranks"):
        rows = []
        for size in counts(figures, "latency", "bytes"):
            found = [
                find(
                    figures, section="latency", ranks=ranks, bytes=size, algorithm=algorithm, resident=resident, way=way
                )
                for _, algorithm, resident, way in columns
            ]
            plan = next((figure["plan"] for figure in found[:5] if figure), "-")
            rows.append([size_text(size), plan, *(number(figure and figure["us"]) for figure in found)])
        tables += table(
            f"all_reduce, latency in us, {ranks} ranks (threads), float32, registered; back to back, or (w) each waited for",
            ["size", "choice", *(head for head, *_ in columns)],
            rows,
        )
    return tables


def graph_tables(figures):
    """Each figure of a graph beside the planner's prediction, and beside NCCL's."""
    measured = [figure for figure in figures if figure["section"] == "graph" and "us" in figure]
    tables = []
    for ranks in counts(figures, "graph", "ranks"):
        points = dict.fromkeys(
            (figure["datatype"], figure["buffers"], figure["bytes"]) for figure in measured if figure["ranks"] == ranks
        )
        rows = []
        for datatype, buffers, size in points:
            point = {"ranks": ranks, "datatype": datatype, "buffers": buffers, "bytes": size, "way": "graph"}
            warm = find(figures, section="graph", caches="warm", **point)
            cold = find(figures, section="graph", caches="cold", **point)
            nccl = find(figures, section="nccl", **point)
            us, planned = warm and warm["us"], warm and warm.get("planner_us")
            rows.append(
                [
                    datatype,
                    buffers,
                    size_text(size),
                    warm["plan"] if warm else "-",
                    number(us),
                    number(planned),
                    number(us / planned if us and planned else None),
                    number(cold and cold["us"]),
                    number(nccl and nccl["us"]),
                    number(nccl["us"] / us if nccl and us else None),
                    number(warm and warm.get("algbw_gbps"), 1),
                    number(warm and warm.get("of_copy")),
                ]
            )
        tables += table(
            f"all_reduce in a graph, {ranks} ranks (threads), the planner's choice, in us; planned: what the planner predicts;\n"
            "cold: with the device's cache overwritten before each call; NCCL / Kolo: how many times faster Kolo is",
            ["datatype", "buffers", "size", "choice", "us", "planned us", "us / planned", "cold us", "NCCL us", "NCCL / Kolo",
             "GB/s", "of copy"],
            rows,
        )
    return tables


def said_tables(figures):
    """What sections say beside figures: what they lack, versions, checks."""
    said = [
        [figure["section"], ", ".join(f"{key} {value}" for key, value in figure.items() if key != "section")]
        for figure in figures
        if figure["section"] in ("attributes", "torch", "nccl", "backend") and "us" not in figure
    ]
    return table("what the device, the peers and the backend for PyTorch say of themselves", ["section", "said"], said)


def bandwidth_tables(figures):
    tables = []
    columns = [
        *(("registered", name) for name in ["two_shot", "one_shot", "ring", "biring", "auto"]),
        ("plain", "two_shot"),
        ("plain", "ring"),
    ]
    heads = [
        "size",
        *(head for buffers, name in columns for head in (f"{'plain ' if buffers == 'plain' else ''}{name} us", "part")),
    ]
    for ranks in counts(figures, "bandwidth", "ranks"):
        rows = []
        for size in counts(figures, "bandwidth", "bytes"):
            found = [
                find(figures, section="bandwidth", ranks=ranks, bytes=size, algorithm=name, buffers=buffers)
                for buffers, name in columns
            ]
            rows.append(
                [
                    size_text(size),
                    *(
                        cell
                        for figure in found
                        for cell in (number(figure and figure["us"], 1), number(figure and figure.get("of_copy")))
                    ),
                ]
            )
        tables += table(
            f"all_reduce, bandwidth, {ranks} ranks (threads), float32, registered but where it says plain;\npart: of the "
            "copy's bandwidth, by the traffic that the algorithm must move",
            heads,
            rows,
        )
    return tables


def choice_text(figure):
    return figure["algorithm"] if figure["algorithm"] != "auto" or not figure["plan"] else f"auto: {figure['plan']}"


def other_tables(figures):
    tables = []
    for section, title in [
        ("collectives", "all collectives, 4 ranks (threads), the planner's choice, registered buffers"),
        ("messages", "messages, 2 ranks (threads), one way of a ping-pong, registered buffers"),
        ("processes", "all_reduce, ranks that are processes, registered buffers"),
    ]:
        rows = [
            [
                figure["collective"],
                figure["ranks"],
                choice_text(figure),
                size_text(figure["bytes"]),
                WAYS[figure["way"]],
                "yes" if figure.get("mps") else "no",
                number(figure["us"]),
                number(figure["algbw_gbps"]),
                number(figure.get("of_copy")),
            ]
            for figure in figures
            if figure["section"] == section and "us" in figure
        ]
        tables += table(title, ["collective", "ranks", "algorithm", "size", "way", "MPS", "us", "GB/s", "of copy"], rows)
    return tables


def peer_tables(figures):
    rows = [
        [
            "yes" if row["mps"] else "no",
            row["ranks"],
            size_text(row["bytes"]),
            number(row["one_shot"]),
            number(row["two_shot"]),
            number(row["kolo"]),
            number(row["ratio"]),
            number(row["threads"]),
        ]
        for row in peer_comparisons(figures)
    ]
    title = (
        "all_reduce beside PyTorch's symmetric memory, float32, back to back, in us: processes on both sides, Kolo's best algorithm;\n"
        "ratio: how many times faster Kolo is. Without MPS processes take turns on the device. Kolo's ranks that are threads do not,\n"
        "and stand in the last column for themselves"
    )
    heads = ["MPS", "ranks", "size", "torch one_shot", "torch two_shot", "Kolo", "ratio", "Kolo as threads"]
    return table(title, heads, rows)


def gpu_direct_tables(figures):
    """What the driver says of NICs and this device's memory, and what came of exporting some."""
    rows = [
        [
            *("yes" if figure[key] else "no" for key in ["dma_buf", "peer_memory", "orders_writes"]),
            size_text(figure["exported"]) if figure["exported"] else "no: " + figure["why"],
            number(figure["export_us"], 0),
        ]
        for figure in figures
        if figure["section"] == "gpudirect"
    ]
    return table(
        "GPUDirect RDMA, without a NIC: what the driver says, and the export of memory that is made as arenas are",
        ["dma-buf", "peer memory", "orders writes", "exported", "us"],
        rows,
    )


def waits_table(figures):
    """What the driver waits for, which decides what the library may call, and when."""
    said = {True: "yes", False: "no"}
    rows = [
        [figure["call"], number(figure["took_us"], 0), said[figure["waits"]], said[figure["holds_up"]]]
        for figure in figures
        if figure["section"] == "waits"
    ]
    return table(
        "calls of the driver beside a kernel that runs for 100 ms, and a launch by another thread meanwhile",
        ["call", "us", "waits for the kernel", "holds up the launch"],
        rows,
    )


def memory_table(figures):
    rows = [[figure["step"], number(figure["taken_mib"], 1)] for figure in figures if figure["section"] == "memory"]
    return table("memory of the device, by what each step takes of it", ["step", "MiB"], rows)


def micro_tables(figures):
    """What a device takes for one thing alone."""
    found = [figure for figure in figures if figure["section"] == "micro"]

    def of(what, **wanted):
        return [one for one in found if one["what"] == what and all(one[key] == value for key, value in wanted.items())]

    fences = [[one["place"], one["stores"], number(one["beside_us"], 3), number(one["us"], 3)] for one in of("fence")]
    tables = table("a fence for the whole system behind the stores of a block", ["memory", "stores of a thread", "us without", "fence us"], fences)
    hops = [[one["place"], one["by"], number(one["us"], 3)] for one in of("hop")]
    tables += table("from one block to another, one way", ["memory", "by", "us"], hops)
    calls = [[one["call"], number(one["us"], 3), number(one["host_us"], 3)] for one in of("call")]
    tables += table("calls of the driver back to back: until the device is done, and until they return", ["call", "us", "host us"], calls)
    for place in ["device", "host"]:
        movers = of("copy", place=place) + of("fold", place=place)
        grids = sorted({one["blocks"] for one in movers})
        kinds = dict.fromkeys((one["what"], one.get("datatype", "-"), one["sources"]) for one in movers)
        rate = {(one["what"], one.get("datatype", "-"), one["sources"], one["blocks"]): one["gbps"] for one in movers}
        rows = [[*kind, *(number(rate.get((*kind, blocks)), 1) for blocks in grids)] for kind in kinds]
        title = f"GB/s read and written by so many blocks, out of the {place}'s memory"
        tables += table(title, ["mover", "datatype", "sources", *map(str, grids)], rows)
    return tables


def constants_table(document):
    rows = [[name, number(now), number(measured)] for name, now, measured in constants(document)]
    measured = any(row[2] != "-" for row in rows)
    title = f"constants of the planner, as {PLANNER} has them and as they were measured (-: not here)"
    return table(title, ["constant", "now", "measured"], rows if measured else [])


def expected_table(document):
    held = {True: "yes", False: "NO", None: "-"}
    rows = [
        [
            entry["target"],
            entry["expected"],
            entry["measured"],
            held[entry["holds"]],
            number(entry["chance"]),
            entry["source"],
        ]
        for entry in document["verdicts"]
    ]
    heads = ["target", "expected", "measured", "holds", "chance", "source"]
    return table("what was expected, and what is (chance: that it would hold, as guessed before; sources: gpu_checks/predictions.py)", heads, rows)


def summary(document):
    """(what, its value) of the whole run."""
    device = document.get("device", "mocked" if document["mocked"] else "unknown").replace("\n", "; ")
    holds = [entry["holds"] for entry in document["verdicts"]]
    return [
        ("command", document["command"]),
        ("machine", device),
        ("commit", f"{document['commit']}, sources {document['sources']}"),
        ("expected", f"{holds.count(True)} hold, {holds.count(False)} do not, {holds.count(None)} are not measured"),
        ("unused", f"{document['unused']:.0f} s of {document['seconds']:.0f} s"),
    ]


def title(document):
    mocked = " (mocked: the times mean nothing)" if document["mocked"] else ""
    return f"Kolo on a GPU{mocked}, {document['date'][:16].replace('T', ' ')}"


def tables(document):
    figures = document["figures"]
    copies = [figure for figure in figures if figure["section"] == "copy"]
    wrong = [figure for figure in figures if figure.get("wrong")]
    return [
        *table(
            "WRONG RESULTS while measuring",
            ["section", "algorithm", "ranks", "size", "wrong elements"],
            [
                [figure["section"], figure["algorithm"], figure["ranks"], size_text(figure["bytes"]), figure["wrong"]]
                for figure in wrong
            ],
        ),
        *expected_table(document),
        *table(
            "sections",
            ["section", "seconds", "result"],
            [
                [entry["name"], entry["seconds"], f"{entry['status']} {entry['summary']}"]
                for entry in document["sections"]
            ],
        ),
        *table(
            "the device's copy (bytes read and written), the best of all sections",
            ["size", "GB/s"],
            [
                [size_text(size), max(figure["gbps"] for figure in copies if figure["bytes"] == size)]
                for size in sorted({figure["bytes"] for figure in copies})
            ],
        ),
        *constants_table(document),
        *memory_table(figures),
        *micro_tables(figures),
        *waits_table(figures),
        *graph_tables(figures),
        *latency_tables(figures),
        *bandwidth_tables(figures),
        *peer_tables(figures),
        *said_tables(figures),
        *other_tables(figures),
        *gpu_direct_tables(figures),
    ]


def text_report(document):
    lines = [f"# {title(document)}", *(f"# {what}: {value}" for what, value in summary(document))]
    for one in tables(document):
        lines += text_of(one)
    for entry in filter(is_failure, document["sections"]):
        lines += [
            "",
            f"{entry['name']}: {entry['status']}",
            f"  {entry['command']}",
            *("  | " + line for line in shown(entry)),
        ]
    return "\n".join(lines)


def shown(entry):
    """The last lines of a section."""
    return entry["output"].splitlines()[-OUTPUT_SHOWN:]
