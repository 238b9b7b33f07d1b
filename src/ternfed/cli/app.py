"""The command line: each verb calls one public function and shows what it returns.

Exit codes: 0; 1 for a run that failed; 2 for wrong input, with one clear sentence (`terminal.answered`).
"""

from __future__ import annotations

import typer

from ternfed.cli import bench, edge, network, plan, report, reproduce, run

app = typer.Typer(
    help="Federated learning over slow links: ternary networks, trits on the wire in both directions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verbs in (run, plan, bench, edge, report, reproduce, network):
    verbs.add_to(app)


def main() -> None:
    """The entry point."""
    app()


if __name__ == "__main__":
    main()
