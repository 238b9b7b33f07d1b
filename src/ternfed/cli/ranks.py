"""A run over several ranks, as the command line sees it: who starts and ends them, and what a worker shows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ternfed.cli import terminal
from ternfed.cli.options import check_device

if TYPE_CHECKING:
    from ternfed.engines.ranks.link import Link
    from ternfed.engines.ranks.place import Place
    from ternfed.round.crew import Crew
    from ternfed.round.federation import Federation


class Team:
    """The ranks that share the runs of a command; one process alone where nobody asked for more."""

    def __init__(
        self,
        device: str,
        named: str = "",
        count: int = 1,
        link: Link | None = None,
        join: Callable[[], Link] | None = None,
    ) -> None:
        self.device = device
        self._named, self._count, self._link, self._join = named, count, link, join

    def crew(self, federation: Federation) -> Crew | None:
        """Who trains the clients of a run, once all ranks are ready for it; None: this process alone."""
        from ternfed.engines.ranks.team import check_count, crew_over

        if self._count == 1:
            return None
        check_count(federation, self._count, self._named)
        if self._link is None and self._join is not None:
            self._link = self._join()
        return None if self._link is None else crew_over(self._link, federation)

    def close(self, why: str = "") -> None:
        """The others end; `why` is what they may say."""
        if self._link is not None:
            self._link.close(why)


@contextmanager
def gathered(workers: int | None, device: str, data: Path | None) -> Iterator[Team]:
    """The ranks that torchrun has started or that `--workers` asks for; this process is rank 0."""
    from ternfed.engines.ranks.place import place_of

    check_device(device)
    place = place_of()
    if place is not None and workers is not None:
        raise ValueError(f"--workers {workers}: torchrun has started {place.count} ranks already; leave it out")
    if place is None and workers is None:
        yield Team(device)
        return
    from ternfed.engines.ranks.launch import joined, started

    count = workers or 1 if place is None else place.count
    own = _settle(device, 0 if place is None else place.local)
    if place is not None:
        link = joined(place)  # now, so that whatever is wrong with the command is said by this rank alone
        with _closing(Team(own, f"{count} ranks", count, link)) as team:
            yield team
    elif count == 1:
        yield Team(own)
    else:
        given = [] if data is None else ["--data", str(data)]
        with (
            started(count, ["run", "--device", device, *given]) as join,
            _closing(Team(own, f"--workers {count}", count, join=join)) as team,
        ):
            yield team


@contextmanager
def _closing(team: Team) -> Iterator[Team]:
    try:
        yield team
    except BaseException as error:
        team.close(str(error) or "interrupted")
        raise
    team.close()


def work(place: Place, device: str, data: Path | None) -> None:
    """This process is one of the other ranks: it trains, and shows nothing but why it had to end."""
    from ternfed.engines.ranks.launch import joined
    from ternfed.engines.ranks.worker import serve

    check_device(device)
    link = joined(place)
    try:
        why = serve(link, _settle(device, place.local), data)
    finally:
        link.close()
    if why:
        if place.store is None:  # on this machine, rank 0 has said it on the same terminal
            terminal.fail(f"rank {place.rank}: {why}")
        raise typer.Exit(1)


def _settle(device: str, local: int) -> str:
    """This rank's own device; one thread, so that ranks do not fight for cores and each has the same bits."""
    import torch

    from ternfed.engines.ranks.place import device_of

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    own = device_of(device, local, torch.cuda.device_count())
    if own.startswith("cuda:"):
        torch.cuda.set_device(own)
    return own
