"""Which tensors of a user's module are meant: by pattern, and those that can be ternary.

Every float parameter with two dimensions or more can be: matrices, kernels, embeddings, the weights of LSTM and GRU
(`weight_ih_l0`), those of attention (`in_proj_weight`). A tensor that several layers share goes by its first name, and
is found by any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Literal

import torch
from torch import Tensor, nn

Predicate = Callable[[str, nn.Module], bool]
Choice = Literal["inner", "all"] | Sequence[str] | Predicate
"""`inner`: every layer but the first and the last. `all`: whatever can be ternary. Patterns with `*`, `!` before those
that leave out. Or a function of a module's name and the module."""

Layer = (
    nn.Linear
    | nn.Bilinear
    | nn.modules.conv._ConvNd
    | nn.Embedding
    | nn.EmbeddingBag
    | nn.RNNBase
    | nn.RNNCellBase
    | nn.MultiheadAttention
)
"""What counts as a layer, where the first and the last are told apart."""


class NoTernaryLayersError(ValueError):
    """The model has no layer to make ternary, or none that is."""


class NoMatch(ValueError):
    """A pattern that chooses nothing."""

    def __init__(self, pattern: str, reason: str) -> None:
        super().__init__(f"{pattern}: {reason}")
        self.pattern, self.reason = pattern, reason


def aliases(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """All names of every parameter and buffer, by the first of them."""
    first: dict[int, str] = {}
    names: dict[str, tuple[str, ...]] = {}
    for named in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)):
        for name, tensor in named:
            own = first.setdefault(id(tensor), name)
            names[own] = (*names.get(own, ()), name)
    return names


def matching(patterns: Sequence[str], names: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """The tensors that the patterns choose, in order; `!` leaves out, and with nothing but those, from all there are.

    A pattern stands for a tensor's name, or for a module: then for all that is in it.
    """
    wanted, unwanted = (
        {tensor for pattern in patterns if pattern.startswith("!") == out for tensor in _hits(pattern, names)}
        for out in (False, True)
    )
    from_all = all(pattern.startswith("!") for pattern in patterns)
    return tuple(name for name in names if (from_all or name in wanted) and name not in unwanted)


def untrained(model: nn.Module, trainable: Sequence[str]) -> tuple[str, ...]:
    """The parameters and buffers that these patterns do not choose."""
    names = aliases(model)
    chosen = set(matching(trainable, names))
    if chosen.isdisjoint(name for name, _ in model.named_parameters()):
        raise NoMatch(trainable[-1], "leaves no parameter to be trained")
    return tuple(name for name in names if name not in chosen)


def without_gradient(model: nn.Module) -> tuple[str, ...]:
    """The parameters that are not trained by their own account: `requires_grad` is false."""
    return tuple(name for name, parameter in model.named_parameters() if not parameter.requires_grad)


def can_be_ternary(model: nn.Module) -> tuple[str, ...]:
    """Every float parameter with two dimensions or more."""
    return tuple(n for n, p in model.named_parameters() if p.is_floating_point() and p.dim() > 1 and p.numel())


def ternary_names(model: nn.Module, choice: Choice | None = None, sample: Tensor | None = None) -> tuple[str, ...]:
    """The parameters that a choice makes ternary; without one, `inner`.

    The first and the last layer are those that a forward pass of `sample` (N, …) uses first and last; without a sample,
    those that are registered so.
    """
    possible = can_be_ternary(model)
    if choice is None or choice == "inner":
        chosen = _inner(model, possible, sample)
        hint = f"it has {len(_layers(model))} layers, and the first, the last and embeddings stay in full precision"
    elif choice == "all":
        chosen, hint = possible, "it has no matrix and no kernel"
    elif callable(choice):
        modules = [name for name, module in model.named_modules() if choice(name, module)]
        chosen = tuple(name for name in possible if name.rpartition(".")[0] in modules)
        hint = f"the predicate chose none of its {len(possible)} matrices and kernels"
    else:
        chosen = _by_pattern(model, possible, (choice,) if isinstance(choice, str) else choice)
        hint = "the patterns leave nothing over"
    if not chosen:
        raise NoTernaryLayersError(f"{type(model).__name__} has no layer to make ternary: {hint}")
    return chosen


def _by_pattern(model: nn.Module, possible: tuple[str, ...], patterns: Sequence[str]) -> tuple[str, ...]:
    names = aliases(model)
    for pattern in patterns:
        hits = _hits(pattern, names)
        if not pattern.startswith("!") and not any(name in possible for name in hits):
            reason = f"matches only {', '.join(hits[:3])}; what is ternary has at least two dimensions"
            raise NoMatch(pattern, reason)
    chosen = matching(patterns, names)
    return tuple(name for name in possible if name in chosen)


def _hits(pattern: str, names: Mapping[str, Iterable[str]]) -> list[str]:
    """What one pattern stands for; `NoMatch` where that is nothing."""
    wanted = pattern.removeprefix("!")
    hits = [first for first, own in names.items() if any(fnmatchcase(p, wanted) for n in own for p in _places(n))]
    if hits:
        return hits
    places = list(dict.fromkeys(place for own in names.values() for name in own for place in _places(name)))
    near = get_close_matches(wanted.replace("*", ""), places, n=1, cutoff=0.5)
    modules = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
    shown = f"{', '.join(modules[:12])}{', …' if len(modules) > 12 else ''}"
    hint = f"did you mean {near[0]}?" if near else f"there is {shown}"
    raise NoMatch(pattern, f"matches no layer and no parameter; {hint}")


def _places(name: str) -> list[str]:
    """A tensor's name and those of the modules that it is in: `a.b.weight`, `a.b`, `a`."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def _layers(model: nn.Module) -> dict[str, nn.Module]:
    """Layers with weights that can be ternary, in the order in which they are registered."""
    possible = set(map(id, (p for p in model.parameters() if p.dim() > 1)))
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, Layer) and any(id(p) in possible for p in module.parameters(recurse=False))
    }


def _inner(model: nn.Module, possible: tuple[str, ...], sample: Tensor | None) -> tuple[str, ...]:
    """The weights of layers but those of the first and of the last, and of embeddings, which are first ones too."""
    layers = _layers(model)
    used = (_used(model, sample) if sample is not None else []) or list(layers)
    if not used:
        return ()
    outer = {used[0], used[-1], *(n for n, m in layers.items() if isinstance(m, nn.Embedding | nn.EmbeddingBag))}
    left_out = {id(parameter) for name in outer for parameter in layers[name].parameters()}
    own = {id(parameter) for module in layers.values() for parameter in module.parameters(recurse=False)}
    named = dict(model.named_parameters())
    return tuple(name for name in possible if id(named[name]) in own - left_out)


def _used(model: nn.Module, sample: Tensor) -> list[str]:
    """The layers in the order in which a forward pass calls them; none where the model cannot take the sample."""
    if not len(sample) or any(parameter.is_meta for parameter in model.parameters()):
        return []
    shared: dict[int, object] = {id(parameter): parameter for parameter in model.parameters()}
    copy, calls = deepcopy(model, shared).eval(), list[str]()
    for name in _layers(model):
        copy.get_submodule(name).register_forward_pre_hook(lambda _module, _inputs, name=name: calls.append(name))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            copy(sample[:1])
    except Exception:  # whatever is wrong, training says it
        return []
    return calls
