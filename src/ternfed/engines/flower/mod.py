"""The mod for anybody's ClientApp: messages of a `TernaryStrategy` become arrays, and trained arrays messages.

    app = ClientApp(mods=[ternary_mod])

What to do stands in the messages, so there is nothing to set. It comes first among the mods: those that change arrays,
such as local differential privacy, then see plain ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from ternfed import wire
from ternfed.algorithms.algorithm import Algorithm, Weights
from ternfed.algorithms.memory import memory_of, tensors_of
from ternfed.algorithms.network import dense_weights
from ternfed.draws import seed_of
from ternfed.engines.flower.adapter.version import need_flower
from ternfed.engines.flower.envelope import wrap
from ternfed.engines.flower.layout import Layout
from ternfed.engines.flower.modes import Mode, algorithm_for, sender, trained
from ternfed.engines.flower.parcel import Kept, array_record, arrays_of, fact, pack, parcel_in, unpack
from ternfed.quantize.ternary import NonFiniteError
from ternfed.round import exchange
from ternfed.wire import WireError

try:
    from flwr.app import Context, Error, Message, RecordDict
except ImportError:
    need_flower()
    raise

REFUSED = 6
"""Flower's code of a mod whose preconditions are not met."""
CLIPPING = "clipping_norm"
"""The setting by which updates that are to be clipped are known."""
SECAGG = "secaggplus_configs"
"""The record by which messages of SecAgg and SecAgg+ are known."""
NO_SECAGG = (
    "ternary_mod does not work with SecAgg or SecAgg+: these add masked whole numbers of all clients, each in a fixed "
    "number of bits, and a compressed update is none until the server has decoded it; leave one of the two out"
)

Next = Callable[[Message, Context], Message]


def ternary_mod(message: Message, context: Context, call_next: Next) -> Message:
    """Decode what came, let the app work with plain arrays, encode how far it moved them."""
    if SECAGG in message.content.config_records:
        return _error(message, NO_SECAGG)
    parcel = parcel_in(message.content)
    if parcel is None:
        return call_next(message, context)
    name, data = parcel
    try:
        kept, broadcast = _received(data, context)
    except ValueError as error:  # of the wire, or a mode of a later version
        return _error(message, f"ternary_mod cannot read the broadcast: {error}")
    if broadcast is None:
        return Message(RecordDict({name: wrap(pack({"run": kept.run, "at": kept.at, "lost": True}))}), reply_to=message)
    kept.store(context)
    layout = Layout.from_json(kept.layout)
    algorithm = algorithm_for(Mode(kept.mode), layout, kept.bits, kept.feedback, kept.length)
    small, content = message.content, RecordDict(dict(message.content))
    content[name] = array_record(layout.state(layout.network.with_counters(dense_weights(broadcast.message))))
    message.content = content
    del content
    reply = call_next(message, context)
    message.content = small  # the app is done with the arrays, which are a whole model
    if reply.has_error() or message.metadata.message_type.partition(".")[0] != "train":
        return reply
    found = _model_in(reply.content, name, layout)
    if found is None:
        return reply
    try:
        weights = layout.tensors(arrays_of(reply.content[found]))
    except (WireError, NonFiniteError) as error:
        return _error(message, f"ternary_mod cannot send what was trained: {error}")
    seed = seed_of(int(kept.run, 16), "upload", kept.at, context.node_id)
    limit = _clipping_norm(message)
    if limit is None:
        memory = memory_of(algorithm.client_memory, kept.memory)
        upload, memory = algorithm.finish(trained(layout, weights), broadcast.message, memory, sender(seed))
    else:
        upload, memory = _within(limit, algorithm, layout, weights, broadcast, seed)
    numbers = {"round": kept.at, "samples": 0, "loss": 0}
    body = exchange.reply(algorithm, upload, numbers, broadcast)
    replace(kept, memory=tensors_of(memory)).store(context)
    reply.content[found] = wrap(pack({"run": kept.run, "at": kept.at, "seed": seed}, body))
    return reply


def _received(data: bytes, context: Context) -> tuple[Kept, exchange.Broadcast | None]:
    """What the client keeps from now on, and the broadcast; None where it was coded given what is not held."""
    facts, body = unpack(data)
    run, at, mode = fact(facts, "run", str), fact(facts, "at", int), Mode(fact(facts, "mode", str))
    facts = {"feedback": True, "length": False, **facts}
    bits, feedback, length = fact(facts, "bits", float), fact(facts, "feedback", bool), fact(facts, "length", bool)
    before = Kept.found(context)
    if before is not None and before.run != run:
        before = None
    given = facts.get("given")
    if given is None:
        layout = fact(facts, "layout", str)
    elif before is None or before.at != given:
        return Kept(run, at, mode, bits, feedback, length, "", b"", {}), None
    else:
        layout = before.layout
    memory = before.memory if before is not None and before.layout == layout else {}
    algorithm = algorithm_for(mode, Layout.from_json(layout), bits, feedback, length)
    if given is None:
        broadcast = exchange.receive(algorithm, body, None)
        return Kept(run, at, mode, bits, feedback, length, layout, body, memory), broadcast
    assert before is not None
    held = exchange.receive(algorithm, before.held, None)
    if given == at:
        return before, held
    broadcast = exchange.receive(algorithm, body, held.reference)
    packed = exchange.packed(algorithm, broadcast)
    return Kept(run, at, mode, bits, feedback, length, layout, packed, memory), broadcast


def _within(
    limit: float, algorithm: Algorithm, layout: Layout, weights: Weights, broadcast: exchange.Broadcast, seed: int
) -> tuple[wire.Message, Any]:
    """An upload whose change, as the server decodes it, is no longer than the limit, and nothing to be remembered.

    Where updates are clipped for privacy, what earlier ones left out must not make this one longer.
    """
    before, floats = dense_weights(broadcast.message), layout.network.floats
    length = limit + 1.0
    while length > limit:
        memory = algorithm.client_memory()
        upload, _ = algorithm.finish(trained(layout, weights), broadcast.message, memory, sender(seed))
        told = dense_weights(algorithm.meaning(upload, sender(seed)))
        length = sum(float(told[name].double().square().sum()) for name in floats) ** 0.5
        share = 0.98 * limit / max(length, limit) if limit > 0 else 0.0
        weights = {n: before[n] + share * (t - before[n]) if n in floats else t for n, t in weights.items()}
    return upload, memory


def _clipping_norm(message: Message) -> float | None:
    """The norm that a strategy for central differential privacy has clients clip their updates to."""
    norms = [record[CLIPPING] for record in message.content.config_records.values() if CLIPPING in record]
    return float(cast(float, norms[0])) if norms else None


def _model_in(records: RecordDict, name: str, layout: Layout) -> str | None:
    """The record of a reply that holds the model: the one of the same name, or else the only one that could be."""
    fitting = [key for key, record in records.array_records.items() if layout.fits(record)]
    if name in fitting:
        return name
    return fitting[0] if len(fitting) == 1 else None


def _error(message: Message, reason: str) -> Message:
    return Message(Error(REFUSED, reason), reply_to=message)
