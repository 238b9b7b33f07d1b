"""The command line: each verb calls one public function and shows what it returns.

Exit codes: 0; 1 for a run that failed; 2 for wrong input, with one clear sentence.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ternfed.cli import edge as edge_commands
from ternfed.cli import network, terminal
from ternfed.cli import report as report_commands
from ternfed.cli import reproduce as reproduce_commands
from ternfed.cli.terminal import failing, one_sentence

if TYPE_CHECKING:
    from ternfed.experiment.experiment import Experiment
    from ternfed.task import Measure

app = typer.Typer(
    help="Federated learning over slow links: ternary networks, trits on the wire in both directions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench = typer.Typer(help="Benchmarks: ratios measured side by side in one run.", no_args_is_help=True)
app.add_typer(bench, name="bench")
edge_commands.add_to(app)
report_commands.add_to(app)
reproduce_commands.add_to(app)
network.add_to(app)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else there.")]
DataDir = Annotated[Path | None, typer.Option("--data", help="Folder with the data sets; else $TERNFED_DATA.")]
Device = Annotated[str, typer.Option(help="Where to train: cpu or cuda.")]

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


@app.command()
def run(
    file: Annotated[Path | None, typer.Argument(help="An experiment as TOML; without it, all defaults.")] = None,
    dataset: Annotated[str | None, typer.Option(help="digits, mnist, cifar10 or module:function.")] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="tfedavg, fedavg, cmfl, stc, centralized, module:function.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="Named settings of the algorithm, `paper` say.")] = None,
    model: Annotated[str | None, typer.Option(help="mlp, cnn, resnet18 or module:function.")] = None,
    clients: Annotated[int | None, typer.Option(help="N: how many clients there are.")] = None,
    participation: Annotated[float | None, typer.Option(help="λ: the share that takes part in a round.")] = None,
    classes_per_client: Annotated[int | None, typer.Option(help="N_c: classes a client holds.")] = None,
    balance: Annotated[float | None, typer.Option(help="β: median / max of the clients' sizes.")] = None,
    alpha: Annotated[float | None, typer.Option(help="α of a Dirichlet partition.")] = None,
    rounds: Annotated[int | None, typer.Option(help="How many rounds.")] = None,
    epochs: Annotated[int | None, typer.Option(help="E: local epochs a round.")] = None,
    batch: Annotated[int | None, typer.Option(help="B: local batch size.")] = None,
    rate: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    seed: Annotated[int | None, typer.Option(help="Everything random comes from it.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Repeat with so many seeds, one after another.")] = 1,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, any setting; may be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; else a new one under runs/.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on with the run in --out.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Delete an earlier run in --out.")] = False,
    data: DataDir = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Run an experiment in this process: every message really encoded, every byte counted."""
    flags = locals()
    with one_sentence():
        from ternfed.experiment.experiment import Experiment
        from ternfed.runs.folder import fresh_folder

        if resume and out is None:
            raise ValueError("--resume: --out names the run to go on with")
        given = [f"{key}={flags[flag]}" for flag, key in FLAGS.items() if flags[flag] is not None]
        given += [f"seed={seed}"] if seed is not None else []
        experiment = Experiment.given(file, [*given, *(settings or [])], out if resume and seeds == 1 else None)
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
    from ternfed.data.sets import load
    from ternfed.engines.simulate import record_into
    from ternfed.round.federation import open_federation
    from ternfed.runs.folder import summarise

    _check_device(device)
    federation = open_federation(experiment, load(experiment.data.dataset, data), device)
    target, past, coming = record_into(folder, federation, device, resume=resume, overwrite=overwrite)
    with target, failing():
        total = experiment.federation.rounds
        rounds = [*past, *terminal.show_rounds(coming, total, experiment.name, past, quiet)]
        summary = summarise(rounds, experiment, str(folder))
        target.finish({**summary, "run": folder.name})  # the folder may move
    if not quiet:
        terminal.out.print(terminal.summary_table({experiment.name: summary}, rounds[-1].measure))
        terminal.out.print(f"The run is in {folder}")
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


def _check_device(device: str) -> None:
    import torch

    if device not in ("cpu", "cuda"):
        raise ValueError(f"--device {device}: cpu or cuda is allowed")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: PyTorch sees no GPU here")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("demo"),
    as_json: Json = False,
) -> None:
    """FedAvg against T-FedAvg on handwritten digits: 20 clients with two classes each, under a minute."""
    from ternfed.cli.demo import play_demo
    from ternfed.report import comparison_picture
    from ternfed.runs.folder import summarise

    with one_sentence(), failing():
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


@bench.command("step")
def bench_step(rounds: Annotated[int, typer.Option(min=3, help="Measurements of each side.")] = 41) -> None:
    """What FTTQ costs a training step, with and without it in turns."""
    from ternfed.bench import step

    print_markdown(step.table(list(waiting(step.run(rounds)))))


@bench.command("wire")
def bench_wire() -> None:
    """Sizes, speeds and memory of the codecs, beside 2-bit packing, zstd alone and nncodec."""
    from ternfed.bench import wire

    with terminal.err.status("measuring"):
        report = wire.run()
    print_markdown(wire.table(report))


@bench.command("rounds")
def bench_rounds(rounds: Annotated[int, typer.Option(min=3, help="Measurements of each side.")] = 15) -> None:
    """Local training of a round: the plain loop, one client at a time, all at once, T-FedAvg, FedJAX."""
    from ternfed.bench import rounds as speed

    print_markdown(speed.table(list(waiting(speed.run(rounds)))))


@bench.command("gpu")
def bench_gpu() -> None:
    """Milliseconds of a local step on a GPU, by precision and by clients side by side."""
    from ternfed.bench import gpu

    with one_sentence():
        _check_device("cuda")
        print_markdown(gpu.table(list(waiting(gpu.run()))))


@bench.command("edge")
def bench_edge() -> None:
    """File size, memory and milliseconds of exported models, against fp32 ONNX and PyTorch."""
    from ternfed.bench import edge

    with one_sentence():
        print_markdown(edge.table(list(waiting(edge.run()))))


def print_markdown(text: str) -> None:
    """A table as Markdown, ready for a page."""
    sys.stdout.write(text + "\n")


def waiting(rows: Iterable[Any]) -> Iterator[Any]:
    """Pass rows on, with a spinner while they are measured."""
    with terminal.err.status("measuring"):
        yield from rows


def main() -> None:
    """The entry point: own modules are found from the current directory."""
    sys.path.insert(0, os.getcwd())
    app()


if __name__ == "__main__":
    main()
