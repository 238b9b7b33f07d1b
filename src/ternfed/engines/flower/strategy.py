"""Somebody else's Flower project with a fraction of its bytes: a strategy around theirs, and a mod for their ClientApp.

    strategy = TernaryStrategy(FedAvg())                # ServerApp
    app = ClientApp(mods=[ternary_mod])                 # ClientApp: train functions stay as they are

The strategy inside samples, aggregates and evaluates as ever. What it gets as the model of a round is the model that
the clients received, so that strategies which compute with both (FedOpt, QFedAvg) see the clients' own changes.
`modes.py` says what travels.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import Any

import numpy as np

from ternfed.algorithms.algorithm import Weights
from ternfed.algorithms.network import dense_weights
from ternfed.engines.flower.adapter.version import need_flower
from ternfed.engines.flower.envelope import WrongRound, wrap
from ternfed.engines.flower.errors import NetworkError
from ternfed.engines.flower.layout import Layout, State, matrices
from ternfed.engines.flower.model import Model, Traffic, averaged, for_strategy
from ternfed.engines.flower.modes import Mode, algorithm_for, check_bits, sender
from ternfed.engines.flower.parcel import array_record, arrays_of, fact, pack, parcel_in, unpack
from ternfed.quantize.choice import Choice
from ternfed.quantize.rotation import TRITS
from ternfed.quantize.ternary import NonFiniteError
from ternfed.round import exchange
from ternfed.wire import WireError

try:
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import FedAdam, FedAvgM, FedYogi, MultiKrum, Result, Strategy
except ImportError:
    need_flower()
    raise

log = logging.getLogger("flwr")
"""Flower shows what is logged here in `flwr log`."""
ADAPTIVE = (FedAdam, FedYogi)
"""Strategies that divide by a moving average of how far each weight moves: for them what is left out now and sent later
is noise twice, as a step there and as one back. FedAdagrad loses nothing by it (docs/flower.md)."""
PICKING = (MultiKrum,)
"""Strategies that take the uploads of some clients and drop the others', Krum among them: what goes with an upload that
was dropped does not come later. Nor do many make one right in the mean: it is kept as long as it was instead, by which
it loses less (`quantize/rotation.py`)."""
MOST_KEPT = 16
"""So many older broadcasts are kept for clients that sit rounds out."""


class NoReplyCounted(NetworkError):
    """A round in which clients were asked and no reply could be used."""


class TernaryStrategy(Strategy):
    """Carries the messages of another strategy in a few bits per weight; that one samples, averages and evaluates."""

    def __init__(
        self,
        inner: Strategy,
        mode: str = Mode.UPDATES,
        *,
        bits_up: float = TRITS,
        error_feedback: bool | None = None,
        where: Choice | None = None,
        seed: int | None = None,
    ) -> None:
        """`bits_up`: with `mode="updates"`, bits of each weight of an upload: 1, 2, 3 or 4, or 1.5 for trits.

        `error_feedback`: with `mode="updates"`, whether clients add what an upload left out to the next one; by default
        they do, but not around FedAdam and FedYogi (`ADAPTIVE`), and not around Krum and MultiKrum (`PICKING`).

        `where`: with `mode="ternary"`, names or patterns of the arrays to make ternary; by default the inner ones.

        `seed`: what is random about the rounding; the same seed and the same node ids give the same run.
        """
        if not isinstance(inner, Strategy):
            raise TypeError(
                f"TernaryStrategy is put around a strategy of flwr.serverapp.strategy, not {type(inner).__name__}"
                " (strategies of flwr.server, which SecAgg+ needs, are another kind)"
            )
        if mode not in list(Mode):
            raise ValueError(f"mode = {mode!r}: {' or '.join(repr(m.value) for m in Mode)} is allowed")
        check_bits(bits_up)
        self.inner = inner
        self.bits_up = float(bits_up)
        suits = not isinstance(inner, (*ADAPTIVE, *PICKING))
        self.error_feedback = suits if error_feedback is None else error_feedback
        self._keeps_length = isinstance(inner, PICKING) and not self.error_feedback
        self.mode = Mode(mode)
        self.where = where
        self.dropped: list[str] = []
        """One reason for each reply that could not be used."""
        self.rounds: list[Traffic] = []
        """The bytes of each round's training, the first first."""
        self._run = token_hex(8) if seed is None else f"{seed:x}"
        self._model: Model | None = None
        self._seen: ArrayRecord | None = None
        self._sent: exchange.Broadcasts | None = None
        self._past: dict[int, bytes] = {}
        self._holders: dict[int, int] = {}
        self._traffic = Traffic()
        self._asked = 0

    @property
    def bytes_down(self) -> int:
        """Of all rounds' training."""
        return sum(traffic.down for traffic in self.rounds)

    @property
    def bytes_up(self) -> int:
        """Of all rounds' training."""
        return sum(traffic.up for traffic in self.rounds)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds; a client that has lost what it held is sent the whole model in the same round."""
        again: Any = _Resending(grid, self)
        return super().start(again, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the strategy inside, made small."""
        seen = self._open(arrays)
        if isinstance(self.inner, FedAvgM) and self.inner.current_arrays is not None:
            self.inner.current_arrays = seen  # it keeps its own unless told
        messages = self._small(self.inner.configure_train(server_round, seen, config, grid))
        self._asked = len(messages)
        return messages

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Who holds the model already gets a few bytes."""
        return self._small(self.inner.configure_evaluate(server_round, self._open(arrays), config, grid))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the strategy inside makes of the replies, as the clients will receive it."""
        model, counted, exact = self._model, list[Message](), list[State]()
        assert model is not None
        for reply in replies:
            reason, lossless = self._read(reply, model)
            if reason is not None:
                self._drop(server_round, reply, reason)
            if reason is None or reply.has_error():
                counted.append(reply)
                exact += [] if lossless is None else [lossless]
        if self._asked and all(reply.has_error() for reply in counted):
            reasons = "; ".join(self.dropped[-3:]) or "nobody answered in time"
            raise NoReplyCounted(
                f"round {server_round}: {self._asked} clients were asked, no reply counts ({reasons}); "
                "is ternary_mod the first mod of the ClientApp?"
            )
        arrays, metrics = self.inner.aggregate_train(server_round, counted)
        if arrays is not None:
            self._model = model.after(averaged(model, arrays_of(arrays), exact))
            arrays = array_record(self._model.state)
        self.rounds.append(self._traffic)
        metrics = MetricRecord({**(metrics or {}), **self._traffic.metrics()})
        self._traffic = Traffic()
        return arrays, metrics

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The metrics of the strategy inside, and the bytes."""
        known = list(replies)
        for reply in known:
            self._note_holder(reply)
        metrics = self.inner.aggregate_evaluate(server_round, [r for r in known if not _has_lost(r)])
        traffic, self._traffic = self._traffic, Traffic()
        return MetricRecord({**metrics, **traffic.metrics()}) if metrics is not None else None

    def summary(self) -> None:
        """What the strategy inside says, and what travels."""
        log.info("\t├──> ternfed: mode '%s' around %s", self.mode.value, type(self.inner).__name__)
        self.inner.summary()

    def _open(self, arrays: ArrayRecord) -> ArrayRecord:
        """The model of the round from the arrays that the loop hands in, which are those handed out unless changed."""
        state, model = arrays_of(arrays), self._model
        if model is None or not model.layout.fits(state):
            layout = self._layout(state)
            algorithm = algorithm_for(self.mode, layout, self.bits_up, self.error_feedback, self._keeps_length)
            server = algorithm.open(layout.tensors(state))
            self._model = Model(layout, algorithm, server, 0 if model is None else model.at + 1)
            self._past, self._holders = {}, {}
        elif not _same(state, model.state):
            self._model = model.after(model.layout.tensors(state))
        assert self._model is not None
        if self._sent is None or self._sent.round != self._model.at:
            self._keep()
            self._sent = exchange.Broadcasts(
                self._model.algorithm, self._model.server, self._model.at, self._past, self._holders
            )
        # Whole numbers stay what they are: a mean of counters means nothing, and some strategies cannot divide them.
        self._seen = array_record(for_strategy(self._model.layout, self._model.state))
        return self._seen

    def _layout(self, state: State) -> Layout:
        layout = Layout.of(state)
        if self.mode is not Mode.TERNARY:
            return layout
        return replace(layout, ternary=matrices(layout, self.where))

    def _keep(self) -> None:
        """Keep the broadcast that was sent for as long as somebody holds it, and at most so many."""
        if self._sent is not None and self._sent.round in self._holders.values():
            packed = self._sent.packed()
            if packed is not None:
                self._past[self._sent.round] = packed
        wanted = sorted(set(self._holders.values()) & self._past.keys())[-MOST_KEPT:]
        self._past = {at: self._past[at] for at in wanted}

    def _small(self, messages: Iterable[Message]) -> list[Message]:
        """Messages with the model in them as a parcel, each as its receiver can read it; other records as they are."""
        made = []
        for message in messages:
            content = RecordDict(dict(message.content))
            for name, record in message.content.array_records.items():
                if record is self._seen or _same_record(record, self._seen):
                    content[name] = wrap(self._parcel(message.metadata.dst_node_id))
                    break
            message.content = content
            made.append(message)
        return made

    def _parcel(self, node: int, *, whole: bool = False) -> bytes:
        """The broadcast for a node, given what it holds."""
        model, sent = self._model, self._sent
        assert model is not None
        assert sent is not None
        facts: dict[str, Any] = {"run": self._run, "at": model.at, "mode": self.mode.value, "bits": self.bits_up}
        if not self.error_feedback:
            facts["feedback"] = False
        if self._keeps_length:
            facts["length"] = True
        holds = None if whole else self._holders.get(node)
        if holds == model.at:
            data = pack({**facts, "given": holds})
        else:
            given = None if whole else sent.held_by(node)
            more = {"layout": model.layout.to_json()} if given is None else {"given": given}
            data = pack({**facts, **more}, sent.given(given).data)
        self._traffic.down += len(data)
        self._traffic.plain_down += model.layout.size
        return data

    def _read(self, reply: Message, model: Model) -> tuple[str | None, State | None]:
        """Decode a reply in place: (why it cannot be used, or None; its arrays that travel bit for bit, or None)."""
        if reply.has_error():
            return reply.error.reason or f"error {reply.error.code}", None
        if _has_lost(reply):
            self._holders.pop(reply.metadata.src_node_id, None)
            return "it has lost the broadcast that it held; it gets the whole model next", None
        self._note_holder(reply)
        parcel = parcel_in(reply.content)
        if parcel is None:  # other arrays than the model's, or none
            return None, None
        name, data = parcel
        try:
            weights = self._decoded(data, model)
        except (WireError, NonFiniteError) as error:
            return f"{type(error).__name__}: {error}", None
        self._traffic.up += len(data)
        self._traffic.plain_up += model.layout.size
        lossless = set(model.layout.lossless)
        state = model.layout.state(weights)
        exact = {n: array for n, array in state.items() if n in lossless}
        reply.content[name] = array_record(
            {n: array.copy() if n in lossless else state[n] for n, array in arrays_of(self._seen).items()}
        )
        return None, exact

    def _decoded(self, data: bytes, model: Model) -> Weights:
        """The weights that a client trained, as far as its upload tells."""
        facts, body = unpack(data)
        if (facts.get("run"), facts.get("at")) != (self._run, model.at):
            raise WrongRound(f"trained from broadcast {facts.get('at')} of run {facts.get('run')}, not {model.at}")
        assert self._sent is not None
        message = exchange.collect(model.algorithm, body, self._sent.any())
        told = dense_weights(model.algorithm.meaning(message, sender(fact(facts, "seed", int))))
        floats = set(model.layout.network.floats)
        told = {n: model.weights[n] + t if n in floats else t for n, t in told.items()}
        told = {n: t.clamp_min(0) if n.endswith("running_var") else t for n, t in told.items()}
        if not all(bool(t.isfinite().all()) for t in told.values()):
            raise NonFiniteError("it holds values that are not finite")
        return model.layout.network.with_counters(told)

    def _note_holder(self, reply: Message) -> None:
        node = reply.metadata.src_node_id
        if _has_lost(reply):
            self._holders.pop(node, None)
        elif not reply.has_error() and self._model is not None:
            self._holders[node] = self._model.at

    def _drop(self, server_round: int, reply: Message, reason: str) -> None:
        said = f"node {reply.metadata.src_node_id}: {reason}"
        self.dropped.append(said)
        log.warning("round %d: a reply does not count: %s", server_round, said)

    def whole_again(self, asked: Sequence[Message], replies: Iterable[Message]) -> tuple[list[Message], list[Message]]:
        """(replies that are answers, messages to be sent once more with the whole model in them)."""
        by_node = {message.metadata.dst_node_id: message for message in asked}
        answers, again = list[Message](), list[Message]()
        for reply in replies:
            node = reply.metadata.src_node_id
            message = by_node.get(node) if _has_lost(reply) else None
            parcel = None if message is None else parcel_in(message.content)
            if message is None or parcel is None:
                answers.append(reply)
                continue
            log.info("node %d has lost the broadcast that it held: the whole model is sent again", node)
            self._holders.pop(node, None)
            content = RecordDict({**message.content, parcel[0]: wrap(self._parcel(node, whole=True))})
            meta = message.metadata
            again.append(Message(content, node, meta.message_type, ttl=meta.ttl, group_id=meta.group_id))
        return answers, again


@dataclass(frozen=True)
class _Resending:
    """A grid that asks clients once more, with the whole model, where they have lost what they held."""

    grid: Grid
    strategy: TernaryStrategy = field(repr=False)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        asked = list(messages)
        replies = self.grid.send_and_receive(asked, timeout=timeout)
        answers, again = self.strategy.whole_again(asked, replies)
        return [*answers, *self.grid.send_and_receive(again, timeout=timeout)] if again else answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self.grid, name)


def _has_lost(reply: Message) -> bool:
    """Whether a client says that it does not hold what it was sent a message given."""
    if reply.has_error():
        return False
    parcel = parcel_in(reply.content)
    try:
        return parcel is not None and bool(unpack(parcel[1])[0].get("lost"))
    except WireError:
        return False


def _same(state: State, other: State) -> bool:
    return all(np.array_equal(array, other[name], equal_nan=array.dtype.kind == "f") for name, array in state.items())


def _same_record(record: ArrayRecord, other: ArrayRecord | None) -> bool:
    if other is None or list(record) != list(other):
        return False
    return all(record[name].data == other[name].data for name in other)
