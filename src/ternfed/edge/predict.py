"""Predictions from a model file: the same few values whether ONNX, `.tern` or safetensors."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ternfed.data.images import normalise
from ternfed.data.sets import NAMES, load
from ternfed.data.values import Samples
from ternfed.edge.inputs import Inputs, ModelError
from ternfed.edge.runtime import session
from ternfed.edge.trained import from_file
from ternfed.files import facts_of

Array = NDArray[Any]


@dataclass(frozen=True)
class Predictor:
    """An opened model file."""

    run: Callable[[Array], Array]
    """Samples as they come, (N, …), to logits (N, classes)."""
    facts: Mapping[str, Any]
    """What the file says about its model; empty for an ONNX file of another maker."""


@dataclass(frozen=True)
class Batch:
    """Some samples done."""

    classes: NDArray[np.int64]
    """The predicted class of each."""
    right: int | None
    """How many were; None without labels."""
    seconds: float
    """In the model alone, normalisation included."""
    done: int
    total: int


@dataclass(frozen=True)
class Prediction:
    """All samples done."""

    classes: NDArray[np.int64]
    accuracy: float | None
    milliseconds: float
    """Per sample."""


def open_model(path: str | Path, *, network: nn.Module | None = None, threads: int = 1) -> Predictor:
    """A `.onnx`, `.tern` or `.safetensors` file, ready to predict.

    The last two hold weights alone: their network is made from the settings in the file, or is the one given.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelError(f"{path}: there is no such file")
    if path.suffix == ".onnx":
        return _open_onnx(path, threads)
    if path.suffix not in (".tern", ".safetensors"):
        raise ModelError(f"{path}: .onnx, .tern or .safetensors is needed")
    model = from_file(path, network)
    inputs = model.inputs

    def run(samples: Array) -> Array:
        with torch.no_grad():
            logits = model.network(normalise(torch.from_numpy(samples), inputs.mean, inputs.std))
        result: Array = logits.numpy()
        return result

    return Predictor(run, model.facts())


def samples_for(facts: Mapping[str, Any], data: str | None = None) -> tuple[Array, NDArray[np.int64] | None]:
    """Samples to predict and their labels, None where there are none.

    `data` is a data set by name (its test samples), a folder that holds the model's own data set, a `.npy` file of
    samples, or a `.npz` file with `inputs` and, if known, `labels`. None is the test set the model was trained for.
    """
    own = ((facts.get("settings") or {}).get("data") or {}).get("dataset")
    if data is not None and Path(data).suffix in (".npy", ".npz"):
        return _from_arrays(Path(data))
    if data is not None and (data in NAMES or ":" in data):
        return _arrays(load(data).test)
    if own is None:
        raise ModelError("the model does not say what data it is for; name a data set, or a .npy or .npz file")
    if data is None:
        return _arrays(load(own).test)
    if not Path(data).is_dir():
        raise ModelError(f"{data}: {', '.join(NAMES)}, module:function, a folder, a .npy or a .npz file is allowed")
    return _arrays(load(own, Path(data)).test)


def predict(
    model: Predictor, samples: Array, labels: NDArray[np.int64] | None = None, *, batch: int = 64
) -> Iterator[Batch]:
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
        logits = model.run(part)
        seconds = time.perf_counter() - before
        classes = logits.argmax(1).astype(np.int64)
        right = None if labels is None else int((classes == labels[start : start + batch]).sum())
        yield Batch(classes, right, seconds, start + len(part), len(samples))


def summarise(batches: Iterable[Batch]) -> Prediction:
    """The whole of what `predict` gave."""
    every = list(batches)
    if not every:
        raise ModelError("there are no samples to predict")
    rights = [each.right for each in every if each.right is not None]
    count = every[-1].done
    return Prediction(
        classes=np.concatenate([each.classes for each in every]),
        accuracy=sum(rights) / count if len(rights) == len(every) else None,
        milliseconds=1e3 * sum(each.seconds for each in every) / count,
    )


def write_predictions(path: str | Path, result: Prediction, labels: NDArray[np.int64] | None = None) -> None:
    """One row per sample as CSV (index, class, label), or all of it as JSON, by the name of the file."""
    path = Path(path)
    classes = result.classes.tolist()
    known = None if labels is None else labels.tolist()
    if path.suffix == ".json":
        table = {"accuracy": result.accuracy, "milliseconds": result.milliseconds, "classes": classes}
        path.write_text(json.dumps(table if known is None else {**table, "labels": known}) + "\n", encoding="utf-8")
        return
    if path.suffix != ".csv":
        raise ModelError(f"{path}: predictions are written as .csv or .json")
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["index", "class"] if known is None else ["index", "class", "label"])
        for index, predicted in enumerate(classes):
            writer.writerow([index, predicted] if known is None else [index, predicted, known[index]])


def _open_onnx(path: Path, threads: int) -> Predictor:
    try:
        opened = session(str(path), threads)
    except ModelError:
        raise
    except Exception as error:  # onnxruntime's errors share no base class but this
        raise ModelError(f"{path}: onnxruntime cannot open it ({str(error).splitlines()[0]})") from error
    facts = facts_of(opened.get_modelmeta().custom_metadata_map)
    name = opened.get_inputs()[0].name
    inside = facts.get("normalisation", "inside") == "inside"
    inputs = Inputs.from_table(facts["inputs"]) if facts else None

    def run(samples: Array) -> Array:
        if inputs is not None and not inside:
            samples = normalise(torch.from_numpy(samples), inputs.mean, inputs.std).numpy()
        result: Array = opened.run(None, {name: samples})[0]
        return result

    return Predictor(run, facts)


def _fitting(samples: Array, facts: Mapping[str, Any]) -> Array:
    """Samples of the shape and the type that the model was trained with, or an error that says what is wrong."""
    if not facts:
        return samples
    inputs = Inputs.from_table(facts["inputs"])
    if samples.shape[1:] != inputs.shape:
        wanted = "×".join(map(str, inputs.shape))
        raise ModelError(f"samples of shape {samples.shape[1:]} were given; the model takes {wanted} each")
    if samples.dtype == inputs.dtype:
        return samples
    if inputs.dtype == "uint8":
        raise ModelError(f"samples of type {samples.dtype} were given; the model takes uint8, 0 to 255")
    if samples.dtype.kind != "f":
        raise ModelError(f"samples of type {samples.dtype} were given; the model takes float32")
    return samples.astype(np.float32)


def _arrays(samples: Samples) -> tuple[Array, NDArray[np.int64]]:
    return samples.inputs.numpy(), samples.labels.numpy()


def _from_arrays(path: Path) -> tuple[Array, NDArray[np.int64] | None]:
    try:
        held = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read as numpy arrays ({error})") from error
    if isinstance(held, np.ndarray):
        return held, None
    with held:
        if "inputs" not in held:
            raise ModelError(f"{path}: holds {', '.join(held.files)}; inputs (and labels, if known) is needed")
        return held["inputs"], held["labels"].astype(np.int64) if "labels" in held else None
