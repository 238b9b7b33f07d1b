"""Predictions from a model file: the same few values whether ONNX, `.tern` or safetensors."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ternfed.data.images import normalise
from ternfed.data.npy import read_npy, read_npz
from ternfed.data.sets import NAMES, is_text, load
from ternfed.data.values import Samples
from ternfed.edge.facts import checked, inputs_of
from ternfed.edge.inputs import ModelError, first_line
from ternfed.edge.runtime import session
from ternfed.edge.trained import from_file, task_of
from ternfed.experiment.experiment import Experiment
from ternfed.files import check_writable, facts_of, shown_name
from ternfed.named_function import check_code
from ternfed.task import CLASSIFICATION, Task

Array = NDArray[Any]


@dataclass(frozen=True)
class Predictor:
    """An opened model file."""

    run: Callable[[Array], Array]
    """Samples as they come, (N, …), to outputs: logits (N, classes), for example."""
    facts: Mapping[str, Any]
    """What the file says about its model; empty for an ONNX file of another maker."""
    task: Task = CLASSIFICATION
    """Says what the outputs predict."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Some samples done."""

    task: Task
    predictions: Array
    """One per sample: its class, where the task is classification."""
    sums: Tensor | None
    """Those of the task's metric; None without labels."""
    seconds: float
    """In the model alone, normalisation included."""
    done: int
    total: int


@dataclass(frozen=True, eq=False)
class Prediction:
    """All samples done."""

    task: Task
    predictions: Array
    score: float | None
    """By the task's metric; None without labels."""
    milliseconds: float
    """Per sample."""


def open_model(
    path: str | Path,
    *,
    network: nn.Module | None = None,
    task: Task | None = None,
    threads: int = 1,
    allow: Collection[str] = (),
) -> Predictor:
    """A `.onnx`, `.tern` or `.safetensors` file, ready to predict.

    The last two hold weights alone: their network is made from the settings in the file, or is the one given. A model
    that learned a task of the user's own needs that too. Code that a file names runs only where `allow` names its
    module.
    """
    path = Path(path)
    if path.is_dir():
        raise ModelError(f"{path}: is a folder; a model file is needed: ternfed export {path} --to model.onnx")
    if not path.is_file():
        raise ModelError(f"{path}: there is no such file")
    if path.suffix == ".onnx":
        return _open_onnx(path, threads, task, allow)
    if path.suffix not in (".tern", ".safetensors"):
        raise ModelError(f"{path}: .onnx, .tern or .safetensors is needed")
    model = from_file(path, network, task, allow)
    inputs = model.inputs

    def run(samples: Array) -> Array:
        with torch.no_grad():
            outputs = model.network(normalise(torch.from_numpy(samples), inputs.mean, inputs.std))
        result: Array = outputs.numpy()
        return result

    return Predictor(run, model.facts(), model.task)


def samples_for(
    facts: Mapping[str, Any], data: str | None = None, task: Task = CLASSIFICATION, allow: Collection[str] = ()
) -> tuple[Array, Array | None]:
    """Samples to predict and their labels, None where there are none.

    `data` is a data set by name (its test samples), a folder that holds the model's own data set, a `.npy` file of
    samples, or a `.npz` file with `inputs` and, if known, `labels`. None is the test set the model was trained for;
    where that is code (`module:function`), `allow` must name its module.
    """
    settings = facts.get("settings") or {}
    said = settings.get("data")
    own = said.get("dataset") if isinstance(said, dict) else None
    if data is not None and Path(data).suffix in (".npy", ".npz"):
        return _from_arrays(Path(data), task)
    if data is not None and is_text(data) and is_text(str(own)):  # in sequences as the model was trained on
        return _arrays(
            Experiment.from_table({**settings, "data": {**settings["data"], "dataset": data}}).load_data().test
        )
    if data is not None and (data in NAMES or ":" in data):
        return _arrays(load(data, task=task).test)
    if own is None:
        raise ModelError("the model does not say what data it is for; name a data set, or a .npy or .npz file")
    if data is not None and not Path(data).is_dir():
        raise ModelError(f"{data}: {', '.join(NAMES)}, module:function, a folder, a .npy or a .npz file is allowed")
    check_code(settings, allow, "the model")
    return _arrays(Experiment.from_table(settings).load_data(None if data is None else Path(data)).test)


def predict(model: Predictor, samples: Array, labels: Array | None = None, *, batch: int = 64) -> Iterator[Batch]:
    """Predict all samples, batch by batch, a value after each; `summarise` puts them together."""
    if batch < 1:
        raise ModelError(f"batch = {batch}: at least 1 is needed")
    samples = _fitting(samples, model.facts)
    if labels is not None and len(labels) != len(samples):
        raise ModelError(f"{len(samples)} samples and {len(labels)} labels: one label per sample is needed")
    if len(samples):
        model.run(np.ascontiguousarray(samples[:batch]))  # the first call prepares buffers and must not count
    for start in range(0, len(samples), batch):
        part = np.ascontiguousarray(samples[start : start + batch])
        before = time.perf_counter()
        made = model.run(part)
        seconds = time.perf_counter() - before
        outputs, sums = torch.from_numpy(made), None
        if labels is not None:
            sums = model.task.metric.add(outputs, torch.from_numpy(labels[start : start + batch])).double()
        predictions: Array = model.task.predict(outputs).numpy()
        yield Batch(model.task, predictions, sums, seconds, start + len(part), len(samples))


def summarise(batches: Iterable[Batch]) -> Prediction:
    """The whole of what `predict` gave."""
    every = list(batches)
    if not every:
        raise ModelError("there are no samples to predict")
    sums = [each.sums for each in every if each.sums is not None]
    task, count = every[-1].task, every[-1].done
    return Prediction(
        task,
        predictions=np.concatenate([each.predictions for each in every]),
        score=task.metric.finish(torch.stack(sums).sum(0), count) if len(sums) == len(every) else None,
        milliseconds=1e3 * sum(each.seconds for each in every) / count,
    )


def check_predictions_file(path: str | Path) -> None:
    """ModelError or ValueError where predictions cannot be written there: to be asked before they are made."""
    if Path(path).suffix not in (".csv", ".json"):
        raise ModelError(f"{path}: predictions are written as .csv or .json")
    check_writable(Path(path))


def write_predictions(path: str | Path, result: Prediction, labels: Array | None = None) -> None:
    """One row per sample as CSV (index, class, label), or all of it as JSON, by the name of the file."""
    path = Path(path)
    check_predictions_file(path)
    predictions, (one, several) = result.predictions.tolist(), result.task.words
    known = None if labels is None else labels.tolist()
    if path.suffix == ".json":
        metric = result.task.metric.measure.name
        table = {metric: result.score, "milliseconds": result.milliseconds, several: predictions}
        path.write_text(json.dumps(table if known is None else {**table, "labels": known}) + "\n", encoding="utf-8")
        return
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["index", one] if known is None else ["index", one, "label"])
        for index, predicted in enumerate(predictions):
            writer.writerow([index, predicted] if known is None else [index, predicted, known[index]])


def _open_onnx(path: Path, threads: int, given: Task | None, allow: Collection[str]) -> Predictor:
    try:
        opened = session(str(path), threads)
    except ModelError:
        raise
    except Exception as error:  # onnxruntime's errors share no base class but this
        raise ModelError(f"{path}: onnxruntime cannot open it ({first_line(error)})") from error
    facts = facts_of(opened.get_modelmeta().custom_metadata_map)
    inputs = inputs_of(checked(facts, path), path) if facts else None
    task = task_of(path, facts, given, allow)
    if len(opened.get_inputs()) != 1 or not opened.get_outputs():
        raise ModelError(f"{path}: takes {len(opened.get_inputs())} inputs; a model of one input is needed")
    name = opened.get_inputs()[0].name
    inside = facts.get("normalisation", "inside") == "inside"

    def run(samples: Array) -> Array:
        if inputs is not None and not inside:
            samples = normalise(torch.from_numpy(samples), inputs.mean, inputs.std).numpy()
        try:
            result: Any = opened.run(None, {name: samples})[0]
        except Exception as error:
            raise ModelError(f"{path}: onnxruntime cannot run it ({first_line(error)})") from error
        if not isinstance(result, np.ndarray) or result.shape[:1] != samples.shape[:1]:
            raise ModelError(f"{path}: does not give one output per sample")
        return result

    return Predictor(run, facts, task)


def _fitting(samples: Array, facts: Mapping[str, Any]) -> Array:
    """Samples of the shape and the type that the model was trained with, or an error that says what is wrong."""
    if not facts:
        return samples
    inputs = inputs_of(facts, Path("the model"))
    if samples.shape[1:] != inputs.shape:
        wanted = "×".join(map(str, inputs.shape))
        raise ModelError(f"samples of shape {samples.shape[1:]} were given; the model takes {wanted} each")
    if samples.dtype == inputs.dtype:
        return samples
    if inputs.dtype == "uint8":
        raise ModelError(f"samples of type {samples.dtype} were given; the model takes uint8, 0 to 255")
    if inputs.dtype == "int64":
        if samples.dtype.kind not in "ui":
            raise ModelError(f"samples of type {samples.dtype} were given; the model takes token ids, whole numbers")
        return samples.astype(np.int64)
    if samples.dtype.kind != "f":
        raise ModelError(f"samples of type {samples.dtype} were given; the model takes float32")
    return samples.astype(np.float32)


def _arrays(samples: Samples) -> tuple[Array, Array]:
    return samples.inputs.numpy(), samples.labels.numpy()


def _from_arrays(path: Path, task: Task) -> tuple[Array, Array | None]:
    try:
        held = {"inputs": read_npy(path)} if path.suffix == ".npy" else read_npz(path)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read as numpy arrays ({first_line(error)})") from error
    if "inputs" not in held or not held["inputs"].shape:
        names = shown_name(", ".join(held))
        raise ModelError(f"{path}: holds {names}; inputs, one per sample, (and labels, if known) is needed")
    labels = held.get("labels")
    if labels is None:
        return held["inputs"], None
    if not labels.dtype.isnative:
        labels = labels.astype(labels.dtype.newbyteorder("="))
    try:
        return held["inputs"], torch.from_numpy(labels).to(task.targets).numpy()
    except TypeError as error:
        raise ModelError(f"{path}: labels of type {labels.dtype} cannot be used") from error
