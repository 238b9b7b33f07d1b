"""The verb `sweep`: a grid of settings and seeds, some at a time, and the best by validation."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ternfed.cli import terminal
from ternfed.cli.options import Allow, DataDir, Device, Json, Settings, check_device
from ternfed.cli.terminal import answered
from ternfed.cli.trials import Board, run_trials

if TYPE_CHECKING:
    from ternfed.sweep.grid import Sweep
    from ternfed.sweep.standing import Standing
    from ternfed.sweep.trial import DataSets, Trial

SHOWN = 20
"""Points in the live table: the best so far."""


def add_to(app: typer.Typer, panel: str) -> None:
    """Add the verb to a command line."""
    app.command(rich_help_panel=panel)(sweep)


def sweep(
    file: Annotated[Path, typer.Argument(help="An experiment as TOML with a table [sweep].")],
    out: Annotated[Path | None, typer.Option(help="Where the trials go: OUT/POINT/seed-K; else sweeps/FILE.")] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="So many trials side by side: on the CPU, or on a GPU where MPS runs.")
    ] = 1,
    seeds: Annotated[int | None, typer.Option(min=1, help="So many seeds per point; else as the file says.")] = None,
    settings: Settings = None,
    allow: Allow = None,
    device: Device = "cpu",
    data: DataDir = None,
    listing: Annotated[bool, typer.Option("--list", help="Show how far each point is; run nothing.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, say what would run; run nothing.")
    ] = False,
    keep_models: Annotated[
        bool, typer.Option("--keep-models", help="Leave the models in the finished folders.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Try a grid of settings, judged on held-out data; finished trials are not computed again."""
    with answered(interrupted="the same command resumes where it stopped"):
        from ternfed.sweep.grid import read_sweep
        from ternfed.sweep.standing import as_table, standing_of, write
        from ternfed.sweep.trial import DataSets

        place = out or Path("sweeps") / file.stem
        grid = read_sweep(file, place, settings or (), seeds=seeds, device=device, allow=allow or ())
        failed: dict[str, str] = {}
        if not listing:
            sets = DataSets(data)
            left = _left(grid, device, sets)
            if dry_run:
                _say_what_is_left(grid, left, place, as_json)
                return
            failed = _run(grid, left, place, jobs, sets, keep_models, quiet=as_json)
        standings = standing_of(grid)
        if not listing:
            write(place, grid, standings, failed)
    repeated = (("--allow", allow or ()), ("--set", settings or ()))
    again = [part for option, values in repeated for value in values for part in (option, value)]
    if as_json:
        terminal.print_json({**as_table(grid, standings, failed), "run": _command(grid, standings, file, again)})
    else:
        _show(grid, standings, place, file, again)
    for name, sentence in failed.items():
        terminal.fail(f"{name}: {sentence}")
    if failed:
        raise typer.Exit(1)


def _left(grid: Sweep, device: str, data: DataSets) -> list[Trial]:
    """The trials that are to be run, looked at before the first of them starts: everything that can be wrong is now."""
    from ternfed.round.federation import open_federation

    left = [trial for trial in grid.trials if trial.standing() != "finished"]
    if left:
        check_device(device)
    for point in grid.points:
        if any(trial in left for trial in point.trials):
            experiment = point.trials[0].experiment()
            open_federation(experiment, data.get(experiment))
    return left


def _run(
    grid: Sweep, left: Sequence[Trial], place: Path, jobs: int, data: DataSets, keep: bool, quiet: bool
) -> dict[str, str]:
    """The trials that are left, with a live table of all points above their progress; what stopped some of them."""
    from ternfed.sweep.standing import standing_of, write

    now = [standing_of(grid)]

    def look(trial: Trial) -> None:
        now[0] = standing_of(grid)
        write(place, grid, now[0], {})

    total = len(grid.trials)
    with Board.shown(quiet, "trials", total, total - len(left), lambda: _table(grid, now[0], SHOWN)) as board:
        return run_trials(left, jobs, data, board, look, keep=keep)


def _say_what_is_left(grid: Sweep, left: Sequence[Trial], place: Path, as_json: bool) -> None:
    if as_json:
        facts = {"points": len(grid.points), "trials": len(grid.trials), "left": [trial.name for trial in left]}
        terminal.print_json(facts)
        return
    for trial in left:
        terminal.out.print(trial.name, highlight=False, markup=False)
    terminal.out.print(
        f"{len(grid.points)} points, {len(grid.trials)} trials, of which {len(left)} would run into {place}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _show(grid: Sweep, standings: Sequence[Standing], place: Path, file: Path, again: Sequence[str]) -> None:
    """All points, and what to do with the best."""
    from ternfed.sweep.standing import best

    terminal.print_wide(_table(grid, standings))
    first = best(standings)
    said = [f"The trials are in {place}; `ternfed report {place} --out DIR` makes a page of them"]
    if first is not None:
        others = "" if all(each.whole for each in standings) else " of those that are finished"
        said.append(f"Best on validation data{others}: {first.point.name}. With the data that were held out:")
        said.append(f"  {_command(grid, standings, file, again)}")
    for line in said:
        terminal.out.print(line, highlight=False, markup=False, soft_wrap=True)


def _command(grid: Sweep, standings: Sequence[Standing], file: Path, again: Sequence[str]) -> str | None:
    """The command that runs the best point with as many samples as such an experiment usually has."""
    from ternfed.sweep.grid import as_settings
    from ternfed.sweep.standing import best

    first = best(standings)
    if first is None:
        return None
    values: dict[str, Any] = {**first.point.values, "data.hold_out": grid.hold_out}
    own = [part for setting in as_settings(values) for part in ("--set", setting)]
    return shlex.join(["ternfed", "run", str(file), *again, *own])


def _table(grid: Sweep, standings: Sequence[Standing], most: int | None = None) -> Table:
    """Points by their score, the best first; those without one in the order of the grid."""
    from ternfed.sweep.standing import best

    first, measure = best(standings), standings[0].measure
    ordered = sorted(
        standings, key=lambda each: -each.measure.goodness(float("nan") if each.mean is None else each.mean)
    )
    table = Table("", *grid.keys)
    for heading in ("seeds", f"validation {measure.heading}", "uploaded"):
        table.add_column(heading, justify="right")
    for each in ordered[:most]:
        values = (terminal.plain(_text(value)) for value in each.point.values.values())
        sent = "–" if each.bytes_up is None else terminal.size(each.bytes_up)
        table.add_row("best" if each is first else "", *values, _seeds(each), _score(each), sent)
    if most is not None and len(ordered) > most:
        table.add_row("…", *("" for _ in grid.keys), f"{len(ordered) - most} more", "", "")
    return table


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


def _seeds(standing: Standing) -> str:
    begun = f", {standing.begun} begun" if standing.begun else ""
    other = f", {standing.other} of other settings" if standing.other else ""
    return f"{standing.done}/{len(standing.point.trials)}{begun}{other}"


def _score(standing: Standing) -> str:
    if standing.mean is None:
        return "–"
    mean, digits = standing.measure.scaled(standing.mean), ".2f" if standing.measure.percent else ".4g"
    spread = "" if standing.std is None else f" ± {standing.measure.scaled(standing.std):{digits}}"
    return f"{mean:{digits}}{spread}"
