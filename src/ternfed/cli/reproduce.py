"""The verb `reproduce`: rows of the paper's tables run, resumed, and listed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ternfed.cli import terminal
from ternfed.cli.completion import one_of
from ternfed.cli.completion import rows as row_names
from ternfed.cli.options import Allow, DataDir, Json
from ternfed.cli.terminal import answered
from ternfed.cli.trials import Board, run_trials

if TYPE_CHECKING:
    from ternfed.paper.reproduce import Cell, Tally
    from ternfed.sweep.trial import DataSets

RESULTS = Path("results")


def add_to(app: typer.Typer, panel: str) -> None:
    """Add the verb to a command line."""
    app.command(rich_help_panel=panel)(reproduce)


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Rows, patterns (mnist-*), tables or figures (iid), or all; NAME/seed-2 is one seed.",
            autocompletion=one_of(row_names),
        ),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="Show the rows and how far they are; run nothing.")] = False,
    out: Annotated[Path, typer.Option(help="Where the runs go: OUT/NAME/seed-K.")] = RESULTS,
    rows: Annotated[Path | None, typer.Option(help="A folder with rows of your own, one TOML file each.")] = None,
    allow: Allow = None,
    data: DataDir = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:K; else each row's own.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="So many seeds; else as many as each row says.")] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="So many runs side by side: on the CPU, or on a GPU where MPS runs.")
    ] = 1,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value in place of the rows' own; needs an --out of its own.")
    ] = None,
    keep_models: Annotated[
        bool, typer.Option("--keep-models", help="Leave the models in the finished folders.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Measure elapsed times again that are there.")] = False,
    as_json: Json = False,
) -> None:
    """Run rows of the paper's tables, our numbers beside its own; finished cells are not computed again."""
    with answered(interrupted="the same command resumes where it stopped"):
        from ternfed.paper import reproduce as library
        from ternfed.paper.rows import PLACES, choose_rows, find_rows

        known = find_rows(PLACES if rows is None else (rows,), allow or ())
        if not names and not listing:
            raise ValueError("name a row, a pattern, a table or figure, or all; --list shows them")
        asked, given = names or ["all"], tuple(settings or ())
        chosen = choose_rows(known, [library.row_and_seed(name)[0] for name in asked])
        if given and out.resolve() == RESULTS.resolve():
            raise ValueError(
                "--set: rows with other settings would be taken for the rows; name another folder by --out"
            )
        failed: dict[str, str] = {}
        if not listing:
            cells, sets = library.choose_cells(known, asked, out, seeds, given), library.DataSets(data)
            left = list(_left(cells, device, again, sets))
            failed = _run(left, len(cells), jobs, sets, device, keep_models, quiet=as_json)
        tallies = [library.tally(row, out, seeds, given) for row in chosen]
    if as_json:
        facts = {"rows": [_plain(each) for each in tallies]}
        terminal.print_json(facts if listing else {**facts, "failed": failed})
    else:
        terminal.print_wide(_list_table(tallies) if listing else _result_table(tallies))
        if not listing:
            terminal.out.print(
                f"The runs are in {out}; `ternfed report {out} --out DIR` makes the page",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
    for name, sentence in failed.items():
        terminal.fail(f"{name}: {sentence}")
    if failed:
        raise typer.Exit(1)


def _left(cells: Sequence[Cell], device: str | None, again: bool, data: DataSets) -> Iterator[Cell]:
    """The cells that are to be run, looked at before the first of them starts: everything that can be wrong is now."""
    from ternfed.paper.reproduce import check_device

    for cell in cells:
        measured_again = again and cell.row.about.kind == "elapsed"
        if measured_again or cell.standing() != "finished":
            check_device(cell.row, device or cell.row.about.device)
            data.get(cell.experiment())
            yield cell


def _run(
    cells: Sequence[Cell], total: int, jobs: int, data: DataSets, device: str | None, keep: bool, quiet: bool
) -> dict[str, str]:
    """The cells that are left: runs first, then measurements of time; what stopped those that failed."""
    from ternfed.paper.reproduce import measure_cell

    runs = [cell.trial(device) for cell in cells if cell.row.about.kind == "run"]
    with Board.shown(quiet, "cells", total, total - len(cells)) as board:
        failed = run_trials(runs, jobs, data, board, keep=keep)
        for cell in cells:
            if cell.row.about.kind == "elapsed":
                board.begin(cell.name, None)
                try:
                    measure_cell(cell.row, cell.results, data, device, settings=cell.settings, again=True)
                except (ValueError, OSError, RuntimeError) as error:  # the others may still succeed
                    failed[cell.name] = str(error) or type(error).__name__
                board.end(cell.name)
    return failed


def _plain(tally: Tally) -> dict[str, Any]:
    about, own, paper = tally.row.about, tally.row.experiment(), tally.row.paper
    return {
        "name": tally.row.name,
        "title": about.title,
        "shows": list(about.shows),
        "kind": about.kind,
        "device": about.device,
        "seeds_wanted": tally.wanted,
        "seeds_done": tally.done,
        "seeds_begun": tally.begun,
        "seeds_with_other_settings": tally.other,
        "rounds": own.federation.rounds,
        "epochs": own.training.epochs,
        "minutes": about.minutes,
        "machine": about.machine,
        "paper": None if paper is None else paper.mean,
        "paper_std": None if paper is None else paper.std,
        "accuracy": tally.mean,
        "accuracy_std": tally.std,
        "accuracies": list(tally.accuracies),
        "paper_seconds": list(tally.row.paper_seconds.values()) or None,
        "seconds": tally.seconds,
    }


def _list_table(tallies: Sequence[Tally]) -> Table:
    table = Table("row", "shows", "title")
    for heading in ("seeds", "rounds × epochs", "minutes per seed", "paper (%)", "ours (%)"):
        table.add_column(heading, justify="right")
    table.columns[0].no_wrap = True
    table.columns[2].min_width = 24
    for tally in tallies:
        about, own = tally.row.about, tally.row.experiment()
        rounds = f"{own.federation.rounds} × " if about.kind == "run" else ""
        where = " (GPU)" if about.device == "cuda" else ""
        table.add_row(
            tally.row.name,
            ", ".join(about.shows),
            about.title,
            _seeds(tally),
            f"{rounds}{own.training.epochs}",
            f"{about.minutes:g}{where}",
            _paper(tally),
            _ours(tally),
        )
    return table


def _result_table(tallies: Sequence[Tally]) -> Table:
    rows = [(tally.row.name, _paper(tally), _ours(tally), _seeds(tally)) for tally in tallies]
    return terminal.rows_table(("row", "paper (%)", "ours (%)", "seeds"), rows)


def _seeds(tally: Tally) -> str:
    begun = f", {tally.begun} begun" if tally.begun else ""
    other = f", {tally.other} of other settings" if tally.other else ""
    return f"{tally.done}/{tally.wanted}{begun}{other}"


def _paper(tally: Tally) -> str:
    if seconds := tally.row.paper_seconds:
        return _seconds(seconds.values())
    paper = tally.row.paper
    return _spread(None, None) if paper is None else _spread(*paper)


def _ours(tally: Tally) -> str:
    return _spread(tally.mean, tally.std) if tally.seconds is None else _seconds(tally.seconds.values())


def _spread(mean: float | None, std: float | None) -> str:
    if mean is None:
        return "–"
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def _seconds(values: Iterable[float]) -> str:
    """FedAvg, CMFL, T-FedAvg."""
    return " / ".join(f"{value:.3g}" for value in values) + " s"
