"""ternfed's messages in somebody else's Flower project: a strategy around theirs, and a mod for their ClientApp.

    strategy = TernaryStrategy(FedAvg(), make_model())            # ServerApp
    app = ClientApp(mods=[ternary_mod(make_model)])               # ClientApp: train functions stay as they are

The model's inner layers travel as trits in both directions, everything else as it is, all of it as one array. A layer
whose weights are exactly ternary (trained with `ternarize_`, frozen with `freeze`) travels losslessly; any other one is
quantized as T-FedAvg's server does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor, nn

from ternfed import wire
from ternfed.algorithms.algorithm import Network, dense_weights
from ternfed.engines.flower.envelope import KEY, unwrap, wrap
from ternfed.quantize.choice import Choice
from ternfed.quantize.ternary import Rule, Ternary, recognise, requantize
from ternfed.wire import Reference, Schema, reference_of, trits_of

Codes = Mapping[str, Tensor]


@dataclass(frozen=True)
class Carrier:
    """A model's tensors ⇄ bytes, some of them as trits."""

    network: Network
    rule: Rule = Rule.MEAN
    factor: float = 0.7

    @property
    def schema(self) -> Schema:
        return self.network.schema(self.network.ternary)

    def encode(self, tensors: Mapping[str, Tensor], given: Codes | None = None) -> bytes:
        """The bytes of a model, coded given trits that the receiver holds."""
        ternary = {name: self._ternary(tensors[name], name) for name in self.network.ternary}
        own = {slot.name: tensors[slot.name] for slot in self.schema.slots if slot.name in tensors}
        message = wire.Message({**own, **ternary}, {})
        return wire.encode(message, self.schema, reference=self._reference(given))

    def decode(self, data: bytes, given: Codes | None = None) -> tuple[dict[str, Tensor], Codes]:
        """(the model's tensors, its trits)."""
        message = wire.decode(data, self.schema, reference=self._reference(given))
        trits = {name: trits_of(value) for name, value in message.tensors.items()}
        whole = self.network.with_counters(dense_weights(message))
        whole |= {name: whole[first] for name, first in self.network.aliases.items()}
        return whole, {name: codes for name, codes in trits.items() if codes is not None}

    def _ternary(self, weight: Tensor, name: str) -> Ternary:
        return recognise(weight) or requantize(weight, self.rule, self.factor, name)

    def _reference(self, given: Codes | None) -> Reference | None:
        return None if given is None else reference_of(dict(given), self.schema)


def ternary_mod(
    make_model: Callable[[], nn.Module], where: Choice | None = None
) -> Callable[[Message, Any, Callable[[Message, Any], Message]], Message]:
    """A mod that turns ternfed messages into the arrays that a ClientApp expects, and its arrays into messages."""
    carrier = Carrier(Network.of(make_model(), where))

    def mod(message: Message, context: Any, call_next: Callable[[Message, Any], Message]) -> Message:
        name = next(iter(message.content.array_records))
        tensors, codes = carrier.decode(unwrap(message.content))
        message.content[name] = ArrayRecord(torch_state_dict=tensors)
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        for key, record in list(reply.content.array_records.items()):
            reply.content[key] = wrap(carrier.encode(record.to_torch_state_dict(), codes))
        return reply

    return mod


class TernaryStrategy(Strategy):
    """Carries the messages of another strategy as ternfed messages; that one samples, averages and evaluates."""

    def __init__(self, inner: Strategy, model: nn.Module, where: Choice | None = None) -> None:
        self.inner = inner
        self.carrier = Carrier(Network.of(deepcopy(model), where))  # the user's own may be prepared later
        self.bytes_down = 0
        self.bytes_up = 0
        self.dropped: list[str] = []
        """One reason for each reply that could not be used."""
        self._codes: Codes = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self._sent(self.inner.configure_train(server_round, arrays, config, grid), arrays)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self._sent(self.inner.configure_evaluate(server_round, arrays, config, grid), arrays)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return self.inner.aggregate_train(server_round, [reply for reply in replies if self._received(reply)])

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.inner.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.inner.summary()

    def _sent(self, messages: Iterable[Message], arrays: ArrayRecord) -> list[Message]:
        data = self.carrier.encode(arrays.to_torch_state_dict())
        self._codes = self.carrier.decode(data)[1]
        ready = list(messages)
        for message in ready:
            for name in list(message.content.array_records):
                message.content[name] = wrap(data)
                self.bytes_down += len(data)
        return ready

    def _received(self, reply: Message) -> bool:
        """Decode a reply in place; False, and the reason noted, where that cannot be. Errors are the inner one's."""
        if reply.has_error():
            return True
        try:
            data = unwrap(reply.content)
            tensors, _ = self.carrier.decode(data, self._codes)
            if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
                raise wire.WireError("it holds values that are not finite")
        except wire.WireError as error:
            self.dropped.append(f"node {reply.metadata.src_node_id}: {type(error).__name__}: {error}")
            return False
        self.bytes_up += len(data)
        name = next(iter(reply.content.array_records), KEY)
        reply.content[name] = ArrayRecord(torch_state_dict=tensors)
        return True
