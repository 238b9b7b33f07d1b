"""The verb that shows runs on a live page: `watch`; the page, and Prometheus' numbers, beside `run` and `server`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ternfed.cli import terminal
from ternfed.cli.terminal import answered

PORT = 8420
"""Where the page is unless told otherwise; another where that is taken."""


Say = Callable[[str], None]


def _line(text: str) -> None:
    terminal.err.print(text, highlight=False, soft_wrap=True)


def add_to(app: typer.Typer, panel: str) -> None:
    """Add the verb to a command line."""
    app.command(rich_help_panel=panel)(watch)


def watch(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that contain some, now or later.")],
    host: Annotated[str, typer.Option(help="The address to listen on; this machine alone by default.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="The port; 8420, or one that is free.")] = None,
) -> None:
    """A live page about runs, running or finished: curves, bytes, clients, time left.

    From another machine: ssh -L 8420:127.0.0.1:8420 MACHINE, then open http://127.0.0.1:8420/ there.
    """
    with answered():
        from ternfed.runs.several import no_such_folder

        for folder in runs:
            if not folder.is_dir():
                raise ValueError(no_such_folder(folder, "a run folder, or one for runs, is needed"))
        with live_page(runs, host, port):
            try:
                while True:
                    time.sleep(3600)
            except KeyboardInterrupt:  # the way to end it
                return


@contextmanager
def live_page(
    folders: list[Path], host: str = "127.0.0.1", port: int | None = None, say: Say | None = None
) -> Iterator[None]:
    """The page while the block lasts, and a line that says where it is."""
    from ternfed.watch.server import serving

    with ExitStack() as stack:
        try:
            address = stack.enter_context(serving(folders, host, PORT if port is None else port))
        except ValueError:
            if port is not None:
                raise
            address = stack.enter_context(serving(folders, host, 0))
        (say or _line)(f"The live page is {address.url}")
        if host not in ("127.0.0.1", "localhost", "::1"):
            terminal.warn("whoever reaches this port sees the page; it asks for no password")
        yield


@contextmanager
def metrics_page(folder: Path, where: str, say: Say | None = None) -> Iterator[None]:
    """/metrics while the block lasts, and a line that says where it is."""
    from ternfed.watch.server import serving

    host, _, port = where.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise ValueError(f"--metrics {where}: PORT or HOST:PORT is needed")
    with serving([folder], host or "127.0.0.1", int(port), page=False) as address:
        (say or _line)(f"Prometheus finds {address.url}metrics")
        yield


@contextmanager
def watched(folder: Path, page: bool, metrics: str | None, say: Say | None = None) -> Iterator[None]:
    """What `--watch` and `--metrics` ask for; `say` tells where it is, or a plain line where nobody else speaks."""
    with ExitStack() as stack:
        if page:
            stack.enter_context(live_page([folder], say=say))
        if metrics is not None:
            stack.enter_context(metrics_page(folder, metrics, say))
        yield
