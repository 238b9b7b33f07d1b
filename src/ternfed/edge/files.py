"""A trained model as a file, and what a file says about itself."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from ternfed.edge.forms import PRODUCT_FROM
from ternfed.edge.graph import to_onnx
from ternfed.edge.inputs import ModelError
from ternfed.edge.trained import Trained, open_trained, read_weights
from ternfed.files import facts_of, metadata, save_tensors, write_atomically
from ternfed.quantize.grid import recognise
from ternfed.wire import Value, describe
from ternfed.wire.tern import tern_bytes

SUFFIXES = (".onnx", ".tern", ".safetensors")


@dataclass(frozen=True)
class Exported:
    """A file that was written."""

    path: Path
    bytes: int
    float32_bytes: int
    """What all its tensors take as plain floats."""
    ternary: tuple[str, ...]
    kept_float: Mapping[str, str]
    """Weights that were meant to be ternary and are not, and why."""
    digest: str


@dataclass(frozen=True)
class Tensorline:
    """One tensor of a file."""

    name: str
    shape: tuple[int, ...]
    kind: str
    bytes: int


@dataclass(frozen=True)
class Inspection:
    """What a file holds and says about itself."""

    bytes: int
    rows: tuple[Tensorline, ...]
    facts: Mapping[str, Any]
    """`Trained.facts`: settings, accuracy, round, digest of the weights, inputs, ternary and float weights."""


def export(model: Trained, to: str | Path, *, normalised: bool = True, exact: bool = False) -> Exported:
    """Write a model as `.onnx`, `.tern` or `.safetensors`, by the name of the file; whole or not at all.

    For ONNX, `normalised` puts the normalisation of the inputs into the graph, and `exact` keeps large matrices from
    the 2-bit product, whose activations are rounded to int8. The other two formats hold weights alone, and say in their
    metadata what normalisation they need.
    """
    path = Path(to)
    if path.suffix not in SUFFIXES:
        raise ModelError(f"{path}: a name that ends in {', '.join(SUFFIXES)} is needed")
    if not path.parent.is_dir():
        raise ModelError(f"{path.parent}: there is no such folder")
    facts = model.facts()
    if path.suffix == ".onnx":
        least = sys.maxsize if exact else PRODUCT_FROM
        data = to_onnx(model, normalised=normalised, product_from=least).SerializeToString()
    else:
        data = _tern(model, facts) if path.suffix == ".tern" else save_tensors(model.weights, facts)
    write_atomically(path, data, lasting=False)
    floats = sum(4 * tensor.numel() for tensor in model.weights.values())
    return Exported(path, len(data), floats, tuple(model.ternary), dict(model.kept_float), facts["digest"])


def export_from(
    source: str | Path,
    to: str | Path,
    *,
    normalised: bool = True,
    exact: bool = False,
    which: Literal["best", "last"] = "best",
    data_folder: Path | None = None,
    allow: Collection[str] = (),
) -> Exported:
    """What `ternfed export` does: `export` of a run folder, or of a `.tern` or `.safetensors` file that it wrote."""
    model = open_trained(source, which=which, data_folder=data_folder, allow=allow)
    return export(model, to, normalised=normalised, exact=exact)


def inspect(path: str | Path) -> Inspection:
    """What `ternfed inspect` shows of a `.onnx`, `.tern` or `.safetensors` file."""
    path = Path(path)
    if not path.is_file() or path.suffix not in SUFFIXES:
        raise ModelError(f"{path}: an existing file that ends in {', '.join(SUFFIXES)} is needed")
    size = path.stat().st_size
    if path.suffix == ".onnx":
        return _inspect_onnx(path, size)
    if path.suffix == ".tern":
        summary = describe(path)
        rows = tuple(
            Tensorline(row.name, row.shape, row.kind.value, round(row.bits * prod(row.shape) / 8))
            for row in summary.rows
        )
        return Inspection(size, rows, facts_of(summary.metadata))
    weights, facts = read_weights(path)
    return Inspection(size, tuple(_line(name, tensor) for name, tensor in weights.items()), facts)


def _tern(model: Trained, facts: Mapping[str, Any]) -> bytes:
    """What is not ternary but lies on a grid, since broadcasts did, is whole numbers there, where that is smaller."""
    tensors: dict[str, Value] = {**model.weights, **model.ternary}
    others = {name: recognise(tensor) for name, tensor in model.weights.items() if name not in model.ternary}
    packed = {name: grid for name, grid in others.items() if grid is not None}
    ways = [tensors, {**tensors, **packed}] if packed else [tensors]
    return min((tern_bytes(way, metadata(facts)) for way in ways), key=len)


def _line(name: str, tensor: Tensor) -> Tensorline:
    kind = str(tensor.dtype).removeprefix("torch.")
    return Tensorline(name, tuple(tensor.shape), kind, tensor.numel() * tensor.element_size())


def _inspect_onnx(path: Path, size: int) -> Inspection:
    try:
        import onnx
    except ImportError as error:
        raise ModelError("onnx is missing; install the extra: pip install 'ternfed[edge]'") from error
    try:
        proto = onnx.load(str(path))
    except Exception as error:  # protobuf's own error, from whichever of its implementations is in use
        raise ModelError(f"{path}: is no ONNX file ({error})") from error
    rows = tuple(
        Tensorline(each.name, tuple(each.dims), onnx.TensorProto.DataType.Name(each.data_type).lower(), each.ByteSize())
        for each in proto.graph.initializer
    )
    return Inspection(size, rows, facts_of({each.key: each.value for each in proto.metadata_props}))
