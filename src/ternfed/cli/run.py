"""The verbs that train in this process: `run` and `demo`."""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ternfed.cli import terminal
from ternfed.cli.options import Allow, DataDir, Device, Json, check_device
from ternfed.cli.terminal import answered

if TYPE_CHECKING:
    from ternfed.experiment.experiment import Experiment
    from ternfed.task import Measure


FLAGS = {
    "dataset": "data.dataset",
    "classes_per_client": "data.classes_per_client",
    "balance": "data.balance",
    "alpha": "data.alpha",
    "model": "model.name",
    "algorithm": "algorithm.name",
    "preset": "algorithm.preset",
    "clients": "federation.clients",
    "participation": "federation.participation",
    "rounds": "federation.rounds",
    "epochs": "training.epochs",
    "batch": "training.batch",
    "rate": "training.rate",
}
"""Options of `run` and the settings they stand for."""

GOES_ON = "a run with a folder is resumed by --resume"


def add_to(app: typer.Typer) -> None:
    """Add the verbs to a command line."""
    for verb in (run, demo):
        app.command()(verb)


def run(
    file: Annotated[Path | None, typer.Argument(help="An experiment as TOML; without one, all defaults.")] = None,
    dataset: Annotated[str | None, typer.Option(help="digits, mnist, cifar10 or module:function.")] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="tfedavg, fedavg, fedpaq, eden, stc, topk, signsgd_ef, fedbat, fedpm, cmfl, fedprox, fedopt, "
            "centralized or module:function."
        ),
    ] = None,
    preset: Annotated[str | None, typer.Option(help="Named settings of the algorithm, for example `paper`.")] = None,
    model: Annotated[str | None, typer.Option(help="mlp, cnn, resnet18 or module:function.")] = None,
    clients: Annotated[int | None, typer.Option(help="N: the number of clients.")] = None,
    participation: Annotated[
        float | None, typer.Option(help="λ: the share of clients that take part in each round.")
    ] = None,
    classes_per_client: Annotated[int | None, typer.Option(help="N_c: classes per client.")] = None,
    balance: Annotated[float | None, typer.Option(help="β: median / maximum of the clients' sample counts.")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="α of a Dirichlet partition: the smaller, the more unequal.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="The number of rounds.")] = None,
    epochs: Annotated[int | None, typer.Option(help="E: local epochs per round.")] = None,
    batch: Annotated[int | None, typer.Option(help="B: local batch size.")] = None,
    rate: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    seed: Annotated[int | None, typer.Option(help="Every random draw follows from it.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Repeat with this many seeds, one after another.")] = 1,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value for any setting; overrides the file; may be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; by default a new one under runs/.")] = None,
    resume: Annotated[bool, typer.Option(help="Resume the run in --out.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Delete an earlier run in --out first.")] = False,
    allow: Allow = None,
    data: DataDir = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Run an experiment in this process. Every message is really encoded, every byte counted."""
    flags = locals()
    with answered(interrupted=GOES_ON):
        from ternfed.experiment.experiment import Experiment
        from ternfed.runs.folder import fresh_folder

        if resume and out is None:
            raise ValueError("--resume: --out names the run to resume")
        given = [f"{key}={flags[flag]}" for flag, key in FLAGS.items() if flags[flag] is not None]
        given += [f"seed={seed}"] if seed is not None else []
        resumed = out if resume and seeds == 1 else None
        experiment = Experiment.given(file, [*given, *(settings or [])], resumed, allow or ())
        base = out or fresh_folder(experiment.name)
        results: list[dict[str, Any]] = []
        for offset in range(seeds):
            one = experiment.with_settings([f"seed={experiment.seed + offset}"]) if offset else experiment
            folder = base if seeds == 1 else base / f"seed-{one.seed}"
            go_on = resume and (seeds == 1 or folder.exists())  # of several seeds, some may not have begun
            summary, measure = _run_one(one, folder, data, device, go_on, overwrite, as_json)
            results.append(summary)
        if as_json:
            terminal.print_json(results[0] if seeds == 1 else _over_seeds(results))
        elif seeds > 1:
            both = _over_seeds(results)
            mean, spread = (measure.scaled(both[key]) for key in (measure.name, f"{measure.name}_std"))
            shown = f"{mean:.2f} ± {spread:.2f} %" if measure.percent else f"{mean:.4g} ± {spread:.4g}"
            terminal.out.print(f"{seeds} seeds: {measure.name} {shown}")


def _run_one(
    experiment: Experiment, folder: Path, data: Path | None, device: str, resume: bool, overwrite: bool, quiet: bool
) -> tuple[dict[str, Any], Measure]:
    """One run into one folder, with its progress on standard error: its summary, and how its scores are read."""
    from ternfed.engines.simulate import record_into
    from ternfed.round.federation import open_federation
    from ternfed.runs.folder import summarise
    from ternfed.runs.records import warnings_of

    check_device(device)
    federation = open_federation(experiment, experiment.load_data(data), device)
    experiment = federation.experiment
    target, past, coming = record_into(folder, federation, device, resume=resume, overwrite=overwrite)
    with target, answered(begun=True, interrupted=GOES_ON):
        total = experiment.federation.rounds
        warns = partial(warnings_of, experiment=experiment)
        rounds = [*past, *terminal.show_rounds(coming, total, experiment.name, past, quiet, warns)]
        summary = summarise(rounds, experiment, str(folder))
        target.finish({**summary, "run": folder.name})  # the folder may move
    if not quiet:
        terminal.out.print(terminal.summary_table({experiment.name: summary}, rounds[-1].measure))
        terminal.out.print(f"The run is in {folder}")
        for sentence in summary["warnings"]:
            terminal.warn(sentence)
    return summary, rounds[-1].measure


def _over_seeds(results: list[dict[str, Any]]) -> dict[str, Any]:
    metric = results[0]["metric"]
    scores, best = ([result[key] for result in results] for key in (metric, f"best_{metric}"))
    return {
        metric: statistics.mean(scores),
        f"{metric}_std": statistics.stdev(scores),
        f"best_{metric}": statistics.mean(best),
        "bytes_up": statistics.mean(result["bytes_up"] for result in results),
        "bytes_down": statistics.mean(result["bytes_down"] for result in results),
        "runs": results,
    }


def demo(
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("demo"),
    as_json: Json = False,
) -> None:
    """FedAvg, FedPAQ, T-FedAvg and its control on handwritten digits: 20 clients of two classes, under a minute."""
    from ternfed.cli.demo import play_demo
    from ternfed.report import comparison_picture
    from ternfed.runs.folder import summarise

    with answered():
        runs, summaries = {}, {}
        for name, experiment, rounds in play_demo():
            shown = terminal.show_rounds(rounds, experiment.federation.rounds, f"{name:8}", quiet=as_json)
            runs[name] = list(shown)
            summaries[name] = summarise(runs[name], experiment)
        picture = comparison_picture(runs, out / "demo.png", "Digits, 20 clients, two classes each")
        if as_json:
            terminal.print_json({**summaries, "picture": str(picture)})
        else:
            measure = next(iter(runs.values()))[-1].measure
            terminal.out.print(terminal.summary_table(summaries, measure))
            terminal.out.print(f"The picture is {picture}")
