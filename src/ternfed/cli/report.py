"""The verb for finished runs: `report`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ternfed.cli import terminal
from ternfed.cli.options import Json
from ternfed.cli.terminal import answered


def add_to(app: typer.Typer, panel: str) -> None:
    """Add the verb to a command line."""
    app.command(rich_help_panel=panel)(report)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that contain some at any depth.")],
    out: Annotated[Path, typer.Option(help="Where the page, its figures and tables go.")] = Path("report"),
    into: Annotated[
        list[Path] | None, typer.Option(help="A Markdown page whose marked tables are made new; may be repeated.")
    ] = None,
    as_json: Json = False,
) -> None:
    """One page about runs: tables with the paper's numbers beside ours, figures, settings."""
    from ternfed.report.write import write_report
    from ternfed.runs.environment import made_line

    with answered():
        with terminal.err.status("reading and drawing"):
            written = write_report(runs, out, into or [], made=made_line())
        if as_json:
            terminal.print_json({**asdict(written), "page": str(written.page)})
            return
        unfinished = f" ({written.unfinished} unfinished)" if written.unfinished else ""
        terminal.out.print(
            f"{written.page}: runs {written.runs}{unfinished}, groups {written.groups}, tables {len(written.tables)}, "
            f"figures {len(written.figures)}",
            highlight=False, soft_wrap=True, markup=False,
        )  # fmt: skip
        for line in written.empty:
            terminal.out.print(f"{line}: no run belongs to this table", highlight=False, soft_wrap=True, markup=False)
