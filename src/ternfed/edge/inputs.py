"""What goes into a model: one sample as it comes, and a network called with such samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ternfed.data.images import normalise
from ternfed.data.values import DataSet
from ternfed.files import shown_name


class ModelError(ValueError):
    """A model that cannot be exported, read or run; one sentence that says what and why."""


@dataclass(frozen=True)
class Inputs:
    """One sample as it comes, before normalisation."""

    shape: tuple[int, ...]
    dtype: Literal["uint8", "int64", "float32"] = "float32"
    """int64: token ids."""
    mean: tuple[float, ...] = (0.0,)
    """Per channel or for all, of inputs scaled to [0, 1]."""
    std: tuple[float, ...] = (1.0,)
    vocabulary: int | None = None
    """How many token ids there are."""

    @staticmethod
    def of(data: DataSet) -> Inputs:
        """Those of a data set."""
        samples = data.train.inputs
        shape = tuple(samples.shape[1:])
        if samples.dtype == torch.uint8:
            return Inputs(shape, "uint8", data.mean, data.std)
        if samples.dtype == torch.int64:
            return Inputs(shape, "int64", vocabulary=data.vocabulary)
        return Inputs(shape, "float32", data.mean, data.std)

    def example(self, batch: int) -> Tensor:
        """So many samples of this kind, always the same ones: (batch, *shape)."""
        generator = torch.Generator().manual_seed(batch)
        if self.dtype == "int64":  # an id that every vocabulary has
            return torch.zeros(batch, *self.shape, dtype=torch.int64)
        values = torch.rand(batch, *self.shape, generator=generator)
        return (255 * values).to(torch.uint8) if self.dtype == "uint8" else values


def call(network: nn.Module, inputs: Inputs, batch: int) -> Any:
    """What a network makes of so many example samples; `ModelError` names the layer in which it fails."""
    inside: list[tuple[str, nn.Module]] = []
    hooks = []
    for name, module in network.named_modules():
        hooks.append(module.register_forward_pre_hook(lambda m, _, name=name: inside.append((name, m))))
        hooks.append(module.register_forward_hook(lambda *_: inside.pop() and None))
    try:
        with torch.no_grad():
            return network(normalise(inputs.example(batch), inputs.mean, inputs.std))
    except Exception as error:  # a user's network may fail in any way
        name, module = inside[-1] if inside else ("", network)
        layer = f"layer {name} ({type(module).__name__})" if name else type(network).__name__
        raise ModelError(f"{layer} fails on {batch} samples of shape {inputs.shape}: {reason(error)}") from error
    finally:
        for handle in hooks:
            handle.remove()


def reason(error: BaseException) -> str:
    """The first line of the error that started it all, and its kind."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {first_line(error)}"


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return shown_name(lines[0]) if lines else "no message"
