"""Many experiments as they run: a bar for all, one for each that is running, and what may stand above them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ternfed.cli import terminal

if TYPE_CHECKING:
    from ternfed.experiment.settings import Table
    from ternfed.runs.records import Round
    from ternfed.sweep.trial import DataSets, Trial


def run_trials(
    trials: Sequence[Trial],
    jobs: int,
    data: DataSets,
    board: Board,
    ended: Callable[[Trial], None] = lambda trial: None,
    *,
    keep: bool = False,
) -> dict[str, str]:
    """Run them, so many at a time, with their progress on a board; by name, what stopped those that failed.

    `ended` hears of each when it is over.
    """
    failed = {}
    # Closed at once when the user interrupts, and the jobs with it.
    with closing(_outcomes(trials, jobs, data, board, keep)) as outcomes:
        for trial, outcome in outcomes:
            if isinstance(outcome, Exception):
                failed[trial.name] = str(outcome) or type(outcome).__name__
            ended(trial)
            board.end(trial.name)
    return failed


def _outcomes(
    trials: Sequence[Trial], jobs: int, data: DataSets, board: Board, keep: bool
) -> Generator[tuple[Trial, Table | Exception]]:
    """Those that may share what they compute on side by side, then those that want a GPU to themselves."""
    from ternfed.sweep.side_by_side import may_share, run_side_by_side
    from ternfed.sweep.trial import run_trial

    many = [trial for trial in trials if jobs > 1 and may_share(trial.device)]
    if many:
        yield from run_side_by_side(many, jobs, data.folder, board.tell, keep=keep)
    for trial in trials:
        if trial not in many:
            board.begin(trial.name, trial.experiment().federation.rounds)
            try:
                yield trial, run_trial(trial, data, board.teller(trial), keep=keep)
            except (ValueError, OSError, RuntimeError) as error:  # the others may still succeed
                yield trial, error


class _Bars(Progress):
    above: Callable[[], RenderableType] | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        if self.above is not None:
            yield self.above()
        yield from super().get_renderables()


@dataclass
class _Running:
    task: TaskID
    up: int = 0
    down: int = 0
    reached: str = ""
    """The score after the last round."""


class Board:
    """Progress on standard error: one line of all that ended stays, so that a log shows when each was done."""

    def __init__(self, progress: Progress, whole: TaskID) -> None:
        self._progress, self._whole = progress, whole
        self._running: dict[str, _Running] = {}

    @staticmethod
    @contextmanager
    def shown(
        quiet: bool, what: str, total: int, done: int, above: Callable[[], RenderableType] | None = None
    ) -> Iterator[Board]:
        """A board while the block lasts: so many in total, of which some are done; in a terminal, `above` is on top."""
        columns = (
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(),
        )
        with _Bars(*columns, console=terminal.err, disable=quiet) as progress:
            progress.above = above if terminal.err.is_terminal else None
            yield Board(progress, progress.add_task(what, total=total, completed=done, facts=""))

    def begin(self, name: str, rounds: int | None) -> _Running:
        if name not in self._running:
            self._running[name] = _Running(self._progress.add_task(name, total=rounds, facts="starting"))
        return self._running[name]

    def tell(self, trial: Trial, outcome: Round) -> None:
        bar = self._running.get(trial.name) or self.begin(trial.name, trial.experiment().federation.rounds)
        bar.up, bar.down = bar.up + outcome.bytes_up, bar.down + outcome.bytes_down
        bar.reached = outcome.measure.text(trial.result(outcome))
        facts = terminal.round_facts(outcome, trial.result(outcome), bar.up, bar.down)
        self._progress.update(bar.task, completed=outcome.round, facts=facts)

    def teller(self, trial: Trial) -> Callable[[Round], None]:
        return lambda outcome: self.tell(trial, outcome)

    def end(self, name: str) -> None:
        bar = self.begin(name, None)
        if not self._progress.disable:
            line = f"{name} {bar.reached.strip()}".rstrip()
            self._progress.console.print(line, highlight=False, markup=False)
        self._progress.remove_task(bar.task)
        self._progress.advance(self._whole)
