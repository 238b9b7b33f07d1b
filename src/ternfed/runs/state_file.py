"""What of a run's state goes into its file: nothing twice. What follows from the rest is left out, and made again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ternfed.wire import dense
from ternfed.wire.forms import put_together
from ternfed.wire.schema import flat_bytes

MODEL = "server/weights/"
"""Tensors of a state under this prefix are the model; `last` and `best` hold them without it."""

SENT = "server/sent/"
"""And under this one, what of the model was broadcast in another form than plain floats, taken apart."""


def once(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state without what follows from the rest of it: a model that is broadcast as trits is kept as trits alone.

    Codes are kept in as few bytes as they need.
    """
    follows = {
        f"{MODEL}{name}"
        for name, value in put_together(under(tensors, SENT)).items()
        if f"{MODEL}{name}" in tensors and _same(dense(value), tensors[f"{MODEL}{name}"])
    }
    return {
        name: _narrow(tensor) if name.startswith(SENT) else tensor
        for name, tensor in tensors.items()
        if name not in follows
    }


def whole(kept: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
    """What `once` was given, by the names of all that there was; KeyError where one does not follow either."""
    wide = {name: _wide(name, tensor) for name, tensor in kept.items()}
    sent = put_together(under(wide, SENT)) if any(name not in wide for name in names) else {}
    missing = (name for name in names if name not in wide)
    return {**wide, **{name: dense(sent[name.removeprefix(MODEL)]) for name in missing}}


def _narrow(tensor: Tensor) -> Tensor:
    """Codes of a grid in the smallest whole numbers that hold them."""
    if tensor.dtype is not torch.int32 or not tensor.numel():
        return tensor
    low, high = (int(end) for end in torch.aminmax(tensor))
    kinds = (torch.iinfo(kind) for kind in (torch.int8, torch.int16))
    fitting = next((kind for kind in kinds if kind.min <= low <= high <= kind.max), None)
    return tensor if fitting is None else tensor.to(getattr(torch, fitting.dtype))


def _wide(name: str, tensor: Tensor) -> Tensor:
    """And back: codes of a grid are int32 everywhere else."""
    return tensor.to(torch.int32) if name.startswith(f"{SENT}grid/codes/") else tensor


def _same(first: Tensor, second: Tensor) -> bool:
    return first.dtype == second.dtype and torch.equal(flat_bytes(first), flat_bytes(second))


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
