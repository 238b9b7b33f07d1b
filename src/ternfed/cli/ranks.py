"""A run over several ranks, as the command line sees it: who starts and ends them, and what a worker shows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
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


@dataclass
class Team:
    """The ranks that share the runs of a command; this process alone where nobody asked for more."""

    device: str
    count: int = 1
    asked: str = ""
    """How, as the user said it."""
    join: Callable[[], Link] | None = None

    def crew(self, federation: Federation) -> Crew | None:
        """Who trains the clients of a run, once all ranks are ready for it; None: this process alone."""
        from ternfed.engines.ranks.team import check_count, crew_over

        if self.join is None:
            return None
        check_count(federation, self.count, self.asked)
        link = self.join()
        self.join = lambda: link  # for the next run of the command
        return crew_over(link, federation)


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
    from ternfed.engines.ranks.launch import closing, joined, started

    own = _settle(device, 0 if place is None else place.local)
    given = [] if data is None else ["--data", str(data)]
    with ExitStack() as stack:
        if place is not None:
            link = joined(place)  # now, so that whatever is wrong with the command is said by this rank alone
            stack.enter_context(closing(link))
            yield Team(own, place.count, f"{place.count} ranks", lambda: link)
        elif workers is None or workers == 1:
            yield Team(own)
        else:
            # Only when a run is ready: whatever is wrong with the command has been said by then.
            start = started(workers, ["run", "--device", device, *given])
            yield Team(own, workers, f"--workers {workers}", lambda: stack.enter_context(start))


def work(place: Place, device: str, data: Path | None) -> None:
    """This process is one of the other ranks: it trains, and shows nothing but why it had to end."""
    from ternfed.engines.ranks.launch import joined
    from ternfed.engines.ranks.worker import serve

    check_device(device)
    try:
        link = joined(place)
        try:
            why = serve(link, _settle(device, place.local), data)
        finally:
            link.close()
    except KeyboardInterrupt:  # who stopped it, or rank 0, has said so
        raise typer.Exit(1) from None
    if why:
        if place.store is None:  # else rank 0 has said it on the same terminal
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
