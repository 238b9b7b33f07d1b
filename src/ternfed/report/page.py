"""One HTML page that needs nothing but itself: tables, figures, and every setting folded away.

What it looks like is said in `templates/`; here is only what it says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

import tomli_w

from ternfed.pages.shared import templates
from ternfed.paper.groups import Collected, Group
from ternfed.report.accuracy import accuracy_text, anchor
from ternfed.report.chapter import Chapter
from ternfed.report.extra import needed
from ternfed.report.labels import comparison_of, method_label, rounds_label
from ternfed.report.style import Picture
from ternfed.report.tables import Sheet

VERSIONS = {
    "system": "on", "python": "Python", "torch": "PyTorch", "numpy": "NumPy", "ternfed": "ternfed",
    "revision": "revision",
}  # fmt: skip


def page(
    collected: Collected,
    sheets: Iterable[Sheet],
    pictures: Iterable[Picture],
    chapters: Iterable[Chapter] = (),
    title: str = "ternfed",
    made: str = "",
    narrow: Mapping[str, Picture] | None = None,
) -> str:
    """The whole page. Everything that came out of a folder is escaped, because the templates escape all they get.

    `narrow` has the same pictures by name, drawn for a phone.
    """
    phone = narrow or {}
    groups = collected.groups
    runs = [(group, run) for group in groups for run in group.runs]
    sections: dict[str, list[Mapping[str, Any]]] = {}
    for picture in pictures:
        sections.setdefault(picture.section, []).append(figure_values(picture, phone.get(picture.name)))
    return (
        templates("report")
        .get_template("page.html")
        .render(
            title=title,
            made=made,
            counts={
                "runs": len(runs),
                "groups": len(groups),
                "rows": sum(group.row is not None for group in groups),
                "copies": collected.copies,
            },
            unfinished=[
                f"{group.name}, seed {run.seed}: {len(run.rounds)} of {run.wanted} rounds"
                for group, run in runs
                if not run.finished
            ],
            warned=[
                {"id": anchor(number), "name": group.name, "seeds": ", ".join(map(str, group.warnings))}
                for number, group in enumerate(groups)
                if group.warnings
            ],
            sheets=list(sheets),
            chapters=[
                {
                    "name": chapter.name,
                    "title": chapter.title,
                    "reading": chapter.reading,
                    "notes": chapter.notes,
                    "parts": [
                        {**vars(part), "figure": figure_values(part.picture, phone.get(part.picture.name))}
                        for part in chapter.parts
                    ],
                }
                for chapter in chapters
            ],
            sections=[{"id": _place(name), "title": name, "figures": inside} for name, inside in sections.items()],
            groups=[_group(number, group) for number, group in enumerate(groups)],
        )
    )


def inline(svg: str, name: str, label: str) -> str:
    """An SVG as part of a page: no prologue, no metadata, ids of its own, a name for who cannot see it."""
    text = svg[svg.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1)


def figure_values(picture: Picture, narrow: Picture | None = None) -> Mapping[str, Any]:
    """A picture as a template wants it, and the same drawn for a phone."""
    markup = needed("markupsafe").Markup
    sheets = [{"kind": "broad" if narrow else "", "curves": picture.curves, "svg": _svg(markup, picture, "")}]
    if narrow is not None:
        sheets.append({"kind": "narrow", "curves": narrow.curves, "svg": _svg(markup, narrow, "-narrow")})
    return {"name": picture.name, "title": picture.title, "caption": picture.caption, "sheets": sheets}


def _svg(markup: Any, picture: Picture, more: str) -> Any:
    return markup(inline(picture.svg, f"{picture.name}{more}", picture.title))


def _place(section: str) -> str:
    return "at-" + re.sub(r"\W+", "-", section.lower())


def _group(number: int, group: Group) -> Mapping[str, Any]:
    return {
        "id": anchor(number),
        "name": group.name,
        "title": f"{comparison_of(group).text()}: {method_label(group)}, {rounds_label(group)}",
        "command": command(group),
        "settings": toml(group),
        "facts": {
            group.measure.name: accuracy_text(group),
            **(
                {"warning": "; ".join(f"seed {n}: {text}" for n, text in group.warnings.items())}
                if group.warnings
                else {}
            ),
            "seeds": ", ".join(_seed(group, place) for place in range(len(group.runs))),
            "folders": ", ".join(f"{run.folder.parent.name}/{run.folder.name}".strip("/") for run in group.runs),
            "machine": "; ".join(dict.fromkeys(_machine(entry) for run in group.runs for entry in run.environment))
            or "–",
        },
    }


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
