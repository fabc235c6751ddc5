"""The report as a page that needs nothing beside it, in the style of kolo-perf's."""

import re
from html import escape

from gpu_checks import report
from gpu_checks.figures import is_failure
from gpu_checks.source import ROOT

MORE_STYLE = ".out { white-space: pre-wrap; font: 12px/1.4 monospace; color: var(--soft); } td.text { white-space: normal; }"


def style():
    return re.search(r'R"css\((.*)\)css"', (ROOT / "perf/html_style.h").read_text(), re.S)[1] + MORE_STYLE


def cell(tag, text, is_words):
    mark = {"NO": " bad", "yes": " good"}.get(text, "")
    return f'<{tag} class="{"text" if is_words else ""}{mark}">{escape(text)}</{tag}>'


def table_of(table):
    columns = table.columns()
    heads = "".join(cell("th", head, is_words) for head, is_words, _ in columns)
    rows = zip(*([cell("td", text, is_words) for text in cells] for _, is_words, cells in columns))
    body = "".join(f"<tr>{''.join(row)}</tr>\n" for row in rows)
    title = escape(table.title[:1].upper() + table.title[1:])
    return (
        f'<section><div class="head"><h2>{title}</h2></div><div class="scroll"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>\n{body}</tbody></table></div></section>\n"
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
        f'{"".join(map(table_of, report.tables(document)))}</main></body></html>'
    )
