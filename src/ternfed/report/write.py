"""The whole report: folders in, a page with its figures and tables out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from ternfed.experiment.settings import ExperimentError
from ternfed.paper.groups import Collected, collect
from ternfed.paper.rows import Row, find_rows
from ternfed.report import accuracy, choosing, costs, curves, diagnostics
from ternfed.report.chapter import Chapter
from ternfed.report.controls import controls
from ternfed.report.frontier import frontier
from ternfed.report.page import page
from ternfed.report.rivals import choice, headline, rivals
from ternfed.report.shakespeare import shakespeare
from ternfed.report.style import NARROW, Picture, drawing
from ternfed.report.tables import Sheet, into_page
from ternfed.report.targets import targets


@dataclass(frozen=True)
class Written:
    """What a report came to."""

    page: Path
    groups: int
    runs: int
    unfinished: int
    tables: tuple[str, ...]
    figures: tuple[str, ...]
    empty: tuple[str, ...]
    """`PAGE: TABLE` for each table that a page asked for and no run belongs to."""


def write_report(
    runs: Sequence[Path],
    out: Path,
    into: Sequence[Path] = (),
    rows: Mapping[str, Row] | None = None,
    made: str = "",
) -> Written:
    """Read run folders and write `out/index.html`, `out/tables.md` and `out/figures`; fill the tables of other pages.

    `made` stands on top of the page: when, and by which version. `rows` are the paper's; those under `experiments/`
    where none are given. ValueError with one sentence where a folder holds no run or a page names a table that there is
    not, before anything is written.
    """
    known = _known_rows() if rows is None else rows
    collected = collect(runs, known)
    sheets = all_sheets(collected)
    with drawing():
        pictures = list(all_pictures(collected))
        chapter = frontier(collected.groups)
    with drawing(NARROW):
        again = frontier(collected.groups)
        phone = {
            picture.name: picture for picture in chain(all_pictures(collected), () if again is None else again.pictures)
        }
    filled, empty = {}, []
    for path in into:
        filled[path], missing = into_page(_read_page(path), {**sheets, "frontier": chapter}, str(path))
        empty += [f"{path}: {name}" for name in missing]
    shown = [sheet for sheet in sheets.values() if sheet is not None]
    chapters = [] if chapter is None else [chapter]
    text = page(collected, shown, pictures, chapters, made=made, narrow=phone)
    try:
        _write(out, text, shown, pictures, chapters)
        for path, new in filled.items():
            path.write_text(new, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{error.filename or out}: cannot be written ({error.strerror}); name another") from error
    every = [run for group in collected.groups for run in group.runs]
    return Written(
        page=out / "index.html",
        groups=len(collected.groups),
        runs=len(every),
        unfinished=sum(not run.finished for run in every),
        tables=tuple(sheet.name for sheet in (*shown, *(sheet for each in chapters for sheet in each.sheets))),
        figures=tuple(
            picture.name for picture in (*pictures, *(drawn for each in chapters for drawn in each.pictures))
        ),
        empty=tuple(empty),
    )


def _write(
    out: Path, text: str, sheets: Sequence[Sheet], pictures: Sequence[Picture], chapters: Sequence[Chapter]
) -> None:
    figures = out / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    for picture in (*pictures, *(drawn for chapter in chapters for drawn in chapter.pictures)):
        (figures / f"{picture.name}.svg").write_text(picture.svg, encoding="utf-8")
        (figures / f"{picture.name}.png").write_bytes(picture.png)
    blocks = [(sheet.title, sheet.markdown()) for sheet in sheets]
    blocks += [(chapter.title, chapter.markdown("figures")) for chapter in chapters]
    whole = "\n\n".join(f"## {title}\n\n{content}" for title, content in blocks)
    (out / "tables.md").write_text(f"# Tables\n\n{whole}\n", encoding="utf-8")
    (out / "index.html").write_text(text, encoding="utf-8")


def all_sheets(collected: Collected) -> dict[str, Sheet | None]:
    """Every table there is, by name; None where no run belongs to it."""
    groups = collected.groups
    return {
        "summary": accuracy.summary(groups),
        "headline": headline(groups),
        "rivals": rivals(groups),
        "choice": choice(groups),
        "controls": controls(groups),
        "targets": targets(groups),
        "centralized": accuracy.centralized(groups),
        "communication": costs.communication(groups),
        "iid": accuracy.iid(groups),
        "non-iid": accuracy.non_iid(groups),
        "elapsed": costs.elapsed(collected.elapsed),
        "participation": accuracy.participation(groups),
        "balance": accuracy.balance(groups),
        "shakespeare": shakespeare(groups),
        "search": choosing.search(groups),
        "tuning": choosing.tuning(groups),
        "ablation": choosing.ablation(groups),
    }


def all_pictures(collected: Collected) -> Iterator[Picture]:
    """Every figure that the runs have something for, in the order of the page."""
    made = (
        curves.convergence, curves.losses, curves.participation, curves.balance, diagnostics.distributions,
        diagnostics.layers, diagnostics.changed, diagnostics.strategies, diagnostics.seconds,
    )  # fmt: skip
    seen: set[str] = set()
    for picture in sorted(chain.from_iterable(make(collected.groups) for make in made), key=_place):
        if picture.name in seen:  # two names that differ in signs no file name has
            picture = Picture(**{**vars(picture), "name": f"{picture.name}-{len(seen)}"})
        seen.add(picture.name)
        yield picture


def _place(picture: Picture) -> bool:
    """All convergence first, then the one with five classes per client, and so on as they come."""
    return picture.section != "Convergence"


def _known_rows() -> Mapping[str, Row]:
    try:
        return find_rows()
    except ExperimentError:
        return {}


def _read_page(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ValueError(f"{path}: cannot be read ({reason}); a Markdown page is needed") from error
