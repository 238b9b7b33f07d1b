"""The verbs for a finished model: `export`, `predict`, `inspect`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.progress import track

from ternfed.cli import terminal
from ternfed.cli.options import Allow, DataDir, Json
from ternfed.cli.terminal import answered

if TYPE_CHECKING:
    from ternfed.edge import Inspection


SHOWN = 20
"""Predictions of samples without labels that a terminal shows."""


def add_to(app: typer.Typer, panel: str) -> None:
    """Add the verbs to a command line."""
    for verb in (export, predict, inspect):
        app.command(rich_help_panel=panel)(verb)


def export(
    source: Annotated[Path, typer.Argument(help="A run folder, or a .tern or .safetensors file that export wrote.")],
    to: Annotated[Path, typer.Option(help="model.onnx, model.tern or model.safetensors.")],
    best: Annotated[bool, typer.Option("--best/--last", help="The best model by validation, or the last.")] = True,
    normalise: Annotated[bool, typer.Option(help="Put the normalisation of the inputs into the ONNX graph.")] = True,
    exact: Annotated[bool, typer.Option(help="No int8 activations: exact, and large layers slower.")] = False,
    allow: Allow = None,
    data: DataDir = None,
    as_json: Json = False,
) -> None:
    """Write a trained model as a file that a small device can run."""
    from ternfed.edge import export_from

    which: Literal["best", "last"] = "best" if best else "last"
    with answered():
        made = export_from(
            source, to, normalised=normalise, exact=exact, which=which, data_folder=data, allow=allow or ()
        )
        if as_json:
            terminal.print_json({**asdict(made), "path": str(made.path)})
            return
        terminal.out.print(
            f"{made.path}: {terminal.size(made.bytes)}, its weights as float32 {terminal.size(made.float32_bytes)}; "
            f"ternary: {terminal.plain(', '.join(made.ternary) or 'none')}",
            highlight=False,
            soft_wrap=True,
        )
        for name, why in made.kept_float.items():
            terminal.out.print(terminal.plain(f"{name} is not ternary: {why}"), highlight=False)


def predict(
    model: Annotated[Path, typer.Argument(help="A .onnx, .tern or .safetensors file.")],
    data: Annotated[str | None, typer.Option(help="A data set, its folder, or a .npy or .npz file.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Samples at a time.")] = 64,
    out: Annotated[Path | None, typer.Option(help="Where the predictions go: .csv or .json.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads to compute with.")] = 1,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Predict with an exported model: accuracy, milliseconds per sample, predictions as CSV or JSON."""
    from ternfed.edge import check_predictions_file, open_model, samples_for, summarise, write_predictions
    from ternfed.edge import predict as predictions

    with answered():
        if out is not None:
            check_predictions_file(out)
        opened = open_model(model, threads=threads, allow=allow or ())
        samples, labels = samples_for(opened.facts, data, opened.task, allow or ())
        batches = predictions(opened, samples, labels, batch=batch)
        total = -(-len(samples) // batch)
        shown = track(batches, "predicting", total, console=terminal.err, disable=as_json)
        result = summarise(shown)
        if out is not None:
            write_predictions(out, result, labels)
        measure = result.task.metric.measure
        value: dict[str, Any] = {
            measure.name: result.score,
            "milliseconds": result.milliseconds,
            "samples": len(samples),
            "predictions": None if out is None else str(out),
        }
        if labels is None and out is None:
            value[result.task.words[1]] = result.predictions.tolist()
        if as_json:
            terminal.print_json(value)
            return
        score = ""
        if result.score is not None:
            score = f"{measure.name} {measure.scaled(result.score):.4g}{'%' if measure.percent else ''}, "
        terminal.out.print(f"{len(samples)} samples: {score}{result.milliseconds:.3f} ms per sample", highlight=False)
        if labels is None and out is None:
            first = ", ".join(map(str, result.predictions[:SHOWN].tolist()))
            more = f", … (--out keeps all {len(samples)})" if len(samples) > SHOWN else ""
            line = terminal.plain(f"{result.task.words[1]}: {first}{more}")
            terminal.out.print(line, highlight=False, soft_wrap=True)
        if out is not None:
            terminal.out.print(f"The predictions are in {out}", highlight=False)


def inspect(
    file: Annotated[Path, typer.Argument(help="A .tern, .onnx or .safetensors file.")], as_json: Json = False
) -> None:
    """What is in a model file: its tensors, size against fp32, settings, accuracy, digest."""
    from ternfed.edge import inspect as look

    with answered():
        found = look(file)
        if as_json:
            terminal.print_json(asdict(found))
            return
        if file.suffix == ".tern":
            _show_tern(file)
        else:
            rows = ((row.name, _shape(row.shape), row.kind, terminal.size(row.bytes)) for row in found.rows)
            terminal.out.print(terminal.rows_table(("tensor", "shape", "kind", "bytes"), rows))
            terminal.out.print(f"{terminal.size(found.bytes)} in all", highlight=False)
        _show_facts(found)


def _show_tern(file: Path) -> None:
    from ternfed.wire import describe

    summary = describe(file)
    headings = ("tensor", "shape", "kind", "zeros", "bits per weight", "entropy")
    rows = (
        (
            row.name,
            _shape(row.shape),
            str(row.kind),
            f"{100 * row.zeros:.1f}%",
            f"{row.bits:.3f}",
            "–" if row.entropy is None else f"{row.entropy:.3f}",
        )
        for row in summary.rows
    )
    terminal.out.print(terminal.rows_table(headings, rows))
    terminal.out.print(
        f"{summary.codec} · {terminal.size(summary.bytes)}, {summary.ratio:.1f} times smaller than "
        f"{terminal.size(summary.float32_bytes)} of float32",
        highlight=False,
    )


def _show_facts(found: Inspection) -> None:
    for key, value in found.facts.items():
        if value not in (None, {}, []):
            terminal.out.print(terminal.plain(f"{key}: {value}"), highlight=False, soft_wrap=True)


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "scalar"
