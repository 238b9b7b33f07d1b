"""The verb that trains, in this process and in others that it is told of: `run`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ternfed.cli import terminal
from ternfed.cli.completion import DATASETS, MODELS, PRESETS, one_of
from ternfed.cli.completion import algorithms as names
from ternfed.cli.options import (
    DATA,
    FEDERATION,
    TRAINING,
    Allow,
    DataDir,
    Device,
    Json,
    LogJson,
    Metrics,
    Out,
    Overwrite,
    Resume,
    Settings,
    Track,
    Watch,
    Workers,
)
from ternfed.cli.progress import Shown, Style, style_of
from ternfed.cli.terminal import answered

if TYPE_CHECKING:
    from ternfed.cli.ranks import Team
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


def add_to(app: typer.Typer, panel: str) -> None:
    """Add the verb to a command line."""
    app.command(rich_help_panel=panel)(run)


def run(
    file: Annotated[Path | None, typer.Argument(help="An experiment as TOML; without one, all defaults.")] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="tfedavg, fedavg, fedpaq, eden, stc, topk, signsgd_ef, fedbat, fedpm, cmfl, fedprox, fedopt, "
            "centralized or module:function.",
            autocompletion=one_of(names),
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Named settings of the algorithm, for example `paper`.", autocompletion=one_of(PRESETS)),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Every random draw follows from it.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Repeat with this many seeds.")] = 1,
    jobs: Annotated[
        int, typer.Option(min=1, help="So many seeds side by side: on the CPU, or on a GPU where MPS runs.")
    ] = 1,
    settings: Settings = None,
    allow: Allow = None,
    device: Device = "cpu",
    workers: Workers = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            help="digits, mnist, cifar10, shakespeare, a folder (text:DIR) or module:function.",
            rich_help_panel=DATA,
            autocompletion=one_of(DATASETS),
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="mlp, cnn, resnet18, charlstm, chartransformer or module:function.",
            rich_help_panel=DATA,
            autocompletion=one_of(MODELS),
        ),
    ] = None,
    data: DataDir = None,
    clients: Annotated[int | None, typer.Option(help="N: the number of clients.", rich_help_panel=FEDERATION)] = None,
    participation: Annotated[
        float | None,
        typer.Option(help="λ: the share of clients that take part in each round.", rich_help_panel=FEDERATION),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="The number of rounds.", rich_help_panel=FEDERATION)] = None,
    classes_per_client: Annotated[
        int | None, typer.Option(help="N_c: classes per client.", rich_help_panel=FEDERATION)
    ] = None,
    balance: Annotated[
        float | None,
        typer.Option(help="β: median / maximum of the clients' sample counts.", rich_help_panel=FEDERATION),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(help="α of a Dirichlet partition: the smaller, the more unequal.", rich_help_panel=FEDERATION),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="E: local epochs per round.", rich_help_panel=TRAINING)] = None,
    batch: Annotated[int | None, typer.Option(help="B: local batch size.", rich_help_panel=TRAINING)] = None,
    rate: Annotated[float | None, typer.Option(help="Learning rate.", rich_help_panel=TRAINING)] = None,
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    watch: Watch = False,
    metrics: Metrics = None,
    track: Track = None,
    log_json: LogJson = False,
    as_json: Json = False,
) -> None:
    """Run an experiment: here, or under torchrun on many machines. Every message is encoded, every byte counted."""
    flags = locals()
    with answered(interrupted=GOES_ON):
        from ternfed.cli.ranks import gathered, work
        from ternfed.engines.ranks.place import place_of

        if (place := place_of()) is not None and place.rank > 0:
            work(place, device, data)
            return
        from ternfed.cli.watch import watched
        from ternfed.experiment.experiment import Experiment
        from ternfed.runs.folder import fresh_folder
        from ternfed.track.tracker import check_names

        if resume and out is None:
            raise ValueError("--resume: --out names the run to resume")
        check_names(track or ())
        given = [f"{key}={flags[flag]}" for flag, key in FLAGS.items() if flags[flag] is not None]
        given += [f"seed={seed}"] if seed is not None else []
        resumed = out if resume and seeds == 1 else None
        experiment = Experiment.given(file, [*given, *(settings or [])], resumed, allow or ())
        base = out or fresh_folder(experiment.name)
        how = How(data, overwrite, tuple(track or ()), style_of(as_json, log_json))
        each = [experiment.with_settings([f"seed={experiment.seed + k}"]) if k else experiment for k in range(seeds)]
        say = None if how.style == "quiet" else Shown(0, experiment.name, how.style).say
        if jobs > 1:
            _check_jobs(flags, place is not None)
            with watched(base, watch, metrics, say):
                results, measure = _run_side_by_side(each, base, jobs, device, data, quiet=as_json)
        else:
            results = []
            with watched(base, watch, metrics, say), gathered(workers, device, data) as team:
                for one in each:
                    folder = base if seeds == 1 else base / f"seed-{one.seed}"
                    go_on = resume and (seeds == 1 or folder.exists())  # of several seeds, some may not have begun
                    summary, measure = _run_one(one, folder, go_on, how, team, as_json)
                    results.append(summary)
        if as_json:
            terminal.print_json(results[0] if seeds == 1 else _over_seeds(results))
        elif seeds > 1:
            both = _over_seeds(results)
            mean, spread = (measure.scaled(both[key]) for key in (measure.name, f"{measure.name}_std"))
            shown = f"{mean:.2f} ± {spread:.2f} %" if measure.percent else f"{mean:.4g} ± {spread:.4g}"
            terminal.out.print(f"{seeds} seeds: {measure.name} {shown}")


@dataclass(frozen=True)
class How:
    """What all seeds of a command share."""

    data: Path | None
    overwrite: bool
    track: tuple[str, ...]
    style: Style


def _run_one(
    experiment: Experiment, folder: Path, resume: bool, how: How, team: Team, quiet: bool
) -> tuple[dict[str, Any], Measure]:
    """One run into one folder, with its progress on standard error: its summary, and how its scores are read."""
    from ternfed.engines.simulate import record_into
    from ternfed.round.federation import open_federation
    from ternfed.runs.folder import leaving_nothing, summarise
    from ternfed.runs.records import warnings_of
    from ternfed.track.tracker import tracking

    federation = open_federation(experiment, experiment.load_data(how.data), team.device)
    experiment = federation.experiment
    crew = team.crew(federation)
    told: list[Shown] = []
    with ExitStack() as stack:
        started = stack.enter_context(leaving_nothing(folder))
        target, past, coming = record_into(
            folder,
            federation,
            team.device,
            resume=resume,
            overwrite=how.overwrite,
            tell=lambda now: told[0].tell(now),
            crew=crew,
        )
        stack.enter_context(target)
        told.append(shown := Shown(experiment.federation.rounds, experiment.name, how.style, past))
        trackers = stack.enter_context(tracking(how.track, folder, experiment.to_table(), past))
        started()
        with answered(begun=True, interrupted=GOES_ON):
            rounds = [*past]
            for record in shown.follow(coming, partial(warnings_of, experiment=experiment)):
                trackers.log(record)
                rounds.append(record)
            summary = summarise(rounds, experiment, str(folder), federation.class_counts())
            target.finish({**summary, "run": folder.name})  # the folder may move
            trackers.finish(summary)
    if not quiet:
        terminal.out.print(terminal.summary_table({experiment.name: summary}, rounds[-1].measure))
        terminal.out.print(f"The run is in {folder}")
    for sentence in (*summary["warnings"], *trackers.failed):
        shown.warn(sentence)
    return summary, rounds[-1].measure


NOT_WITH_JOBS = {
    "workers": "--workers spreads one run; give one of the two",
    "track": "runs side by side are not tracked; leave one of the two out",
    "overwrite": "name another folder by --out",
    "log_json": "rounds of several runs side by side are in their folders",
}
"""Options that several seeds side by side cannot have, and what to do."""


def _check_jobs(flags: Mapping[str, Any], has_ranks: bool) -> None:
    """Refuse what does not go with `--jobs`, before anything runs."""
    from ternfed.sweep.side_by_side import may_share

    named = f"--jobs {flags['jobs']}"
    if flags["seeds"] == 1:
        raise ValueError(f"{named}: is for several seeds (--seeds); --workers spreads the clients of one run")
    if has_ranks:
        raise ValueError(f"{named}: runs side by side are for one machine; leave it out")
    if not may_share(flags["device"]):
        raise ValueError(
            f"{named}: on a GPU several runs only take turns; start NVIDIA's MPS first (nvidia-cuda-mps-control -d), "
            "or leave it out"
        )
    for option, instead in NOT_WITH_JOBS.items():
        if flags[option]:
            raise ValueError(f"{named} and --{option.replace('_', '-')}: {instead}")
    base = flags["out"]
    if base is not None and base.exists() and any(base.iterdir()) and not flags["resume"]:
        raise ValueError(f"{base}: is not empty; resume its runs by --resume, or name another folder")


def _run_side_by_side(
    each: Sequence[Experiment], base: Path, jobs: int, device: str, data: Path | None, quiet: bool
) -> tuple[list[dict[str, Any]], Measure]:
    """One run per seed, so many at a time: their summaries, and how their scores are read."""
    from ternfed.cli.trials import Board, run_trials
    from ternfed.round.federation import open_federation
    from ternfed.runs.folder import read_run
    from ternfed.sweep.trial import DataSets, Trial

    trials = [Trial(f"seed-{one.seed}", one.to_table(), base / f"seed-{one.seed}", device) for one in each]
    left, sets = [trial for trial in trials if trial.standing() != "finished"], DataSets(data)
    open_federation(each[0], sets.get(each[0]))  # whatever is wrong is said before anything runs
    with Board.shown(quiet, "seeds", len(trials), len(trials) - len(left)) as board:
        failed = run_trials(left, jobs, sets, board, keep=True)
    if failed:
        raise RuntimeError("; ".join(f"{name}: {sentence}" for name, sentence in failed.items()))
    runs = [read_run(trial.folder) for trial in trials]
    if not quiet:
        terminal.out.print(f"The runs are in {base}")
    return [run.summary or {} for run in runs], runs[0].rounds[-1].measure


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
