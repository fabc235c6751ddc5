"""The report as a page that needs nothing beside it, in the style of kolo-perf's."""

import math
import re
from html import escape

from gpu_checks import report
from gpu_checks.figures import is_failure, number, size_text
from gpu_checks.source import ROOT

MORE_STYLE = ".out { white-space: pre-wrap; font: 12px/1.4 monospace; color: var(--soft); } td.text { white-space: normal; min-width: 8em; }"


def style():
    return re.search(r'R"css\((.*)\)css"', (ROOT / "perf/html_style.h").read_text(), re.S)[1] + MORE_STYLE


def cell(tag, text, is_words, head=""):
    mark = {"NO": " bad", "yes": " good"}.get(text, "") if head == "holds" else ""
    return f'<{tag} class="{"text" if is_words else ""}{mark}">{escape(text)}</{tag}>'


def table_of(table):
    columns = table.columns()
    heads = "".join(cell("th", head, is_words) for head, is_words, _ in columns)
    rows = zip(*([cell("td", text, is_words, head) for text in cells] for head, is_words, cells in columns))
    body = "".join(f"<tr>{''.join(row)}</tr>\n" for row in rows)
    title = escape(table.title[:1].upper() + table.title[1:])
    return (
        f'<section><div class="head"><h2>{title}</h2></div><div class="scroll"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>\n{body}</tbody></table></div></section>\n"
    )


WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 480, 300, 46, 26, 30, 30  # of a chart, in its own units


def chart_of(title, curves):
    """Times over sizes, both logarithmic. curves: {name: [(bytes, us)]}, of positive times; at least one point."""
    points = [point for curve in curves.values() for point in curve]
    low, high = (math.log10(pick(us for _, us in points)) for pick in (min, max))
    first, last = (math.log2(pick(size for size, _ in points)) for pick in (min, max))
    low, high, last = math.floor(low), max(math.ceil(high), math.floor(low) + 1), max(last, first + 1)

    def x(size):
        return LEFT + (math.log2(size) - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y(us):
        return TOP + (high - math.log10(us)) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<text x="{LEFT}" y="16" class="title">{escape(title)}</text>']
    for power in range(low, high + 1):
        at, us = y(10.0**power), f"{10.0**power:g}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{us}</text>')
    for size in sorted({size for size, _ in points}):
        parts.append(f'<text x="{x(size):.1f}" y="{HEIGHT - 10}" text-anchor="middle">{size_text(size)}</text>')
    for color, (name, curve) in enumerate(curves.items()):
        corners = " ".join(f"{x(size):.1f},{y(us):.1f}" for size, us in curve)
        parts.append(f'<polyline style="stroke:var(--c{color})" points="{corners}"/>')
        parts += [
            f'<circle class="dot" cx="{x(size):.1f}" cy="{y(us):.1f}" r="4" style="fill:var(--c{color})">'
            f"<title>{escape(name)}, {size_text(size)}: {number(us)} us</title></circle>"
            for size, us in curve
        ]
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'


CURVES = {  # the figures of each, and the key of its time
    "Kolo": ({"section": "graph", "caches": "warm"}, "us"),
    "planned": ({"section": "graph", "caches": "warm"}, "planner_us"),
    "Kolo, cold": ({"section": "graph", "caches": "cold"}, "us"),
    "NCCL": ({"section": "nccl", "way": "graph"}, "us"),
}


def charts(figures):
    """What is measured in graphs, a chart for each number of ranks, datatype and kind of buffers."""
    measured = [figure for figure in figures if figure["section"] == "graph" and "us" in figure]
    keys = ["ranks", "datatype", "buffers"]
    drawn = []
    for point in dict.fromkeys(tuple(figure[key] for key in keys) for figure in measured):
        curves = {}
        for name, (wanted, key) in CURVES.items():
            wanted = {**wanted, **dict(zip(keys, point))}
            curves[name] = sorted(
                (figure["bytes"], figure[key])
                for figure in figures
                if figure.get(key, 0) > 0 and all(figure.get(word) == value for word, value in wanted.items())
            )
        if any(curves.values()):
            drawn.append(chart_of("{} ranks, {}, {} buffers".format(*point), curves))
    if not drawn:
        return ""
    legend = "".join(f'<span><i style="background:var(--c{at})"></i>{name}</span>' for at, name in enumerate(CURVES))
    return (
        '<section><div class="head"><h2>All_reduce in a graph, us over bytes</h2>'
        f'<div class="legend">{legend}</div></div><div class="charts">{"".join(drawn)}</div></section>\n'
    )


def failure_of(entry):
    output = escape("\n".join(report.shown(entry)))
    return (
        f'<section><div class="head"><h2 class="bad">{escape(entry["name"])}: {escape(entry["status"])}</h2></div>'
        f'<p>{escape(entry["command"])}</p><div class="out">{output}</div></section>\n'
    )


def page(document):
    facts = "".join(
        f"<div><dt>{escape(what)}</dt><dd>{escape(value)}</dd></div>" for what, value in report.summary(document)
    )
    title = escape(report.title(document))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style()}</style></head>\n'
        f'<body><main><h1>{title}</h1><dl class="facts">{facts}</dl>\n'
        f'{"".join(map(failure_of, filter(is_failure, document["sections"])))}'
        f'{charts(document["figures"])}{"".join(map(table_of, report.tables(document)))}</main></body></html>'
    )
