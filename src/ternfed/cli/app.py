"""The command line: each verb calls one public function and shows what it returns.

Exit codes: 0; 1 for a run that failed; 2 for wrong input, with one clear sentence (`terminal.answered`).
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import metadata
from typing import Annotated

import click.exceptions
import typer

from ternfed.cli import bench, demo, edge, network, plan, report, reproduce, run, runs, sweep, watch
from ternfed.cli.verb import CommandLine

app = CommandLine(
    help="Federated learning over slow links: ternary networks, trits on the wire in both directions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    suggest_commands=not hasattr(click.exceptions, "NoSuchCommand"),  # where click itself suggests one, once is enough
    context_settings={"help_option_names": ["-h", "--help"]},
)

FIRST, RUNS, NETWORK, MODELS, PAPER = (
    "Begin here",
    "Runs",
    "Over a network",
    "A finished model",
    "The paper, and measurements",
)
"""The verbs' groups, in the order of use."""

for verbs, panel in (
    (demo, FIRST), (plan, FIRST), (run, RUNS), (sweep, RUNS), (watch, RUNS), (runs, RUNS), (report, RUNS),
    (network, NETWORK), (edge, MODELS), (reproduce, PAPER), (bench, PAPER),
):  # fmt: skip
    verbs.add_to(app, panel)


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"ternfed {version()}\n")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", callback=_show_version, is_eager=True)
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the whole traceback of an error; may also stand after the verb.")
    ] = False,
) -> None:
    """Federated learning over slow links: ternary networks, trits on the wire in both directions."""
    if debug:
        os.environ["TERNFED_TRACEBACK"] = "1"


def version() -> str:
    """The version that is installed; that of the sources where nothing is."""
    try:
        return metadata.version("ternfed")
    except metadata.PackageNotFoundError:
        return "(from its sources)"


def main() -> None:
    """The entry point: a stop from outside is like Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)
    arguments = sys.argv[1:]
    until = arguments.index("--") if "--" in arguments else len(arguments)
    if "--debug" in arguments[:until]:  # wherever it stands, it is about the whole command
        arguments.remove("--debug")
        arguments.insert(0, "--debug")
    app(args=arguments)


def _interrupt(number: int, frame: object) -> None:
    """Through the `finally` blocks, so that nothing is half written and no child process is left."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
