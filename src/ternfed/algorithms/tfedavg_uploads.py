"""The two ways in which ternary layers reach T-FedAvg's server: as trits, or as differences to the trits received."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ternfed.algorithms.algorithm import Client, Local, Network, Training, Weights
from ternfed.algorithms.optimizers import Adam
from ternfed.algorithms.rest import changes_each
from ternfed.algorithms.tfedavg_settings import Latents, Settings, Start, Upload
from ternfed.quantize.ternary import (
    Quantizer,
    client_factor,
    largest_size,
    normalise,
    requantize,
    start_factors,
    ternary_of,
)
from ternfed.wire import Message, Value, dense, is_large, row_slices, trits_of


@dataclass(frozen=True, eq=False)
class ServerMemory:
    """What the server remembers."""

    lost: Weights = field(default_factory=dict)
    """What the last requantization lost of each ternary layer, in units of its scale."""
    best: Tensor | None = None
    """The best score that clients have reported, where they judge."""
    rest: Weights = field(default_factory=dict)
    """What is not ternary, unrounded, where it is sent on a grid."""
    latents: Weights = field(default_factory=dict)
    """The latent weights of the ternary layers, where clients send differences."""


@dataclass(frozen=True, eq=False)
class ClientMemory:
    """What a client remembers, where it keeps its latent weights."""

    latents: Weights = field(default_factory=dict)
    codes: Weights = field(default_factory=dict)
    """The trits that it sent."""


@dataclass(frozen=True)
class Way:
    """How the ternary layers of clients reach the server."""

    training: Training
    as_trits: tuple[str, ...]
    """Those that uploads hold as trits."""
    on_grid: tuple[str, ...]
    """Those that uploads hold on a grid."""
    start: Callable[[Weights, Weights, Message, ClientMemory, Client], Local]
    """What a client trains, from the parameters and buffers of the message it received."""
    finish: Callable[
        [Sequence[Local], Mapping[str, Tensor], Sequence[ClientMemory], Sequence[Client]],
        list[tuple[dict[str, Value], ClientMemory]],
    ]
    """What clients send of the ternary layers, given the weights they received where they send changes; what each of
    them remembers."""
    opened: Callable[[Weights], Weights]
    """The server's latent weights before the first round."""
    combined: Callable[[Weights, ServerMemory, bool], tuple[Weights, Weights, Weights]]
    """From the average: the model in full precision, the ternary layers to quantize, the server's latent weights.

    True: the average may be written over."""
    lost: Callable[[Tensor, Tensor], Tensor] | None = None
    """What trits do not tell of a layer, to be added to the next average; None: the latent weights have it."""
    guarded: bool = True
    """Whether the model in full precision is one that clients trained, so that Strategy II can fall back to it."""


FEWEST_STEPS = 100
"""With fewer quantized steps per round a client's latent weights hardly reach the threshold, and no trit flips."""


def suited(settings: Settings, network: Network, training: Training, samples: int) -> Settings:
    """The settings with a way up that suits clients with so many samples, where they leave it open."""
    if settings.upload is not Upload.AUTO or not network.has_statistics:
        return settings
    steps = math.ceil(samples / training.batch) * (training.epochs - _plain_epochs(training, settings))
    return replace(settings, upload=Upload.DIFFERENCES if steps < FEWEST_STEPS else Upload.TRITS)


def way_up(network: Network, training: Training, settings: Settings) -> Way:
    """The way that the settings ask for, or that suits the network."""
    differences = settings.upload is Upload.DIFFERENCES
    if settings.upload is Upload.AUTO:
        differences = not network.has_statistics
    return (_differences if differences else _trits)(network, training, settings)


def _plain_epochs(training: Training, settings: Settings) -> int:
    return 3 * training.epochs // 5 if settings.plain_epochs is None else settings.plain_epochs


def _trits(network: Network, training: Training, settings: Settings) -> Way:
    """Clients train ternary layers (FTTQ) and send their trits; the server averages what the trits stand for."""
    names = network.ternary
    quantizer = Quantizer(settings.rule, settings.factor, settings.scale, settings.gradient)
    plain_epochs = _plain_epochs(training, settings)
    if plain_epochs >= training.epochs:
        raise ValueError(f"plain_epochs = {plain_epochs}: fewer than the {training.epochs} local epochs is needed")
    by_optimizer = 1.0 if training.optimizer.steps_follow_gradient else 0.1

    def threshold_of(client: Client) -> float:
        if not settings.randomise:
            return settings.factor
        return client_factor(client.index, client.count, client.draw("threshold"), settings.factor)

    def start(parameters: Weights, buffers: Weights, received: Message, memory: ClientMemory, client: Client) -> Local:
        local_quantizer = replace(quantizer, factor=threshold_of(client))
        factors, scales = {}, {}
        for name in names:
            started = start_factors(parameters[name], local_quantizer)
            if started is not None:
                factors[name] = started if settings.start is Start.MEAN else torch.ones_like(started)
            if settings.latents is Latents.NORMALISED:
                if plain_epochs:
                    scales[name] = float(largest_size(parameters[name]))
                parameters[name] = normalise(parameters[name])
            if settings.keep_latents and name in memory.latents:
                agrees = codes_of(received.tensors[name], name, settings) == memory.codes[name]
                parameters[name] = torch.where(agrees, memory.latents[name], parameters[name])
        return Local(parameters, buffers, factors, local_quantizer.factor, scales)

    def ended(local: Local, memory: ClientMemory) -> tuple[dict[str, Value], ClientMemory]:
        local_quantizer = replace(quantizer, factor=local.threshold)
        ternary = {
            name: ternary_of(local.weights[name], local.factors.get(name), local_quantizer, name) for name in names
        }
        if settings.keep_latents:
            latents = {name: local.weights[name] for name in names}
            memory = ClientMemory(latents, {name: ternary[name].codes for name in names})
        return {**ternary}, memory

    def lost(wanted: Tensor, codes: Tensor) -> Tensor:
        return settings.error_feedback * _lost(wanted, codes)

    def combined(average: Weights, before: ServerMemory, spent: bool) -> tuple[Weights, Weights, Weights]:
        return average, {name: _with_lost(average[name], before.lost.get(name)) for name in names}, {}

    return Way(
        training=replace(
            training,
            quantizer=quantizer,
            ternary=names,
            latent_optimizer=None if settings.latent_adam is None else Adam(),
            latent_rate=settings.latent_rate if settings.latent_adam is None else settings.latent_adam,
            latent_decay=settings.latent_decay,
            factor_rate=by_optimizer if settings.factor_rate is None else settings.factor_rate,
            clip=settings.clip,
            plain_epochs=plain_epochs,
        ),
        as_trits=names,
        on_grid=(),
        start=start,
        finish=lambda locals_, before, memories, clients: [*map(ended, locals_, memories)],
        opened=lambda weights: {},
        combined=combined,
        lost=lost if settings.error_feedback else None,
    )


def _differences(network: Network, training: Training, settings: Settings) -> Way:
    """Clients train plain weights from the received trits and send how far they moved; the server has the latents."""
    names = network.ternary
    tensors = network.model.named_parameters()
    others = any(t.dim() > 1 for name, t in tensors if name in network.parameters and name not in names)
    rest_at = settings.settle_at_decay if others else None

    def finish(
        locals_: Sequence[Local],
        before: Mapping[str, Tensor],
        memories: Sequence[ClientMemory],
        clients: Sequence[Client],
    ) -> list[tuple[dict[str, Value], ClientMemory]]:
        layers = [{name: local.weights[name] for name in names} for local in locals_]
        bits = dict.fromkeys(names, settings.difference_bits)
        changed = changes_each(layers, before, bits, [client.draw("layers") for client in clients])
        return [({**own}, memory) for own, memory in zip(changed, memories, strict=True)]

    def combined(average: Weights, before: ServerMemory, spent: bool) -> tuple[Weights, Weights, Weights]:
        latents = {name: _moved(before.latents[name], settings.server_rate, average[name], spent) for name in names}
        return {**average, **latents}, latents, latents

    return Way(
        training=replace(training, ternary=names, latents_rest_at=rest_at or 0.0),
        as_trits=(),
        on_grid=names,
        start=lambda parameters, buffers, received, memory, client: Local(parameters, buffers),
        finish=finish,
        opened=lambda weights: {name: weights[name] for name in names},
        combined=combined,
        guarded=False,
    )


def _moved(latents: Tensor, rate: float, change: Tensor, over: bool = False) -> Tensor:
    """θ + rate · change, of large layers some rows at a time; `over`: and in place of the change."""
    if not is_large(latents):
        return latents + rate * change
    out = change if over else torch.empty_like(latents)
    for own in row_slices(latents):
        out[own] = latents[own] + rate * change[own]
    return out


def codes_of(value: Value, name: str, settings: Settings) -> Tensor:
    """The trits of a broadcast layer; of one in full precision, those that the server's rule would give it."""
    codes = trits_of(value)
    if codes is not None:
        return codes
    return requantize(dense(value).float(), settings.server_rule, settings.server_factor, name).codes


def _lost(wanted: Tensor, codes: Tensor) -> Tensor:
    """What trits do not tell of a layer: θ/s - I, where s is the mean size of the weights whose trit is not 0.

    In units of the scale, which goes on learning: left-overs of an older, larger one would outgrow the weights and
    flip trits that no client asks to flip.
    """
    scale = wanted[codes != 0].abs().mean() if bool(codes.any()) else torch.ones(())
    return wanted / scale - codes


def _with_lost(average: Tensor, lost: Tensor | None) -> Tensor:
    """θ + s · lost. Where all clients agree the average is ±s, so that s is its largest size.

    If no client changes a trit, this is the layer of the round before but for its scale, and the trits stay.
    """
    return average if lost is None else average + average.abs().max() * lost
