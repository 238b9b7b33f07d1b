"""What algorithms see of a user's model: its tensors by name, those that travel and those that may be ternary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256

import torch
from torch import Tensor, nn

from ternfed.quantize.choice import Choice, NoTernaryLayersError, ternary_names
from ternfed.quantize.choice import aliases as names_of
from ternfed.task import CLASSIFICATION, Task
from ternfed.wire import Kind, Message, Schema, Slot
from ternfed.wire.schema import flat_bytes

Weights = dict[str, Tensor]
"""Tensors of a model by name."""


@dataclass(frozen=True)
class Network:
    """A user's model as the algorithms see it: names, shapes, and which weights may be ternary."""

    model: nn.Module
    """The plain module. Its own tensors are only read, for shapes and for the first weights."""
    ternary: tuple[str, ...] = ()
    """Parameters that a ternary algorithm quantizes."""
    task: Task = CLASSIFICATION
    """What it learns."""

    frozen: tuple[str, ...] = ()
    """Parameters and buffers that are not trained: they do not travel, and every side has the same in its model."""

    @staticmethod
    def of(
        model: nn.Module,
        ternary: Choice | None = None,
        task: Task = CLASSIFICATION,
        *,
        frozen: tuple[str, ...] = (),
        sample: Tensor | None = None,
    ) -> Network:
        """The model, which it takes over, with the weights that are to be ternary and those that are not trained.

        Without a choice the inner layers are ternary, by their use of a `sample` of inputs; there may be none.
        """
        try:
            chosen = ternary_names(model, ternary, sample)
        except NoTernaryLayersError:
            if ternary not in (None, "inner", "all"):
                raise
            chosen = ()  # enough for an algorithm that quantizes nothing
        network = Network(model, tuple(name for name in chosen if name not in frozen), task, frozen)
        network.in_training(model)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name not in frozen)
        return network

    def without(self, names: Sequence[str]) -> Network:
        """The same with these frozen as well."""
        return replace(
            self,
            ternary=tuple(name for name in self.ternary if name not in names),
            frozen=(*self.frozen, *names),
        )

    def in_training(self, model: nn.Module) -> nn.Module:
        """The model in training mode, but for modules such as BatchNorm whose buffers are all frozen."""
        model.train()
        for prefix, module in model.named_modules():
            own = [f"{prefix}.{name}".removeprefix(".") for name in dict(module.named_buffers(recurse=False))]
            if own and all(name in self.frozen for name in own):
                module.training = False
        return model

    def frozen_tensors(self) -> Weights:
        """The tensors that are not trained, by name: no copies."""
        named = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        return {name: named[name].detach() for name in self.frozen}

    def copied(self, device: torch.device) -> nn.Module:
        """A copy of the model on a device, to be called with weights of others; on the CPU it shares its tensors."""
        named = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        # A model that is moved takes its tensors along.
        shared = (*self.frozen, *self._named) if device.type == "cpu" else ()
        return deepcopy(self.model, {id(named[name]): named[name] for name in shared}).to(device)

    @cached_property
    def _named(self) -> dict[str, Tensor]:
        """What is trained and travels: parameters, then buffers. Those that no file would hold belong to the code."""
        passing = {
            f"{prefix}.{name}".removeprefix(".")
            for prefix, module in self.model.named_modules()
            for name in module._non_persistent_buffers_set
        }
        buffers = {name: tensor for name, tensor in self.model.named_buffers() if name not in passing}
        named = {**dict(self.model.named_parameters()), **buffers}
        left_out = set(self.frozen)
        return {name: tensor for name, tensor in named.items() if name not in left_out}

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Those that are trained."""
        return tuple(name for name, _ in self.model.named_parameters() if name in self._named)

    @cached_property
    def buffers(self) -> tuple[str, ...]:
        """Tensors that are not trained but change in training: BatchNorm's statistics."""
        return tuple(name for name, _ in self.model.named_buffers() if name in self._named)

    @cached_property
    def floats(self) -> tuple[str, ...]:
        """Parameters and buffers that hold floats: all but counters."""
        return tuple(name for name, tensor in self._named.items() if tensor.is_floating_point())

    @cached_property
    def counters(self) -> tuple[str, ...]:
        """BatchNorm's counts of batches, where nothing is computed from them: they do not travel, and start from 0.

        Statistics that are plain means over all batches (no momentum) need theirs.
        """
        counts = (
            f"{name}.num_batches_tracked".removeprefix(".")
            for name, module in self.model.named_modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm)
            and module.num_batches_tracked is not None
            and module.momentum is not None
        )
        return tuple(name for name in counts if name in self._named)

    @cached_property
    def aliases(self) -> dict[str, str]:
        """Further names of tensors that several modules share: each with the name that it travels by."""
        return {name: first for first, names in names_of(self.model).items() for name in names[1:]}

    @cached_property
    def digest(self) -> str | None:
        """SHA-256 of what is frozen, by which two sides know that they have the same; None where nothing is."""
        if not self.frozen:
            return None
        state = sha256()
        named = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        for name in sorted(self.frozen):
            tensor = named[name]
            state.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
            state.update(flat_bytes(tensor).numpy().tobytes())
        return state.hexdigest()

    @property
    def summary(self) -> str:
        """Which weights are ternary, what share they are, and what is frozen: one line."""
        sizes = {name: tensor.numel() for name, tensor in self.model.named_parameters()}
        trained = sum(sizes[name] for name in self.parameters)
        share = sum(sizes[name] for name in self.ternary) / max(trained, 1)
        chosen = f"{', '.join(self.ternary)} ({100 * share:.1f}% of {trained:,} weights)" if self.ternary else "none"
        frozen = sum(sizes.values()) - trained
        return f"ternary: {chosen}" + (f"; frozen: {frozen:,} further weights" if frozen else "")

    @cached_property
    def has_statistics(self) -> bool:
        """Whether there are BatchNorm statistics to be averaged or recomputed."""
        return any(name.endswith("running_mean") for name in self.buffers)

    def weights(self) -> Weights:
        """A copy of the model's own tensors, parameters and buffers, without those that are frozen."""
        return {name: tensor.detach().clone() for name, tensor in self._named.items()}

    def without_counters(self, weights: Weights) -> Weights:
        """What travels of a model."""
        return {name: tensor for name, tensor in weights.items() if name not in self.counters}

    def with_counters(self, weights: Weights) -> Weights:
        """All that is trained, from what travelled."""
        return {**weights, **{name: torch.zeros((), dtype=torch.int64) for name in self.counters}}

    def schema(
        self,
        ternary: tuple[str, ...] = (),
        numbers: tuple[str, ...] = (),
        kind: Kind = Kind.FLOAT32,
        grid: tuple[str, ...] = (),
    ) -> Schema:
        """The schema of a message with the whole model in it: some slots as trits or on a grid, other floats as `kind`.

        All that is trained: every parameter and buffer but `counters` and what is frozen. On a grid, matrices and
        kernels have one step per row.
        """

        def kind_of(name: str, tensor: Tensor) -> Kind:
            if name in ternary:
                return Kind.TERNARY
            if name in grid:
                return Kind.GRID_ROWS if tensor.dim() > 1 else Kind.GRID
            return kind if tensor.is_floating_point() and name in self.parameters else Kind(str(tensor.dtype)[6:])

        slots = (
            Slot(name, tuple(tensor.shape), kind_of(name, tensor))
            for name, tensor in self._named.items()
            if name not in self.counters
        )
        return Schema(tuple(slots), numbers)


@torch.no_grad()
def put_into(model: nn.Module, weights: Weights) -> None:
    """Load tensors by name, each as the model has it: its dtype and device; what several modules share, once."""
    own = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}
    for name, tensor in weights.items():
        own[name].copy_(tensor)


def as_kind(weights: Weights, network: Network, kind: Kind) -> Weights:
    """What is sent of a model: parameters in this precision, buffers as they are, without counters."""
    dtype = {Kind.FLOAT32: torch.float32, Kind.BFLOAT16: torch.bfloat16, Kind.FLOAT16: torch.float16}[kind]
    return {
        name: tensor.to(dtype) if name in network.parameters else tensor
        for name, tensor in network.without_counters(weights).items()
    }


def dense_weights(message: Message) -> Weights:
    """The tensors of a message as a client or server computes with them: ternary made dense, floats as float32."""
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in message.weights.items()}


@dataclass(frozen=True, eq=False)
class OneByOne(Mapping[str, Tensor]):
    """The same tensors, each when it is asked for: made all at once they are a whole model more."""

    message: Message

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.message.weight(name)
        return tensor.float() if tensor.is_floating_point() else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.message.tensors)

    def __len__(self) -> int:
        return len(self.message.tensors)


def split(weights: Weights, network: Network) -> tuple[Weights, Weights]:
    """(parameters, buffers) of a model that travelled."""
    whole = network.with_counters(weights)
    return {name: whole[name] for name in network.parameters}, {name: whole[name] for name in network.buffers}
