"""The demonstration: FedAvg, FedPAQ, T-FedAvg and its control on handwritten digits, 20 clients of five classes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ternfed.cli import terminal
from ternfed.cli.options import Json
from ternfed.cli.progress import Shown
from ternfed.cli.terminal import answered

if TYPE_CHECKING:
    from ternfed.experiment.experiment import Experiment
    from ternfed.runs.folder import Round

SETTINGS = (
    "data.dataset=digits",
    "data.classes_per_client=5",
    "model.hidden=[128, 128]",
    "model.ternary=all",
    "federation.clients=20",
    "federation.participation=0.5",
    "federation.rounds=30",
    "training.schedule=cosine",
    "training.batch=16",
)
"""What all share. Every layer is ternary: with float layers around it, a layer of frozen trits is a good random feature
map here, and the control would show little."""

ALGORITHMS = {
    "FedAvg": ("algorithm.name=fedavg", "training.rate=0.5"),
    "FedPAQ": ("algorithm.name=fedpaq", "algorithm.bits_down=3", "algorithm.finest_bits=4", "training.rate=0.5"),
    "T-FedAvg": ("algorithm.name=tfedavg", "training.rate=0.3"),
    "trits frozen": ("algorithm.name=tfedavg", "algorithm.preset=frozen", "training.rate=0.3"),
}
"""Each at its best rate of 0.1, 0.2, 0.3, 0.5 and 1 on validation data, FedPAQ with broadcasts as coarse as it bears
(docs/LOG.md). The last is the control: the same
network whose trits never change. Only its three scales learn, and without biases they cannot change a decision."""


def play_demo(*settings: str) -> Iterator[tuple[str, Experiment, Iterator[Round]]]:
    """(name, experiment, its rounds) of each algorithm, on the same data from the same first weights."""
    from ternfed.data.sets import load
    from ternfed.engines.simulate import play
    from ternfed.experiment.experiment import Experiment
    from ternfed.round.federation import open_federation

    data = load("digits")
    for name, own in ALGORITHMS.items():
        experiment = Experiment.from_toml("", [*SETTINGS, *own, *settings])
        federation = open_federation(experiment, data)
        yield name, experiment, (record for _, record in play(federation))


def add_to(app: typer.Typer, panel: str) -> None:
    """Add the verb to a command line."""
    app.command(rich_help_panel=panel)(demo)


def demo(
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("demo"),
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of each, 30 unless told.")] = None,
    as_json: Json = False,
) -> None:
    """FedAvg, FedPAQ, T-FedAvg and its control on handwritten digits: 20 clients of five classes, under a minute."""
    with answered():
        from ternfed.files import check_writable
        from ternfed.report import comparison_picture
        from ternfed.report.extra import needed
        from ternfed.runs.folder import summarise

        needed("matplotlib")  # before anything is trained
        check_writable(out / "demo.png")
        runs, summaries = {}, {}
        short = () if rounds is None else (f"federation.rounds={rounds}",)
        for name, experiment, played in play_demo(*short):
            shown = Shown(experiment.federation.rounds, f"{name:8}", "quiet" if as_json else "bar")
            runs[name] = list(shown.follow(played))
            summaries[name] = summarise(runs[name], experiment)
        picture = comparison_picture(runs, out / "demo.png", "Digits, 20 clients, five classes each")
        if as_json:
            terminal.print_json({**summaries, "picture": str(picture)})
        else:
            measure = next(iter(runs.values()))[-1].measure
            terminal.out.print(terminal.summary_table(summaries, measure))
            terminal.out.print(f"The picture is {picture}")
