"""What one liar of five can do to a run: attacks × aggregation rules, on data that is alike and that is not.

    ternfed bench attacks --into docs/security.md

T-FedAvg with its defaults on the digits, five clients, ten rounds. The liar is client 3. Its upload is replaced where
the server has decoded it, so it may hold whatever a message can; then it passes the server's own checks, and what these
refuse is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ternfed import draws
from ternfed.bench.tables import markdown
from ternfed.data.sets import load
from ternfed.data.values import DataSet
from ternfed.experiment.experiment import Experiment
from ternfed.round.acceptance import Bounds, NotFinite, OutOfBounds, accepted, center_of
from ternfed.round.audit import finished, is_audited
from ternfed.round.exchange import Broadcasts, collect
from ternfed.round.federation import Federation, RoundOutcome, conclude, open_federation, prepare, upload
from ternfed.round.intake import Intake
from ternfed.round.state import State
from ternfed.round.traffic import Clock, Traffic
from ternfed.training.choose import train_recovering
from ternfed.wire import Message, dense

CLIENTS, LIAR, ROUNDS = 5, 3, 10
FIRST = 3
"""The first seed: those before it were looked at when the limits of `clipped_mean` were chosen."""
DATA: Mapping[str, tuple[str, ...]] = {"IID": (), "N_c = 4": ("data.classes_per_client=4",)}
RULES: Mapping[str, tuple[str, ...]] = {
    "clipped_mean": ("federation.aggregate=clipped_mean",),
    "server": ("federation.aggregate=clipped_mean", "federation.audit=0.03"),
    **{rule: (f"federation.aggregate={rule}",) for rule in ("mean", "trimmed_mean", "median", "krum")},
}
"""Settings by the name of the column; `server` is what `ternfed server` takes unless told."""

Changes = dict[str, Tensor]
Lie = Callable[[Changes, Sequence[Changes], torch.Generator], Changes]
"""(its honest change, those of the others, random numbers) ─▶ the change that it sends."""


@dataclass(frozen=True)
class Attack:
    """What the liar does."""

    name: str
    lie: Lie = lambda own, others, source: own
    claim: float | None = None
    """The number of samples that it claims."""
    wrong_labels: bool = False
    """It trains on labels 9 - y."""


def scaled(own: Changes, others: Sequence[Changes], source: torch.Generator, *, by: float) -> Changes:
    return {name: by * change for name, change in own.items()}


def noise(own: Changes, others: Sequence[Changes], source: torch.Generator, *, times: float) -> Changes:
    """Random numbers, so many times as large as its honest change."""
    drawn = {name: torch.randn(change.shape, generator=source) for name, change in own.items()}
    return {n: drawn[n] * times * own[n].norm() / drawn[n].norm().clamp_min(1e-9) for n in own}


def largest(own: Changes, others: Sequence[Changes], source: torch.Generator) -> Changes:
    """Every weight as large as the server accepts."""
    return {name: torch.full_like(change, 0.9 * Bounds().weight) for name, change in own.items()}


def against(own: Changes, others: Sequence[Changes], source: torch.Generator) -> Changes:
    """Twice the others' mean, turned round: it knows what they sent."""
    return {name: -2 * torch.stack([other[name] for other in others]).mean(0) for name in own}


def infinite(own: Changes, others: Sequence[Changes], source: torch.Generator) -> Changes:
    """What the server refuses: the liar is left out of every round, as by one who knew."""
    return {name: torch.full_like(change, torch.inf) for name, change in own.items()}


ATTACKS = (
    Attack("none"),
    Attack("infinities, always refused", infinite),
    Attack("wrong labels", wrong_labels=True),
    Attack("its change turned round", partial(scaled, by=-1.0)),
    Attack("turned round, × 10", partial(scaled, by=-10.0)),
    Attack("turned round, claims 10⁷ samples", partial(scaled, by=-1.0), claim=1e7),
    Attack("noise, × 10", partial(noise, times=10.0)),
    Attack("as large as is accepted", largest),
    Attack("against the others' mean, × 2", against),
)


@dataclass(frozen=True)
class Cell:
    """A rule under an attack."""

    data: str
    attack: str
    rule: str
    scores: tuple[float, ...]
    """Test accuracy after the last round, one per seed."""


def run(seeds: int, rules: Mapping[str, Sequence[str]] = RULES, attacks: Sequence[Attack] = ATTACKS) -> Iterator[Cell]:
    """Every cell of the table."""
    digits = load("digits")
    for data, settings in DATA.items():
        for attack in attacks:
            for rule, own in rules.items():
                yield Cell(
                    data,
                    attack.name,
                    rule,
                    tuple(score(digits, (*settings, *own), attack, s) for s in range(FIRST, FIRST + seeds)),
                )


def score(digits: DataSet, settings: Sequence[str], attack: Attack, seed: int) -> float:
    """The accuracy of one run."""
    given = [
        f"seed={seed}", f"federation.clients={CLIENTS}", "federation.participation=1", f"federation.rounds={ROUNDS}",
        *settings,
    ]  # fmt: skip
    federation = open_federation(Experiment.from_toml("", given), digits)
    if attack.wrong_labels:
        federation = _with_wrong_labels(federation)
    state = federation.open()
    while state.round < ROUNDS:
        state, reached = _round(federation, state, attack)
    return reached


def _round(federation: Federation, state: State, attack: Attack) -> tuple[State, float]:
    number, algorithm, traffic = state.round + 1, federation.algorithm, Traffic()
    broadcasts = Broadcasts(algorithm, state.server, number, state.broadcasts, state.holders)
    broadcast = broadcasts.given(None).broadcast
    center = center_of(algorithm, broadcast)
    memories, messages = dict(state.memories), {}
    sites = [federation.site(index) for index in range(CLIENTS)]
    prepared = [prepare(site, number, broadcast, memories.get(site.index, algorithm.client_memory())) for site in sites]
    outcomes = train_recovering(federation.trainer, [work for work, _ in prepared], algorithm.retries)
    for site, (work, memory), trained in zip(sites, prepared, outcomes, strict=True):
        data, memories[site.index] = upload(site, number, broadcast, memory, work.order, trained)
        messages[site.index] = collect(algorithm, data, broadcast)
    messages[LIAR] = _lied(messages, center, attack, draws.generator(number, "attack"))
    keeps, dropped = is_audited(federation, CLIENTS), []
    arrived = Intake.of(algorithm, broadcast, federation.registered, CLIENTS, keeps)
    for site in sites:
        message, sender = messages[site.index], site.client(number)
        try:
            arrived.add(site.index, accepted(algorithm, federation.network, message, broadcast, sender, Bounds()))
        except (NotFinite, OutOfBounds) as error:
            dropped.append(f"client {site.index}: {error}")
    after = RoundOutcome(broadcasts, tuple(range(CLIENTS)), memories, dropped=tuple(dropped))
    state, record = conclude(federation, state, finished(federation, state, arrived), traffic, Clock(), after)
    return state, record.score


def _lied(
    messages: Mapping[int, Message], center: Mapping[str, Tensor], attack: Attack, source: torch.Generator
) -> Message:
    changes = {
        client: {name: dense(value).float() - center.get(name, torch.zeros(())) for name, value in each.tensors.items()}
        for client, each in messages.items()
    }
    own, others = changes[LIAR], [changes[client] for client in sorted(changes) if client != LIAR]
    lie = attack.lie(own, others, source)
    sent = {name: center.get(name, torch.zeros(())) + change for name, change in lie.items()}
    numbers = dict(messages[LIAR].numbers)
    if attack.claim is not None:
        numbers["samples"] = attack.claim
    return Message(sent if lie is not own else messages[LIAR].tensors, numbers)


def _with_wrong_labels(federation: Federation) -> Federation:
    samples = federation.feed.samples
    labels = samples.labels.clone()
    labels[federation.parts[LIAR]] = 9 - labels[federation.parts[LIAR]]
    return replace(federation, feed=replace(federation.feed, samples=replace(samples, labels=labels)))


def table(cells: Sequence[Cell]) -> str:
    """One table per division of the data: the mean accuracy in percent, and the worst of its seeds."""
    parts = []
    for data in dict.fromkeys(cell.data for cell in cells):
        own = [cell for cell in cells if cell.data == data]
        rules = list(dict.fromkeys(cell.rule for cell in own))
        rows = []
        for attack in dict.fromkeys(cell.attack for cell in own):
            found = {cell.rule: cell.scores for cell in own if cell.attack == attack}
            rows.append((attack, *(_shown(found[rule]) for rule in rules)))
        parts.append(f"**{data}**\n\n" + markdown(("attack", *rules), rows))
    return "\n\n".join(parts)


def _shown(scores: Sequence[float]) -> str:
    return f"{100 * statistics.mean(scores):.1f} ({100 * min(scores):.1f})"
