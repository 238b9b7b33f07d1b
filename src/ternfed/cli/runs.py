"""The verbs for runs that are there: `ls` and `compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ternfed.cli import terminal
from ternfed.cli.options import Json
from ternfed.cli.terminal import answered

if TYPE_CHECKING:
    from ternfed.runs.overview import Overview


def add_to(app: typer.Typer, panel: str) -> None:
    """Add the verbs to a command line."""
    app.command("ls", rich_help_panel=panel)(listed)
    app.command(rich_help_panel=panel)(compare)


def listed(
    folders: Annotated[list[Path] | None, typer.Argument(help="Folders that contain runs; by default runs/.")] = None,
    as_json: Json = False,
) -> None:
    """List the runs of a folder: where each stands, how good it is, what it sent."""
    with answered():
        from ternfed.runs.overview import overviews

        runs = overviews(folders or [Path("runs")])
        if as_json:
            terminal.print_json({"runs": [_values(run) for run in runs]})
            return
        headings = ("run", "state", "algorithm", "data", "metric", "last", "best", "up", "down", "seconds")
        table = Table(*headings[:5], box=None, pad_edge=False)
        for heading in headings[5:]:
            table.add_column(heading, justify="right")
        for run in runs:
            table.add_row(*map(terminal.plain, _row(run)))
        terminal.print_wide(table)


def _row(run: Overview) -> tuple[str, ...]:
    best = run.best
    return (
        run.name,
        run.standing + (" (!)" if run.warnings else ""),
        run.setting("algorithm.name"),
        run.data,
        run.measure.name,
        _score(run, run.last),
        "–" if best is None else _score(run, best.score),
        terminal.size(run.bytes_up),
        terminal.size(run.bytes_down),
        f"{run.seconds:.1f}",
    )


def _score(run: Overview, score: float | None) -> str:
    return "–" if score is None else run.measure.text(score).removeprefix(run.measure.name).strip()


def _values(run: Overview) -> dict[str, Any]:
    best = run.best
    return {
        "run": str(run.folder),
        "data": run.data,
        "state": run.state,
        "rounds": len(run.rounds),
        "rounds_wanted": run.wanted,
        "metric": run.measure.name,
        "last": run.last,
        "best": None if best is None else best.score,
        "best_round": None if best is None else best.round,
        "loss": run.loss,
        "bytes_up": run.bytes_up,
        "bytes_down": run.bytes_down,
        "seconds": run.seconds,
        "warnings": list(run.warnings),
        "settings": run.settings,
    }


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Two or more run folders, or folders that contain some.")],
    out: Annotated[Path | None, typer.Option(help="Write the same as a page: NAME.html.", metavar="FILE")] = None,
    as_json: Json = False,
) -> None:
    """Runs side by side: the settings that differ, the metric, bytes and seconds."""
    with answered():
        from ternfed.runs.overview import apart, overviews

        found = overviews(runs)
        if len(found) < 2:
            raise ValueError(f"{runs[0]}: holds one run; name at least two to compare")
        from ternfed.report.compare import comparison, write_comparison

        page = None if out is None else write_comparison(found, out)
        if as_json:
            values = {"differing": apart(found), "runs": [_values(run) for run in found]}
            terminal.print_json({**values, "page": None if page is None else str(page)})
            return
        sheet = comparison(found)
        table = Table(*map(terminal.plain, sheet.headings))
        for row in sheet.rows:
            table.add_row(*map(terminal.plain, row))
        terminal.print_wide(table)
        for note in sheet.notes:
            terminal.warn(note)
        if page is not None:
            terminal.out.print(f"The page is {terminal.plain(page)}", highlight=False, soft_wrap=True)
