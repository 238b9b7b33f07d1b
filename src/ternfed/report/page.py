"""One HTML page that needs nothing but itself: tables, figures, and every setting folded away."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from ternfed.report.accuracy import accuracy_text, anchor
from ternfed.report.collect import Collected, Group
from ternfed.report.labels import algorithm_label, comparison_of, rounds_label
from ternfed.report.style import Picture
from ternfed.report.tables import Sheet

STYLE = """
:root { color-scheme: light; --ink: #202124; --soft: #5f6368; --line: #dadce0; --pale: #f6f7f8; --link: #0b57a4; }
* { box-sizing: border-box; }
html { scroll-padding-top: 1rem; }
body { margin: 0 auto; max-width: 1240px; padding: 1.6rem 1.5rem 4rem; background: #fff; color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.75rem; margin: 0 0 .3rem; letter-spacing: -.01em; }
h2 { font-size: 1.3rem; margin: 3rem 0 .8rem; padding-top: .9rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.02rem; margin: 2rem 0 .5rem; }
p { margin: .5rem 0; max-width: 78ch; }
a { color: var(--link); text-decoration: none; }
a:hover { text-decoration: underline; }
code, pre { font: 12.5px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
pre { background: var(--pale); padding: .7rem .9rem; overflow-x: auto; margin: .5rem 0; }
.soft, .note, figcaption { color: var(--soft); }
.note, figcaption { font-size: .84rem; max-width: 110ch; }
nav ul { columns: 3 17rem; list-style: none; margin: 1.2rem 0 0; padding: .8rem 1rem; background: var(--pale); }
nav li { break-inside: avoid; padding: .1rem 0; }
nav li.sub { padding-left: 1.1rem; font-size: .92em; }
.wide { overflow-x: auto; margin: .6rem 0; }
table { border-collapse: collapse; font-size: 12.5px; line-height: 1.35; font-variant-numeric: tabular-nums; }
th, td { padding: .32rem .55rem; text-align: left; vertical-align: baseline; border-bottom: 1px solid var(--line); }
th { vertical-align: bottom; font-weight: 600; color: var(--soft); border-bottom: 1.5px solid var(--soft); }
td { white-space: nowrap; }
th.n, td.n { text-align: right; }
tbody tr:hover { background: var(--pale); }
tr.quiet td { color: var(--soft); }
#table-summary { font-size: 11.5px; }
#table-summary th, #table-summary td { padding: .3rem .38rem; }
#table-summary td:nth-child(2), #table-summary td:nth-child(4), #table-summary td:nth-child(5),
#table-targets td:nth-child(-n+2), #table-ablation td:nth-child(-n+2), #table-search td:nth-child(3)
{ white-space: normal; }
figure { margin: 1.2rem 0 2rem; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { margin-top: .3rem; }
details { border-bottom: 1px solid var(--line); padding: .35rem 0; }
summary { cursor: pointer; }
div:target > details > summary { background: #fff4cc; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .6rem 0; font-size: .9rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
footer { margin-top: 3rem; font-size: .84rem; color: var(--soft); }
@page { size: A4 landscape; margin: 12mm; }
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  h2 { margin-top: 1.4rem; padding-top: .5rem; }
  .note, figcaption { font-size: 8pt; max-width: none; }
  nav { display: none; }
  .wide { overflow: visible; }
  table { font-size: 7.5pt; } #table-summary { font-size: 6.8pt; }
  th, td { padding: .15rem .3rem; }
  thead { display: table-header-group; }
  tr, figure, details { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  a { color: inherit; }
}
"""


def page(collected: Collected, sheets: Iterable[Sheet], pictures: Iterable[Picture], title: str = "ternfed") -> str:
    """The whole page. Everything that came out of a folder is escaped."""
    groups = collected.groups
    tables = [(sheet.name, sheet.title, _table(sheet)) for sheet in sheets]
    sections: dict[str, list[Picture]] = {}
    for picture in pictures:
        sections.setdefault(picture.section, []).append(picture)
    parts = [*(text for _, _, text in tables), *(_figures(name, inside) for name, inside in sections.items())]
    contents = [_entry(f"at-{name}", heading) for name, heading, _ in tables]
    for name, inside in sections.items():
        contents.append(_entry(_place(name), name))
        if len(inside) > 1:
            contents += [_entry(f"figure-{picture.name}", picture.title, "sub") for picture in inside]
    contents.append(_entry("runs", "Settings, commands, machines"))
    runs = "\n".join(_group(number, group) for number, group in enumerate(groups))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(title)}: report</title>\n<style>{STYLE}</style>\n</head>\n'
        f"<body>\n<header><h1>{escape(title)}: report</h1>\n{_opening(collected)}</header>\n"
        f'<nav aria-label="Contents"><ul>\n{"".join(contents)}</ul></nav>\n<main>\n{"".join(parts)}'
        f'<section><h2 id="runs">Settings, commands, machines</h2>\n'
        f"<p>Groups of runs that differ in their seed alone. A group opens to its exact settings.</p>\n{runs}"
        f"</section>\n</main>\n<footer>Made by <code>ternfed report</code> from run folders alone. The figures lie "
        f"beside this page as PNG and SVG under <code>figures/</code>, the tables as Markdown in "
        f"<code>tables.md</code>.</footer>\n"
        f"</body>\n</html>\n"
    )


def inline(svg: str, name: str, label: str) -> str:
    """An SVG as part of a page: no prologue, no metadata, ids of its own, a name for who cannot see it."""
    text = svg[svg.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1)


def _opening(collected: Collected) -> str:
    groups = collected.groups
    runs = [run for group in groups for run in group.runs]
    rows = sum(group.row is not None for group in groups)
    paper = f" {rows} of the groups are rows of the paper's tables." if rows else ""
    copies = (
        f" {collected.copies} folders hold a run that another holds too, and count once." if collected.copies else ""
    )
    counts = f"{len(runs)} run{'s' * (len(runs) != 1)} in {len(groups)} group{'s' * (len(groups) != 1)}"
    text = f"<p class=soft>{counts} of the same settings.{paper}{copies}</p>\n"
    waiting = [
        f"{escape(group.name)}, seed {run.seed}: {len(run.rounds)} of {run.wanted} rounds"
        for group in groups
        for run in group.runs
        if not run.finished
    ]
    return text + (f"<p><strong>Unfinished:</strong> {'; '.join(waiting)}.</p>\n" if waiting else "")


def _entry(target: str, text: str, kind: str = "") -> str:
    return f'<li{f" class={kind}" if kind else ""}><a href="#{escape(target)}">{escape(text)}</a></li>\n'


def _table(sheet: Sheet) -> str:
    return f'<section><h2 id="at-{escape(sheet.name)}">{escape(sheet.title)}</h2>\n{sheet.html()}</section>\n'


def _place(section: str) -> str:
    return "at-" + re.sub(r"\W+", "-", section.lower())


def _figures(section: str, pictures: Sequence[Picture]) -> str:
    return f'<section><h2 id="{_place(section)}">{escape(section)}</h2>\n{"".join(map(_figure, pictures))}</section>\n'


def _figure(picture: Picture) -> str:
    files = ", ".join(f'<a href="figures/{picture.name}.{kind}">{kind.upper()}</a>' for kind in ("png", "svg"))
    return (
        f'<figure id="figure-{picture.name}">{inline(picture.svg, picture.name, picture.title)}'
        f"<figcaption>{escape(picture.caption)} {files}</figcaption></figure>\n"
    )


def _group(number: int, group: Group) -> str:
    cell = comparison_of(group)
    facts = {
        group.measure.name: accuracy_text(group),
        "seeds": ", ".join(_seed(group, place) for place in range(len(group.runs))),
        "folders": ", ".join(f"{run.folder.parent.name}/{run.folder.name}".strip("/") for run in group.runs),
        "machine": "; ".join(dict.fromkeys(_machine(entry) for run in group.runs for entry in run.environment)) or "–",
    }
    listed = "".join(f"<dt>{key}</dt><dd>{escape(value)}</dd>" for key, value in facts.items())
    head = f"{cell.text()}: {algorithm_label(group)}, {rounds_label(group)}"
    return (
        f'<div id="{anchor(number)}"><details><summary>{escape(head)} <span class=soft>{escape(group.name)}</span>'
        f"</summary>\n<p>Again: <code>{escape(command(group))}</code></p>\n<dl>{listed}</dl>\n"
        f"<pre>{escape(toml(group))}</pre></details></div>\n"
    )


def command(group: Group) -> str:
    """What repeats a group's runs."""
    if group.row is not None:
        return f"ternfed reproduce {group.name}"
    first, count = group.runs[0].seed, group.runs[-1].seed - group.runs[0].seed + 1
    seeds = (f" --seed {first}" if first else "") + (f" --seeds {count}" if count > 1 else "")
    devices = {str(entry.get("device", "cpu")) for run in group.runs for entry in run.environment}
    return f"ternfed run config.toml{seeds}" + (" --device cuda" if devices - {"cpu"} else "")


def toml(group: Group) -> str:
    """A group's settings as the file that `ternfed run` takes; the seed comes with the command."""
    import tomli_w

    return tomli_w.dumps({"name": group.name, **group.settings})


def _seed(group: Group, place: int) -> str:
    run = group.runs[place]
    return str(run.seed) if run.finished else f"{run.seed} ({len(run.rounds)} of {run.wanted} rounds, unfinished)"


def _machine(entry: dict[str, Any]) -> str:
    """One environment in a line."""
    device = entry.get("device")
    parts = [
        "" if device in (None, "cpu") else str(device),
        str(entry.get("processor") or ""),
        f"{entry['cores']} cores, {entry.get('threads')} threads" if entry.get("cores") else "",
        *(f"{name} {entry[key]}" for key, name in VERSIONS.items() if entry.get(key)),
    ]
    return " · ".join(part for part in parts if part)


VERSIONS = {
    "system": "on", "python": "Python", "torch": "PyTorch", "numpy": "NumPy", "ternfed": "ternfed",
    "revision": "revision",
}  # fmt: skip
