"""Runs side by side: one table of what differs and what came out, and the same as a page with curves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ternfed.files import write_atomically
from ternfed.pages.shared import templates
from ternfed.report.comparison import comparison_figure
from ternfed.report.page import figure_values
from ternfed.report.style import NARROW, WIDTH, drawing, finish
from ternfed.report.tables import NONE, Sheet
from ternfed.runs.environment import made_line
from ternfed.runs.overview import Overview, apart

MEGABYTES = "megabytes"
DATA = "data.dataset"


def comparison(runs: Sequence[Overview]) -> Sheet:
    """One column per run; the settings that differ, then what came out. In brackets: compared with the first run."""
    rows = [(key, *(run.setting(key) for run in runs)) for key in apart(runs)]
    data = [run.data for run in runs]
    if len(set(data)) > 1 and data != [run.setting(DATA) for run in runs]:
        rows.insert(next((at + 1 for at, row in enumerate(rows) if row[0] == DATA), 0), ("data set's own name", *data))
    rows += _results(runs)
    notes = [f"{run.name}: {text}" for run in runs for text in run.warnings]
    return Sheet("compare", "Runs side by side", ("", *(run.name for run in runs)), tuple(rows), notes=tuple(notes))


def _results(runs: Sequence[Overview]) -> Iterator[tuple[str, ...]]:
    def row(name: str, text: Callable[[Overview], str]) -> tuple[str, ...]:
        return (name, *map(text, runs))

    names = list(dict.fromkeys(run.measure.name for run in runs))
    yield row("state", lambda run: run.standing)
    yield row(f"test {' or '.join(names)}, last round", lambda run: _score(run, run.last))
    if any(run.best is not None for run in runs):
        yield row("the same, best round by validation", _best)
    yield row("test loss, last round", lambda run: NONE if run.loss is None else f"{run.loss:.4g}")
    for way in ("up", "down"):
        sent = [getattr(run, f"bytes_{way}") for run in runs]
        cells = [_megabytes(count, sent[0]) for count in sent]
        yield (f"{MEGABYTES} {way}", *cells)
    if any(record.changed is not None for run in runs for record in run.rounds):
        yield row("trits that flipped, mean", _flips)
    yield row("seconds", lambda run: f"{run.seconds:,.1f}")


def _best(run: Overview) -> str:
    best = run.best
    return NONE if best is None else f"{_score(run, best.score)} (round {best.round})"


def _score(run: Overview, score: float | None) -> str:
    if score is None:
        return NONE
    return f"{100 * score:.2f}%" if run.measure.percent else f"{score:.4g}"


def _megabytes(count: int, first: int) -> str:
    text = f"{count / 1e6:,.3f}"
    if not count or not first or count == first:
        return text
    return f"{text} (1/{first / count:.1f})" if count < first else f"{text} ({count / first:.1f} times)"


def _flips(run: Overview) -> str:
    shares = [record.changed for record in run.rounds if record.changed is not None]
    return NONE if not shares else f"{100 * sum(shares) / len(shares):.3g}%"


def write_comparison(runs: Sequence[Overview], file: Path) -> Path:
    """The table as a page of its own, with the runs' curves: one file that needs nothing else."""
    started = {run.name: run.rounds for run in runs if run.rounds}
    figures = []
    if started:
        pictures = []
        for width in (WIDTH, NARROW):
            with drawing(width):
                figure = comparison_figure(started)
                pictures.append(finish(figure, "compare", "", "Runs side by side", "Curves of the runs."))
        figures.append(figure_values(*pictures))
    text = (
        templates("report")
        .get_template("compare.html")
        .render(sheet=comparison(runs), figures=figures, made=made_line())
    )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, text.encode())
    except OSError as error:
        raise ValueError(f"{file}: cannot be written ({error.strerror}); name another") from error
    return file
