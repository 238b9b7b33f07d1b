"""T-FedAvg: clients train ternary networks (FTTQ), and trits travel in both directions.

Xu, Du, Jin, He, Cheng: Ternary Compression for Communication-Efficient Federated Learning, IEEE TNNLS 2020. The client
half is Algorithm 1 (FTTQ), the server half Algorithm 2: average the ternary models, quantize the average again, and
broadcast that (Strategy I) unless it judges more than a tolerance worse than the average itself (Strategy II).

`PRESETS["paper"]` is the algorithm as published. The defaults are what trained best so far (docs/recipe.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import torch
from torch import Tensor

from ternfed.aggregation.aggregation import Uploads
from ternfed.algorithms.algorithm import (
    DOWN,
    UP,
    About,
    Algorithm,
    Client,
    Helpers,
    Local,
    Network,
    Server,
    Strategy,
    Training,
    Weights,
    as_kind,
    dense_weights,
    split,
)
from ternfed.algorithms.statistics import Statistics, recounts, with_statistics
from ternfed.quantize.ternary import (
    FactorGradient,
    Quantizer,
    Rule,
    Scale,
    Ternary,
    client_factor,
    largest_size,
    normalise,
    requantize,
    start_factors,
    ternary_of,
)
from ternfed.wire import Kind, Message, Value, dense, trits_of


class Start(StrEnum):
    """Where w^q starts in each round."""

    MEAN = "mean"
    """The mean size of the received weights above the threshold."""
    ONE = "one"


class Latents(StrEnum):
    """The scale of the latent weights at the start of a round."""

    RECEIVED = "received"
    NORMALISED = "normalised"
    """θ / max|θ|: in [-1, 1], so that the rate at which trits flip does not depend on the layer's scale."""


class Judging(StrEnum):
    """Who says whether the quantized broadcast has collapsed."""

    SERVER = "server"
    """Data held out on the server: quantized against averaged model, before either is sent."""
    CLIENTS = "clients"
    """The clients' score of the broadcast they received, against the best they reported so far: a collapse is
    noticed one round later, and the next broadcast is in full precision."""
    OFF = "off"
    """Strategy I in every round."""


@dataclass(frozen=True)
class Settings:
    """T-FedAvg's settings."""

    rule: Rule = Rule.MEAN
    """Threshold rule on the client: Δ = factor · mean|θ| or factor · max|θ|."""
    factor: float = 0.7
    """Threshold factor on the client: T_k, or its lower end when randomised."""
    randomise: bool = False
    """Draw T_k anew for each client and round from [factor, factor + 0.01) (eq. tk)."""
    scale: Scale = Scale.TRAINED
    """w^q `trained`, a `pair` w_p and w_n trained, or the `mean` of the kept weights."""
    gradient: FactorGradient = FactorGradient.SCALED
    start: Start = Start.MEAN
    latents: Latents = Latents.NORMALISED
    clip: float | None = 1.0
    """Latent weights stay in [-clip, clip]; "none": they are not clipped."""
    latent_rate: float = 24.0
    """Latent weights learn at so many times the learning rate."""
    factor_rate: float | None = None
    """And the factors at so many times; none: 8 with SGD, 0.1 with Adam, whose steps do not shrink by themselves."""
    keep_latents: bool = False
    """A client keeps its latent weights between rounds where the broadcast agrees with its own trit."""
    plain_epochs: int | None = None
    """So many first local epochs train without quantization; none: three fifths of them, rounded down."""
    server_rule: Rule = Rule.MEAN
    server_factor: float = 0.7
    error_feedback: float = 1.0
    """So much of what a requantization lost is added to the next average: votes of a few clients add up over rounds."""
    ternary_start: bool = True
    """The first broadcast, the model before training, is quantized too."""
    full_at: tuple[float, ...] = ()
    """After these shares of the rounds one broadcast goes out in full precision: the clients see which trits their
    votes agree on and which are in doubt, and settle those."""
    judging: Judging = Judging.SERVER
    tolerance: float = 0.03
    """Strategy II when the quantized model is worse by more than this, in the metric's units (accuracy: 0 to 1)."""
    statistics: Statistics = Statistics.BEST
    dense: Kind = Kind.FLOAT32
    """The precision that layers which are not ternary travel in."""
    send_first: bool = True
    """False: the first layer is not transmitted, and stays as it was at the start on every side."""

    def __post_init__(self) -> None:
        Quantizer(self.rule, self.factor)
        Quantizer(self.server_rule, self.server_factor)
        for key in ("latent_rate", "factor_rate", "plain_epochs", "error_feedback", "tolerance"):
            if (getattr(self, key) or 0) < 0:
                raise ValueError(f"{key} = {getattr(self, key)}: at least 0 is needed")
        for share in self.full_at:
            if not 0 < share < 1:
                raise ValueError(f"full_at = {list(self.full_at)}: shares of the rounds between 0 and 1 are needed")
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"clip = {self.clip}: a number above 0 is needed, or none")


ABOUT = About(
    "T-FedAvg",
    sends_trits=True,
    depends_on_rounds=lambda settings: "its broadcasts by algorithm.full_at depend" if settings.full_at else None,
)

PRESETS: Mapping[str, Settings] = {
    "paper": Settings(
        factor=0.05,
        randomise=True,
        gradient=FactorGradient.PAPER,
        latents=Latents.RECEIVED,
        clip=None,
        latent_rate=1.0,
        factor_rate=1.0,
        plain_epochs=0,
        server_rule=Rule.MAX,
        server_factor=0.05,
        error_feedback=0.0,
        ternary_start=False,
        statistics=Statistics.AVERAGE,
    )
}


@dataclass(frozen=True, eq=False)
class ServerMemory:
    """What the server remembers."""

    lost: Weights = field(default_factory=dict)
    """What the last requantization lost of each ternary layer, in units of its scale."""
    best: Tensor | None = None
    """The best accuracy that clients have reported, where they judge."""


@dataclass(frozen=True, eq=False)
class ClientMemory:
    """What a client remembers, where it keeps its latent weights."""

    latents: Weights = field(default_factory=dict)
    codes: Weights = field(default_factory=dict)
    """The trits that it sent."""


def algorithm(network: Network, training: Training, settings: Settings) -> Algorithm:
    """T-FedAvg for a network."""
    names = network.ternary
    first = () if settings.send_first else network.parameters[:1]
    quantizer = Quantizer(settings.rule, settings.factor, settings.scale, settings.gradient)
    if not names:
        raise ValueError(
            "the model has no layer that can be ternary: T-FedAvg needs one between its first and its last"
        )
    plain_epochs = 3 * training.epochs // 5 if settings.plain_epochs is None else settings.plain_epochs
    if plain_epochs >= training.epochs:
        raise ValueError(f"plain_epochs = {plain_epochs}: fewer than the {training.epochs} local epochs is needed")
    if first and first[0] in names:
        raise ValueError("send_first = false: the first layer is ternary here; leave it out of the ternary layers")
    by_optimizer = 8.0 if training.optimizer.steps_follow_gradient else 0.1
    factor_rate = by_optimizer if settings.factor_rate is None else settings.factor_rate
    known = {name: network.weights()[name] for name in first}
    judged = network.task.metric.measure
    numbers = (*UP, judged.name) if settings.judging is Judging.CLIENTS else UP

    def threshold_of(client: Client) -> float:
        if not settings.randomise:
            return settings.factor
        return client_factor(client.index, client.count, client.draw("threshold"), settings.factor)

    def message_of(weights: Weights, ternary: Mapping[str, Value]) -> Message:
        rest = {name: tensor for name, tensor in weights.items() if name not in ternary and name not in first}
        return Message({**as_kind(rest, network, settings.dense), **ternary}, {})

    def start(received: Message, memory: ClientMemory, client: Client) -> tuple[Local, ClientMemory]:
        parameters, buffers = split({**dense_weights(received), **known}, network)
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
                agrees = reference(received)[name] == memory.codes[name]
                parameters[name] = torch.where(agrees, memory.latents[name], parameters[name])
        return Local(parameters, buffers, factors, local_quantizer.factor, scales), memory

    def finish(local: Local, received: Message, memory: ClientMemory, client: Client) -> tuple[Message, ClientMemory]:
        local_quantizer = replace(quantizer, factor=local.threshold)
        ternary = {
            name: ternary_of(local.weights[name], local.factors.get(name), local_quantizer, name) for name in names
        }
        if settings.keep_latents:
            latents = {name: local.weights[name] for name in names}
            memory = ClientMemory(latents, {name: ternary[name].codes for name in names})
        return message_of({**local.weights, **local.buffers}, ternary), memory

    def reference(broadcast: Message) -> dict[str, Tensor]:
        return {name: _codes(broadcast.tensors[name], name, settings) for name in names}

    def requantized(weights: Weights) -> dict[str, Ternary]:
        return {n: requantize(weights[n], settings.server_rule, settings.server_factor, n) for n in names}

    def opening(weights: Weights) -> Server:
        if not settings.ternary_start:
            return Server(weights, {}, ServerMemory(), Strategy.FULL)
        ternary = requantized(weights)
        dense = {name: value.dense() for name, value in ternary.items()}
        return Server({**weights, **dense}, ternary, ServerMemory(), Strategy.TERNARY)

    def update(server: Server, uploads: Uploads, helpers: Helpers) -> Server:
        if not uploads.average:
            return server
        average = {**uploads.average, **known}
        before: ServerMemory = server.memory
        wanted = {n: _with_lost(average[n], before.lost.get(n)) for n in names}
        ternary = requantized(wanted)
        dense = {name: value.dense() for name, value in ternary.items()}
        full = with_statistics(average, network, settings.statistics, helpers)
        quantized = with_statistics({**average, **dense}, network, settings.statistics, helpers)
        best = before.best
        if settings.judging is Judging.SERVER:
            collapsed = helpers.judge(quantized) < helpers.judge(full) - settings.tolerance
        elif settings.judging is Judging.CLIENTS:
            best = torch.tensor(-torch.inf) if best is None else best
            reached = judged.goodness(uploads.numbers[judged.name])
            collapsed = reached < float(best) - settings.tolerance
            best = torch.maximum(best, torch.tensor(reached, dtype=best.dtype))
        else:
            collapsed = False
        if collapsed or any(helpers.reaches_share(share) for share in settings.full_at):
            return Server(full, {}, ServerMemory(best=best), Strategy.FULL)
        lost = {}
        if settings.error_feedback:
            lost = {n: settings.error_feedback * _lost(wanted[n], ternary[n].codes) for n in names}
        return Server(quantized, ternary, ServerMemory(lost, best), Strategy.TERNARY)

    return Algorithm(
        name="tfedavg",
        training=replace(
            training,
            quantizer=quantizer,
            ternary=names,
            latent_rate=settings.latent_rate,
            factor_rate=factor_rate,
            clip=settings.clip,
            plain_epochs=plain_epochs,
            frozen=first,
        ),
        down=tuple(network.schema(some, DOWN, settings.dense, first) for some in (names, ())),
        up=(network.schema(names, numbers, settings.dense, first),),
        open=opening,
        broadcast=lambda server, held: message_of(server.weights, server.ternary),
        start=start,
        finish=finish,
        update=update,
        reference=reference,
        server_memory=ServerMemory,
        client_memory=ClientMemory,
        needs_held_out=settings.judging is Judging.SERVER or recounts(settings.statistics, network),
    )


def _codes(value: Value, name: str, settings: Settings) -> Tensor:
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
