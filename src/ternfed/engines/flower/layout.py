"""What a user's arrays are called, and how each travels: any state_dict as the tensors of a `Network`, and back.

Floats are compressed. Whole numbers travel as they are, and so does what only looks like a float: arrays that hold
infinities, such as attention masks, and dtypes that the wire does not know travel as their bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ternfed.algorithms.algorithm import Network, Weights
from ternfed.quantize.choice import Choice, NoTernaryLayersError, matching
from ternfed.quantize.ternary import NonFiniteError
from ternfed.wire import WireError
from ternfed.wire.schema import DTYPES

State = dict[str, NDArray[Any]]
"""Arrays by name, in the order in which the user has them."""

_KNOWN = {str(dtype)[6:] for dtype in DTYPES.values() if not dtype.is_floating_point}
_STATISTICS = ("running_mean", "running_var")
MOST_TEXT = 1 << 24
"""No layout is longer: a hundred thousand arrays have less."""


class WrongArrays(WireError):
    """Arrays with other names, shapes or dtypes than the model's."""


@dataclass(frozen=True)
class Entry:
    """One array of a model."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As NumPy calls it."""
    lossy: bool
    """Whether it is compressed; else it arrives bit for bit."""

    @property
    def is_bytes(self) -> bool:
        """Whether it travels as its bytes."""
        return not self.lossy and self.dtype not in _KNOWN

    def check(self, array: NDArray[Any]) -> None:
        """Refuse another shape."""
        if tuple(array.shape) != self.shape:
            raise WrongArrays(f"{self.name}: shape {tuple(array.shape)}, the model has {self.shape}")


@dataclass(frozen=True)
class Layout:
    """The arrays of a model in order."""

    entries: tuple[Entry, ...]
    ternary: tuple[int, ...] = ()
    """The places of those that T-FedAvg makes ternary."""

    @staticmethod
    def of(state: State) -> Layout:
        """The layout of some arrays: floats that are all finite are compressed."""
        return Layout(tuple(_entry(name, array) for name, array in state.items()))

    @staticmethod
    def from_json(text: str) -> Layout:
        """What `to_json` wrote; WrongArrays where it cannot have."""
        try:
            entries, ternary = json.loads(text)
            made = tuple(Entry(str(n), tuple(map(int, s)), np.dtype(d).name, bool(lossy)) for n, s, d, lossy in entries)
            layout = Layout(made, tuple(map(int, ternary)))
        except (ValueError, TypeError) as error:
            raise WrongArrays(f"a layout that is none: {error}") from error
        if any(length < 0 for entry in made for length in entry.shape):
            raise WrongArrays("a layout with a negative length")
        if any(not 0 <= place < len(made) or not made[place].lossy for place in layout.ternary):
            raise WrongArrays("a layout whose ternary arrays are none of its floats")
        return layout

    def to_json(self) -> str:
        """As text, for whoever has no model to take it from."""
        entries = [[entry.name, list(entry.shape), entry.dtype, entry.lossy] for entry in self.entries]
        return json.dumps([entries, list(self.ternary)], separators=(",", ":"))

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries)

    @cached_property
    def size(self) -> int:
        """Bytes of the same arrays where each number is a float32."""
        return 4 * sum(prod(entry.shape) for entry in self.entries)

    def fits(self, names: Any) -> bool:
        """Whether these are the names of the model's arrays, in any order."""
        return set(names) == set(self.names)

    @cached_property
    def _keys(self) -> tuple[str, ...]:
        """Names for the network's tensors: the user's may be anything, and BatchNorm's statistics must be known."""
        endings = (next((end for end in _STATISTICS if entry.name.endswith(end)), "") for entry in self.entries)
        return tuple(f"t{place}{end and '_'}{end}" for place, end in enumerate(endings))

    @cached_property
    def network(self) -> Network:
        """The arrays as algorithms see them; no layer is known, only tensors."""
        module = nn.Module()
        for entry, key in zip(self.entries, self._keys, strict=True):
            if entry.lossy and not key.endswith(_STATISTICS):
                module.register_parameter(key, nn.Parameter(torch.zeros(entry.shape)))
            elif entry.lossy:
                module.register_buffer(key, torch.zeros(entry.shape))
            elif entry.is_bytes:
                length = prod(entry.shape) * np.dtype(entry.dtype).itemsize
                module.register_buffer(key, torch.zeros(length, dtype=torch.uint8))
            else:
                module.register_buffer(key, torch.zeros(entry.shape, dtype=getattr(torch, entry.dtype)))
        return Network(module, tuple(self._keys[place] for place in self.ternary))

    def tensors(self, state: Mapping[str, NDArray[Any]]) -> Weights:
        """Arrays as the network's tensors; floats of any precision become float32, whole numbers those of the model."""
        if not self.fits(state):
            missing, more = sorted(set(self.names) - set(state)), sorted(set(state) - set(self.names))
            raise WrongArrays(f"arrays missing: {missing[:3]}; not in the model: {more[:3]}")
        return {key: _tensor(entry, state[entry.name]) for entry, key in zip(self.entries, self._keys, strict=True)}

    def state(self, weights: Weights) -> State:
        """The network's tensors as the user's arrays: names, order, shapes and dtypes."""
        pairs = zip(self.entries, self._keys, strict=True)
        return {entry.name: _array(entry, weights[key]) for entry, key in pairs}

    @cached_property
    def lossless(self) -> tuple[str, ...]:
        """The names of the arrays that arrive bit for bit."""
        return tuple(entry.name for entry in self.entries if not entry.lossy)

    @cached_property
    def keys(self) -> dict[str, str]:
        """The network's name of each array."""
        return dict(zip(self.names, self._keys, strict=True))


def matrices(layout: Layout, where: Choice | None = None) -> tuple[int, ...]:
    """The places of the arrays to make ternary: those that patterns of names choose, or the inner ones.

    Inner are all compressed arrays with at least two dimensions but the first and the last.
    """
    found = [place for place, entry in enumerate(layout.entries) if entry.lossy and len(entry.shape) > 1]
    if where is None or where == "inner":
        chosen = found[1:-1]
    elif where == "all":
        chosen = found
    elif callable(where):
        raise TypeError("where: names or patterns of arrays are needed; there is no module to ask")
    else:
        names = {layout.names[place]: (layout.names[place],) for place in found}
        wanted = matching((where,) if isinstance(where, str) else tuple(where), names)
        chosen = [place for place in found if layout.names[place] in wanted]
    if not chosen:
        raise NoTernaryLayersError(
            "the model has no array to make ternary: one between its first and its last is needed"
        )
    return tuple(chosen)


def _entry(name: str, array: NDArray[Any]) -> Entry:
    lossy = array.dtype.kind == "f" and array.dtype.itemsize <= 8 and bool(np.isfinite(array).all())
    if lossy and array.size:
        lossy = float(np.abs(array).max()) < 2.0**100  # what a grid can hold
    return Entry(name, tuple(array.shape), array.dtype.name, lossy)


def _tensor(entry: Entry, array: NDArray[Any]) -> Tensor:
    entry.check(array)
    if entry.lossy:
        plain = torch.from_numpy(np.array(array, np.float32, order="C"))
        if not bool(torch.isfinite(plain).all()):
            raise NonFiniteError(f"{entry.name} holds values that are not finite")
        return plain
    dtype = np.dtype(entry.dtype)
    if array.dtype != dtype:
        whole = dtype.kind in "iu" and array.dtype.kind == "f"
        array = (np.rint(array) if whole else array).astype(dtype)
    if entry.is_bytes:
        return torch.from_numpy(np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8).copy())
    return torch.from_numpy(np.array(array, order="C"))


def _array(entry: Entry, tensor: Tensor) -> NDArray[Any]:
    plain = tensor.detach().cpu().contiguous().numpy()
    if entry.is_bytes:
        return np.frombuffer(plain.tobytes(), np.dtype(entry.dtype)).reshape(entry.shape).copy()
    if entry.lossy and entry.dtype == "float16":
        largest = np.finfo(np.float16).max
        plain = plain.clip(-largest, largest)
    return plain.astype(entry.dtype)
