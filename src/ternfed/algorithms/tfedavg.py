"""T-FedAvg: clients train ternary networks (FTTQ), and trits travel in both directions.

Xu, Du, Jin, He, Cheng: Ternary Compression for Communication-Efficient Federated Learning, IEEE TNNLS 2020. The client
half is Algorithm 1 (FTTQ), the server half Algorithm 2: average the ternary models, quantize the average again, and
broadcast that (Strategy I) unless it judges more than a tolerance worse than the average itself (Strategy II).

Beyond the paper: what is not ternary travels on a grid (`rest.py`), and clients may send differences instead of trits
(`tfedavg_uploads.py`). `PRESETS["paper"]` is the algorithm as published; docs/recipe.md says what the defaults are for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import torch
from torch import Tensor

from ternfed.aggregation.aggregation import Uploads
from ternfed.algorithms.algorithm import (
    DOWN,
    UP,
    About,
    Algorithm,
    Client,
    FinishTogether,
    Helpers,
    Local,
    Network,
    Server,
    Strategy,
    Training,
    Weights,
)
from ternfed.algorithms.network import OneByOne, as_kind, dense_weights, split
from ternfed.algorithms.rest import FINEST, added, bits_of, changes_each, rounded
from ternfed.algorithms.statistics import recounts, with_statistics
from ternfed.algorithms.tfedavg_settings import PRESETS, Judging, Settings
from ternfed.algorithms.tfedavg_uploads import ClientMemory, ServerMemory, codes_of, suited, way_up
from ternfed.quantize.ternary import Ternary, requantize
from ternfed.wire import Message, Value, dense, trits_of

__all__ = ["ABOUT", "PRESETS", "Settings", "algorithm"]

ABOUT = About(
    "T-FedAvg",
    sends_trits=True,
    frozen=lambda settings: settings["latent_rate" if settings["latent_adam"] == "none" else "latent_adam"] == 0,
    before={
        "upload": "trits",
        "rest_bits_up": "none",
        "rest_bits_down": "none",
        "full_bits": "none",
        "latent_adam": "none",
        "latent_decay": 1.0,
        "settle_at_decay": "none",
        "finest_bits": FINEST,
        "full_at_decay": "none",
    },
    depends_on_rounds=lambda settings: "its broadcasts by algorithm.full_at depend" if settings.full_at else None,
    suited=suited,
)


def algorithm(network: Network, training: Training, settings: Settings) -> Algorithm:
    """T-FedAvg for a network."""
    if not settings.send_first:
        network = _without_first(network)
    names = network.ternary
    if not names:
        raise ValueError(
            "the model has no layer that can be ternary: T-FedAvg needs one between its first and its last"
        )
    rest = tuple(name for name in network.floats if name not in names)
    judged = network.task.metric.measure
    way = way_up(network, training, settings)
    judging = settings.judging if way.guarded else Judging.OFF
    numbers = (*UP, judged.name) if judging is Judging.CLIENTS else UP
    up_bits = bits_of(rest, network, settings.rest_bits_up, settings.buffer_bits)
    down_bits = bits_of(rest, network, settings.rest_bits_down, settings.buffer_bits)
    full_bits = bits_of(names, network, settings.full_bits)
    up_grid = (*way.on_grid, *up_bits)

    def start(received: Message, memory: ClientMemory, client: Client) -> tuple[Local, ClientMemory]:
        parameters, buffers = split(dense_weights(received), network)
        return way.start(parameters, buffers, received, memory, client), memory

    def finish(
        locals_: Sequence[Local], received: Message, memories: Sequence[ClientMemory], clients: Sequence[Client]
    ) -> list[tuple[Message, ClientMemory]]:
        before = OneByOne(received)
        ended = way.finish(locals_, before, memories, clients)
        moved = [network.without_counters({**local.weights, **local.buffers}) for local in locals_]
        floats = [{name: own[name] for name in rest} for own in moved]
        sent: Sequence[Mapping[str, Value]]
        if up_bits:
            sent = changes_each(floats, before, up_bits, [client.draw("rest") for client in clients])
        else:
            sent = [as_kind(own, network, settings.dense) for own in floats]
        out = []
        for (layers, memory), whole, own in zip(ended, moved, sent, strict=True):
            others = {name: tensor for name, tensor in whole.items() if name not in layers and name not in rest}
            out.append((Message({**own, **others, **layers}, {}), memory))
        return out

    def message_of(weights: Weights, sent: Mapping[str, Value]) -> Message:
        plain = {name: tensor for name, tensor in weights.items() if name not in sent}
        return Message({**as_kind(plain, network, settings.dense), **sent}, {})

    def reference(broadcast: Message) -> dict[str, Tensor]:
        held = {name: codes_of(broadcast.tensors[name], name, settings) for name in names}
        return {**held, **{name: dense(broadcast.tensors[name]) for name in down_bits}}

    def on_air(weights: Weights, ternary: Mapping[str, Ternary], before: Weights) -> tuple[Weights, dict[str, Value]]:
        """The model as clients will have it, and the tensors that are not sent as plain floats."""
        sent: dict[str, Value] = {**ternary}
        if not ternary:
            sent |= rounded({name: weights[name] for name in full_bits}, {}, full_bits)
        sent |= rounded({name: weights[name] for name in down_bits}, before, down_bits, settings.finest_bits)
        # Where they are trits, the weights have been made of them already.
        return {**weights, **{name: dense(value) for name, value in sent.items() if name not in ternary}}, sent

    def unrounded(weights: Weights) -> Weights:
        return {name: weights[name] for name in rest} if up_bits or down_bits else {}

    def requantized(weights: Weights, sent: Mapping[str, Value]) -> dict[str, Ternary]:
        """The ternary layers, given those of the last broadcast where their trits are held."""
        held = {} if way.guarded else {name: trits_of(value) for name, value in sent.items() if name in names}
        rule = settings.server_rule, settings.server_factor
        return {n: requantize(weights[n], *rule, n, held.get(n), settings.hold) for n in names}

    def opening(whole: Weights) -> Server:
        weights = {name: whole[name] for name in network.weights()}
        strategy = Strategy.TERNARY if settings.ternary_start else Strategy.FULL
        ternary = requantized(weights, {}) if settings.ternary_start else {}
        shown, sent = on_air({**weights, **{name: value.dense() for name, value in ternary.items()}}, ternary, {})
        memory = ServerMemory(rest=unrounded(weights), latents=way.opened(weights))
        return Server(shown, sent, memory, strategy)

    def update(server: Server, uploads: Uploads, helpers: Helpers) -> Server:
        if not uploads.average:
            return server
        before: ServerMemory = server.memory
        average = {**uploads.average}
        if up_bits:
            average |= added(before.rest, server.weights, average, network)
        combined, wanted, latents = way.combined(average, before, uploads.spent)
        ternary = requantized(wanted, server.sent)
        exact = {name: value.dense() for name, value in ternary.items()}

        @cache
        def full() -> Weights:
            """Made only where it is asked for: counting statistics takes as long as judging, and most rounds do not."""
            return with_statistics(combined, network, settings.statistics, helpers)

        quantized = with_statistics({**combined, **exact}, network, settings.statistics, helpers)
        best = before.best
        if judging is Judging.SERVER:
            collapsed = helpers.judge(quantized) < judged.least(helpers.judge(full()), settings.tolerance)
        elif judging is Judging.CLIENTS:
            best = torch.tensor(-torch.inf) if best is None else best
            reached = judged.goodness(uploads.numbers[judged.name])
            collapsed = reached < judged.least(float(best), settings.tolerance)
            best = torch.maximum(best, torch.tensor(reached, dtype=best.dtype))
        else:
            collapsed = False
        strategy, chosen = Strategy.TERNARY, quantized
        due = any(helpers.reaches_share(share) for share in settings.full_at)
        if way.guarded and settings.full_at_decay is not None:
            due = due or helpers.decays_to(settings.full_at_decay)
        if collapsed or due:
            strategy, chosen, ternary = Strategy.FULL, full(), {}
        shown, sent = on_air(chosen, ternary, {name: server.weights[name] for name in rest})
        lost = {} if way.lost is None else {n: way.lost(wanted[n], value.codes) for n, value in ternary.items()}
        return Server(shown, sent, ServerMemory(lost, best, unrounded(chosen), latents), strategy)

    return Algorithm(
        name="tfedavg",
        training=way.training,
        down=(
            network.schema(names, DOWN, settings.dense, tuple(down_bits)),
            network.schema((), DOWN, settings.dense, (*full_bits, *down_bits)),
        ),
        up=(network.schema(way.as_trits, numbers, settings.dense, up_grid),),
        open=opening,
        broadcast=lambda server: message_of(server.weights, server.sent),
        start=start,
        finish=FinishTogether(finish),
        update=update,
        reference=reference,
        changes=up_grid,
        server_memory=ServerMemory,
        client_memory=ClientMemory,
        retries=3,
        needs_held_out=judging is Judging.SERVER or recounts(settings.statistics, network),
    )


def _without_first(network: Network) -> Network:
    """The network whose first parameter stays, on every side, as it was at the start."""
    first = network.parameters[:1]
    if first[0] in network.ternary:
        raise ValueError("send_first = false: the first layer is ternary here; leave it out of the ternary layers")
    return network.without(first)
