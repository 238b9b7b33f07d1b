"""The verb that tells costs before anything is trained: `plan`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ternfed.cli import terminal
from ternfed.cli.completion import DATASETS, MODELS, PRESETS, one_of
from ternfed.cli.completion import algorithms as names
from ternfed.cli.options import Allow, DataDir, Json, Settings
from ternfed.cli.terminal import answered, size

if TYPE_CHECKING:
    from ternfed.plan.plan import Layer, Plan, Traffic

FLAGS = {
    "dataset": "data.dataset",
    "algorithm": "algorithm.name",
    "preset": "algorithm.preset",
    "clients": "federation.clients",
    "participation": "federation.participation",
    "rounds": "federation.rounds",
}
"""Options and the settings they stand for, as with `run`."""

CASES = ("best", "typical", "worst")


def add_to(app: typer.Typer, panel: str) -> None:
    """Add the verb to a command line."""
    app.command(rich_help_panel=panel)(plan)


def plan(
    model: Annotated[
        str,
        typer.Argument(
            help="A built-in network, module:function, or an experiment as TOML.", autocompletion=one_of(MODELS)
        ),
    ],
    algorithm: Annotated[
        str | None, typer.Option(help="tfedavg by default; any that `run` takes.", autocompletion=one_of(names))
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Named settings of the algorithm, for example `paper`.", autocompletion=one_of(PRESETS)),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            help="For the shape of a sample: digits, mnist, shakespeare, own.", autocompletion=one_of(DATASETS)
        ),
    ] = None,
    clients: Annotated[int | None, typer.Option(help="N: the number of clients.")] = None,
    participation: Annotated[float | None, typer.Option(help="λ: the share that takes part in each round.")] = None,
    samples: Annotated[
        int | None, typer.Option(help="Training samples per client; else those of the data set, divided equally.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="The number of rounds.")] = None,
    settings: Settings = None,
    up: Annotated[float, typer.Option(help="A client's link to the server, Mbit/s.")] = 11.05,
    down: Annotated[float, typer.Option(help="And from the server, Mbit/s.")] = 26.36,
    flips: Annotated[float, typer.Option(help="Share of trits that flip in a typical round.")] = 0.2,
    allow: Allow = None,
    data: DataDir = None,
    as_json: Json = False,
) -> None:
    """What a federation will cost before anybody trains: layers, bytes, seconds, memory, file sizes.

    MODEL is mlp, cnn, resnet18, charlstm, chartransformer, module:function, or an experiment as TOML. Settings and
    defaults are those of `run`.
    """
    flags = locals()
    with answered():
        from ternfed.experiment.experiment import Experiment
        from ternfed.plan.plan import Link, make_plan

        file = Path(model) if model.endswith(".toml") or Path(model).is_file() else None
        given = [] if file else [f"model.name={model}"]
        given += [f"{key}={flags[flag]}" for flag, key in FLAGS.items() if flags[flag] is not None]
        experiment = Experiment.given(file, [*given, *(settings or [])], allow=allow or ())
        made = make_plan(experiment, Link(up, down), flips, data, samples)
        if as_json:
            terminal.print_json(_table(made))
        else:
            _show(made)


def _table(made: Plan) -> dict[str, Any]:
    totals = {
        key: {**asdict(part), "total": part.total} for key, part in (("server", made.server), ("client", made.client))
    }
    return {**asdict(made), **totals}


def _show(made: Plan) -> None:
    out = terminal.out
    out.print(terminal.rows_table(("tensor", "shape", "numbers", "up, bits", "down, bits"), _layers(made)))
    still = f", {made.frozen:,} are frozen and never travel" if made.frozen else ""
    _say(
        f"{made.model}: {made.numbers:,} numbers, {terminal.share(made.ternary / made.numbers)} of them in ternary "
        f"layers{still}; {made.clients} clients{_each(made)}, {made.per_round} per round, {made.rounds} rounds"
    )
    headings = ("per client", "up", "down", "s up", "s down", f"{made.takes_part} rounds")
    out.print(terminal.rows_table(headings, (*_rows(made.traffic, CASES), *_rows(made.fedavg, ("typical",)))))
    _say(f"Seconds at {made.link.up:g} Mbit/s up and {made.link.down:g} down, without the time that training takes.")
    for sentence in _assumed(made):
        _say(sentence)
    for where, memory in (("server", made.server), ("client", made.client)):
        sizes = {field.name: getattr(memory, field.name) for field in fields(memory)}
        parts = ", ".join(f"{name} {size(count)}" for name, count in sizes.items() if count or name != "frozen")
        _say(f"Memory on the {where}: {size(memory.total)} ({parts})")
    files = made.exported
    _say(f"Exported: .tern {size(files.tern)}, ONNX {size(files.onnx)}, float32 {size(files.float32)}")


def _each(made: Plan) -> str:
    return "" if made.samples is None else f" with {made.samples:,} training samples each"


def _layers(made: Plan) -> Iterator[tuple[str, ...]]:
    """Matrices and kernels one by one; of all else, those that travel alike together."""
    alike: dict[tuple[str | None, str | None, bool], list[Layer]] = {}
    for each in made.layers:
        if len(each.shape) > 1:
            yield _layer(each.name, _shape(each.shape), [each])
        else:
            alike.setdefault((each.up, each.down, each.frozen), []).append(each)
    for several in alike.values():
        name = several[0].name if len(several) == 1 else f"{len(several)} vectors and single numbers"
        yield _layer(name, _shape(several[0].shape) if len(several) == 1 else "", several)


def _layer(name: str, shape: str, several: Sequence[Layer]) -> tuple[str, ...]:
    numbers = sum(each.numbers for each in several)
    ways = []
    for key in ("up", "down"):
        bits = sum(getattr(each, f"bits_{key}") * each.numbers for each in several) / max(numbers, 1)
        kind = getattr(several[0], key)
        unsent = "frozen" if several[0].frozen else "not sent"
        ways.append(unsent if kind is None else f"{kind} {bits:.2f}")
    return name, shape, f"{numbers:,}", *ways


def _rows(traffic: Traffic, cases: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for case in cases:
        up, down, seconds_up, seconds_down, total_up, total_down = (
            getattr(getattr(traffic, key), case)
            for key in ("up", "down", "seconds_up", "seconds_down", "total_up", "total_down")
        )
        yield (
            f"{traffic.algorithm}, {case}",
            size(up),
            size(down),
            f"{seconds_up:.2f}",
            f"{seconds_down:.2f}",
            size(total_up + total_down),
        )


def _assumed(made: Plan) -> Iterator[str]:
    yield (
        f"Best: nothing has changed. Worst: nothing is held, and all codes are equally likely. Typical: "
        f"{terminal.share(made.flips)} of the trits flip per round, and a client holds the broadcast of "
        f"{made.missed} round{'s' if made.missed > 1 else ''} ago."
    )
    if made.misfit is not None:
        yield f"This cannot run: {made.misfit}. First and last layer are those that are registered so."
    if made.samples is None:
        yield "How many samples a client has is not known (--samples says it): enough for many local steps is assumed."
    yield f"The first download, the model before training, is {size(made.traffic.first_down)}."
    rows = "the first rows of each matrix and kernel"
    if made.share < 1:
        yield f"Bytes and memory are estimated from {terminal.share(made.share)} of the model's numbers, {rows}."
    elif made.share_down < 1:
        yield f"The typical download is estimated from {terminal.share(made.share_down)} of the numbers, {rows}."


def _say(sentence: str) -> None:
    terminal.out.print(sentence, highlight=False, soft_wrap=True, markup=False)


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "scalar"
