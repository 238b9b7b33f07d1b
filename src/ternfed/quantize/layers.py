"""Turns any `nn.Module` into one that trains ternary weights: prepare, train, freeze.

    ternarize_(model)                                   # prepare: chosen weights become latent weights + factors
    optimizer = SGD(parameter_groups(model, lr=0.1))    # train, with any optimizer and loop
    plain = freeze(model)                               # a plain module whose weights are scale × code

Built on `torch.nn.utils.parametrize`: the latent weight is `NAME.parametrizations.weight.original`, its factors are
`NAME.parametrizations.weight.0.factors`, and `state_dict` carries both; `weight_ih_l0` of an LSTM and others likewise.
A forward pass of the prepared model quantizes all its layers in a few kernels (`fused.py`); a layer called on its own
quantizes itself (`ternary.py`).
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ternfed.quantize.choice import Choice, NoTernaryLayersError, aliases, ternary_names
from ternfed.quantize.fused import Segments, quantize_all
from ternfed.quantize.ternary import Quantizer, Ternary, check_finite, quantize, start_factors, ternary_of

Model = TypeVar("Model", bound=nn.Module)


def ternarize_(
    model: Model, quantizer: Quantizer | None = None, where: Choice | None = None, sample: Tensor | None = None
) -> Model:
    """Prepare a model in place (and return it): every chosen weight becomes latent weights and factors.

    Chosen are the weights of all layers but the first and the last, as in the paper, by their use with a `sample` of
    the inputs; or those that `where` chooses, by patterns or `where(name, module)`. Weights keep their values as latent
    weights; factors start at the optimal scale.
    """
    quantizer = quantizer or Quantizer()
    chosen = _chosen(model, where, sample)
    for name in chosen:
        check_finite(model.get_parameter(name), name)
    orders = {name: tuple(_owner(model, name)._parameters) for name in chosen}
    for name in chosen:
        module, weight = _owner(model, name), model.get_parameter(name)
        made = _TernaryWeight(weight, quantizer, orders[name])
        parametrize.register_parametrization(module, name.rpartition(".")[2], made)
    for module in {_owner(model, name) for name in chosen}:
        if isinstance(module, nn.RNNBase):
            module.register_forward_hook(_forget_used, always_call=True)
    if len(chosen) > 1:  # one layer alone has nothing to be put together with
        together = _QuantizeTogether(_prepared(model))
        model.register_forward_pre_hook(together)
        model.register_forward_hook(together.clear, always_call=True)
    return model


def ternary_weights(model: nn.Module) -> dict[str, Ternary]:
    """The ternary weights of a prepared model by their name in the plain one (`conv2.weight`)."""
    return {
        layer.name: ternary_of(layer.latent, layer.weight.factors, layer.weight.quantizer, layer.name)
        for layer in _prepared(model)
    }


def freeze(model: Model) -> Model:
    """A copy of a prepared model as a plain module, whose ternary weights are exactly scale × code.

    Its `state_dict` has the names of the model before it was prepared, in their order.
    """
    weights, orders = ternary_weights(model), {layer.name: layer.weight.order for layer in _prepared(model)}
    plain = deepcopy(model)
    for module in plain.modules():
        _drop_hooks(module)
    for name, ternary in weights.items():
        module, own = _owner(plain, name), name.rpartition(".")[2]
        # Removal edits the class that parametrization made, which deepcopy shares with the original: take a copy first.
        shared = type(module)
        module.__class__ = type(shared.__name__, shared.__bases__, dict(vars(shared)))
        parametrize.remove_parametrizations(module, own, leave_parametrized=False)
        plain.get_parameter(name).data.copy_(ternary.dense())
    for name, order in orders.items():
        _sort_parameters(_owner(plain, name), order)
    take_back(plain)
    return plain


def is_prepared(model: nn.Module) -> bool:
    """Whether `ternarize_` has prepared some layer of it."""
    return bool(_found(model))


def parameter_groups(
    model: nn.Module, lr: float, *, latents: float = 1.0, factors: float = 1.0, **options: Any
) -> list[dict[str, Any]]:
    """Optimizer groups `latents`, `factors` and `others`; the first two learn at so many times `lr`.

    Latent weights move only by flipping trits, and the rate of flips is what has to be controlled; factors scale a
    whole layer. So each wants a rate of its own (docs/LOG.md). Further options go into every group.
    """
    latent_weights = [layer.latent for layer in _prepared(model)]
    layer_factors = [layer.weight.factors for layer in _prepared(model) if layer.weight.factors is not None]
    special = {id(p) for p in (*latent_weights, *layer_factors)}
    others = [p for p in model.parameters() if id(p) not in special]
    groups = (
        {"name": "latents", "params": latent_weights, "lr": lr * latents},
        {"name": "factors", "params": layer_factors, "lr": lr * factors},
        {"name": "others", "params": others, "lr": lr},
    )
    return [{**group, **options} for group in groups if group["params"]]


class _TernaryWeight(nn.Module):
    """The parametrization of one weight: latent weights in, ternary weights out."""

    order: tuple[str, ...] = ()
    """The parameters of the layer before it was prepared."""

    def __init__(self, latent: Tensor, quantizer: Quantizer, order: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.quantizer = quantizer
        self.order = order
        factors = start_factors(latent.detach(), quantizer)
        self.factors = None if factors is None else nn.Parameter(factors)
        self.ready: Tensor | None = None

    def forward(self, latent: Tensor) -> Tensor:
        # What was made ready for autocast does not suit a layer that the model excludes from it.
        if self.ready is None or self.ready.dtype != (_autocast_dtype(latent) or latent.dtype):
            return quantize(latent, self.factors, self.quantizer)
        return self.ready

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight


class _Layer(NamedTuple):
    """One prepared weight: its name in the plain model, and where its latent weights and factors are."""

    name: str
    entry: parametrize.ParametrizationList
    weight: _TernaryWeight

    @property
    def latent(self) -> Tensor:
        return self.entry.original


class _QuantizeTogether:
    """Hooks of the prepared model: quantize all its layers before a forward pass, forget the result after it.

    An object rather than a closure, so that `deepcopy` of the model makes it point at the copy's layers.
    """

    def __init__(self, layers: list[_Layer]) -> None:
        self.layers = layers
        self.segments: Segments | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without the segments: a copy or a saved model makes its own."""
        return {"layers": self.layers, "segments": None}

    def __call__(self, _model: nn.Module, _inputs: object) -> None:
        latents = [layer.latent for layer in self.layers]
        factors = [layer.weight.factors for layer in self.layers if layer.weight.factors is not None]
        if self.segments is None or self.segments.device != latents[0].device:
            self.segments = Segments.of(latents)
        quantizer, dtype = self.layers[0].weight.quantizer, _autocast_dtype(latents[0])
        weights = quantize_all(latents, factors, quantizer, dtype=dtype, segments=self.segments)
        for layer, weight in zip(self.layers, weights, strict=True):
            layer.weight.ready = weight

    def clear(self, _model: nn.Module, _inputs: object, _output: object) -> None:
        for layer in self.layers:
            layer.weight.ready = None


def take_back(model: nn.Module) -> None:
    """Let recurrent layers, which keep a list of the weights they were last called with, have their own again."""
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module._init_flat_weights()


def _forget_used(module: nn.RNNBase, _inputs: object, _output: object) -> None:
    """The same, as long as its weights are made anew at each call: results of autograd cannot be copied or saved."""
    module._flat_weights = [None] * len(module._flat_weights)


def _autocast_dtype(like: Tensor) -> torch.dtype | None:
    """What autocast, where it is on, would cast a weight to: done for all layers at once, it costs one kernel."""
    device = like.device.type
    active = torch.is_autocast_enabled(device) and like.dtype != torch.float64  # which autocast leaves alone
    return torch.get_autocast_dtype(device) if active else None


def _chosen(model: nn.Module, where: Choice | None, sample: Tensor | None) -> tuple[str, ...]:
    prepared = _found(model)
    if prepared:
        raise ValueError(f"{prepared[0].name} is parametrized already; a model is prepared once")
    chosen, shared = ternary_names(model, where, sample), aliases(model)
    for name in chosen:
        if ".parametrizations." in f".{name}":
            raise ValueError(f"{name} belongs to a parametrization; leave it out")
        if len(shared[name]) > 1:
            first, second = shared[name][:2]
            raise ValueError(f"{first} and {second} are one shared parameter; leave it out")
    return chosen


def _owner(model: nn.Module, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])


def _prepared(model: nn.Module) -> list[_Layer]:
    layers = _found(model)
    if not layers:
        raise NoTernaryLayersError(f"{type(model).__name__} has no ternary layer; ternarize_(model) prepares it")
    return layers


def _found(model: nn.Module) -> list[_Layer]:
    layers = []
    for name, module in model.named_modules():
        if parametrize.is_parametrized(module):
            for own, entry in cast(nn.ModuleDict, module.parametrizations).items():
                if isinstance(entry, parametrize.ParametrizationList) and isinstance(entry[0], _TernaryWeight):
                    layers.append(_Layer(f"{name}.{own}".removeprefix("."), entry, entry[0]))
    return layers


def _sort_parameters(module: nn.Module, order: tuple[str, ...]) -> None:
    """Those of these names first, in this order: a parameter that was taken out and put back is the last."""
    own = module._parameters
    for name in sorted(own, key=lambda each: order.index(each) if each in order else len(order)):
        own[name] = own.pop(name)


def _drop_hooks(module: nn.Module) -> None:
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for key, hook in list(hooks.items()):
            if hook is _forget_used or isinstance(getattr(hook, "__self__", hook), _QuantizeTogether):
                del hooks[key]
