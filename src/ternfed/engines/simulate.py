"""The in-process engine: a whole federation on one machine, every message really encoded, and what it says decoded.

`open_federation` makes everything an experiment needs, `play` runs its rounds, `record_into` does so into a run folder.
A crew may train the clients elsewhere (`round/crew.py`); the server's half is always here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from torch import nn

from ternfed.aggregation.aggregation import NotSummable
from ternfed.algorithms.network import put_into
from ternfed.data.clients import Batches, Clients, from_clients
from ternfed.data.values import DataSet
from ternfed.experiment.experiment import Experiment, ExperimentError, override
from ternfed.quantize.ternary import NonFiniteError
from ternfed.round.acceptance import Bounds, NotFinite, OutOfBounds, accepted
from ternfed.round.audit import finished, is_audited
from ternfed.round.crew import Answer, Crew, at_once, train_here
from ternfed.round.exchange import Broadcast, Broadcasts, collect_each
from ternfed.round.federation import Federation, RoundOutcome, conclude, let_go, open_federation
from ternfed.round.heap import settled
from ternfed.round.intake import Intake
from ternfed.round.state import State, kept_bytes, pack, unpack
from ternfed.round.traffic import Clock, Traffic
from ternfed.runs.folder import Round, RunError, RunFolder, Saved
from ternfed.runs.live import ClientState, LiveFile, Moment, Phase, Tell, both, tell_nobody
from ternfed.task import Task, task_of
from ternfed.wire import Message

__all__ = ["DivergedError", "Federation", "federate", "open_federation", "play", "play_round", "record", "record_into"]

PARTS = ("model.ternary", "model.trainable", "model.weights")
"""What can be said of a model that is given."""

SHOWN = 200
"""Clients of a round whose states are told one by one; of more, the first."""

CHECKPOINT_SECONDS = 10.0
"""A run that is killed loses at most so much work, and a round."""


class DivergedError(RuntimeError):
    """Training ended in NaN or infinity on every client of a round."""


def play(
    federation: Federation, state: State | None = None, tell: Tell = tell_nobody, crew: Crew | None = None
) -> Iterator[tuple[State, Round]]:
    """The rounds that are left, one after another; `tell` hears what happens inside one, `crew` trains the clients."""
    state = state or federation.open()
    while state.round < federation.experiment.federation.rounds:
        state, outcome = play_round(federation, state, tell, crew)
        yield state, outcome


def federate(
    model: nn.Module,
    data: DataSet | Clients,
    *settings: str,
    device: str = "cpu",
    task: Task | str | None = None,
    test: Batches | None = None,
) -> Iterator[Round]:
    """Train a model of your own across simulated clients; after each round it holds the global weights.

    `data` is a data set, or what each client has: arrays or any iterable of batches, a `DataLoader` say
    (`from_clients`); then `test` is what models are judged on.

    `settings` are those of an experiment as `key=value` (docs/experiments.md), `federation.clients=20` say. A task is
    given as one of them, `task.name=regression`, or as a value. The logger `ternfed` says, once and as information,
    which weights are ternary. Training is in float32, whatever the model has.
    """
    if not isinstance(model, nn.Module):
        raise ExperimentError(f"model: is a {type(model).__name__}; a torch.nn.Module is needed")
    for setting in settings:
        if not isinstance(setting, str):
            raise ExperimentError(f'{setting!r}: settings are text, "training.rate=0.1" for example')
        key = setting.partition("=")[0].strip()
        if key == "data.dataset" or (key.startswith("model.") and key not in PARTS):
            raise ExperimentError(f"{setting}: has no meaning here, where the model and the data are given")
    name = data.name if isinstance(data, DataSet) else "clients"
    by_nature = {} if isinstance(data, DataSet) else {"partition": "natural"}
    own = {"data": {"dataset": f"own:{name}", **by_nature}}
    experiment = Experiment.from_table(override(own, settings))
    task = None if task is None else task_of(task)
    if not isinstance(data, DataSet):
        if test is None:
            raise ExperimentError("test: is needed, (inputs, targets) or batches of them, to judge models on")
        data = from_clients(name, data, test, task=task or experiment.make_task())
    elif test is not None:
        raise ExperimentError("test: has no meaning here, where the data set has test samples of its own")
    federation = open_federation(experiment, data, device, model, task)
    logging.getLogger("ternfed").info("%s", federation.network.summary)
    start = federation.network.model
    if federation.experiment.model.weights is not None:
        put_into(model, {**dict(start.named_parameters()), **dict(start.named_buffers())})
    opened = federation.open()
    let_go(federation.network, federation.algorithm)
    playing = play(federation, opened)
    del opened
    for state, outcome in playing:
        put_into(model, state.server.weights)
        yield outcome


def record(
    federation: Federation,
    folder: RunFolder,
    saved: Saved | None = None,
    tell: Tell = tell_nobody,
    crew: Crew | None = None,
) -> Iterator[Round]:
    """The rounds that are left, each written to the run folder; checkpoints every few seconds and at the end."""
    frozen, before = federation.network.digest, None
    if saved is not None:
        before = unpack(federation.algorithm, saved.round, saved.tensors, saved.facts, frozen)
    last = time.monotonic()
    folder.note_partition(federation.class_counts(), federation.data_name)
    for state, outcome in play(federation, before, both(LiveFile(folder.path).tell, tell), crew):
        folder.append(outcome)
        is_best = state.best_round == state.round
        is_last = state.round == federation.experiment.federation.rounds
        if is_best or is_last or time.monotonic() - last > CHECKPOINT_SECONDS:
            folder.save_checkpoint(outcome, *pack(state, frozen), is_best=is_best)
            last = time.monotonic()
        yield outcome


def record_into(
    path: Path,
    federation: Federation,
    device: str,
    *,
    resume: bool = False,
    overwrite: bool = False,
    tell: Tell = tell_nobody,
    crew: Crew | None = None,
) -> tuple[RunFolder, list[Round], Iterator[Round]]:
    """A run folder, begun or resumed; the rounds it holds already, and those to come as they are recorded."""
    experiment = federation.experiment
    if resume:
        folder, _, past, saved = RunFolder.resume(path, experiment, device=device)
        own, measure = federation.network.task.metric.measure, past[-1].measure if past else None
        if measure not in (None, own):
            folder.close()
            raise RunError(f"{path}: its rounds are scored by {past[-1].metric}, and those to come by {own.name}")
        return folder, past, record(federation, folder, saved, tell, crew)
    size = _checkpoint_bytes(federation)
    folder = RunFolder.create(path, experiment, overwrite=overwrite, checkpoint_bytes=size, device=device)
    return folder, [], record(federation, folder, tell=tell, crew=crew)


def _checkpoint_bytes(federation: Federation) -> int:
    """How large a checkpoint may become, by the model before the first round."""
    state, clients = federation.open(), len(federation.parts)
    packed = Broadcasts(federation.algorithm, state.server, 1).packed() or b""
    ages = 1 if len(federation.chosen(1)) == clients else min(clients, federation.experiment.federation.rounds)
    kept = min(ages * len(packed), kept_bytes(federation.fp32_bytes))
    return kept + sum(tensor.nbytes for tensor in pack(state)[0].values())


@settled()
def play_round(
    federation: Federation, state: State, tell: Tell = tell_nobody, crew: Crew | None = None
) -> tuple[State, Round]:
    """One round: broadcast, local training, uploads, average, update, evaluation."""
    number, clock, traffic = state.round + 1, Clock(), Traffic()
    chosen = federation.chosen(number)
    inside = _Inside(Moment(number, "broadcast", time.time(), dict.fromkeys(chosen[:SHOWN], "asked")), tell)
    broadcasts = Broadcasts(federation.algorithm, state.server, number, state.broadcasts, state.holders)
    for client in chosen:
        traffic.add_download(broadcasts.for_client(client).data)
    clock.lap("broadcast")
    inside.reach("train")
    if crew is None:
        broadcasts.forget_bytes()
        answers = train_here(federation, number, broadcasts.any(), chosen, state.memories, clock)
    else:
        answers = crew(broadcasts, chosen, state.memories, clock)
    arrived = Intake.of(
        federation.algorithm, broadcasts.any(), federation.registered, len(chosen), is_audited(federation, len(chosen))
    )
    memories, dropped = dict(state.memories), dict[int, str]()

    def take_in(part: Sequence[Answer]) -> int:
        """What some clients sent; nothing of it is held when the next ones train."""
        for answer, message in _decoded(federation, broadcasts.any(), part):
            try:
                if message is None:
                    raise NonFiniteError(answer.diverged)
                sender, bounds = federation.site(answer.client).client(number), Bounds()
                meaning = accepted(federation.algorithm, federation.network, message, broadcasts.any(), sender, bounds)
                arrived.add(answer.client, meaning)
            except (NonFiniteError, NotSummable, NotFinite, OutOfBounds) as error:
                # It goes on from where it stood before the round.
                dropped[answer.client] = f"client {answer.client}: {error}"
                inside.client(answer.client, "dropped")
                continue
            memories[answer.client] = answer.memory
            traffic.add_upload(answer.data, message, federation.algorithm, broadcasts.any())
            clock.lap("upload")
            inside.client(answer.client, "done")
        return len(part)

    while take_in(list(islice(answers, at_once(federation)))):
        pass
    if len(dropped) == len(chosen):
        reason = dropped[chosen[0]]
        raise DivergedError(f"training diverged on every client of round {number} ({reason}); lower training.rate")
    holders = tuple(client for client in chosen if client not in dropped)
    after = RoundOutcome(broadcasts, holders, memories, missing=tuple(dropped), dropped=tuple(dropped.values()))
    inside.reach("aggregate")
    return conclude(federation, state, finished(federation, state, arrived), traffic, clock, after)


def _decoded(
    federation: Federation, broadcast: Broadcast, part: Sequence[Answer]
) -> Iterator[tuple[Answer, Message | None]]:
    """What some clients sent, decoded in one go; None of those that have nothing to send."""
    sent = [answer.data for answer in part if answer.diverged is None]
    messages = iter(collect_each(federation.algorithm, sent, broadcast))
    return ((answer, next(messages) if answer.diverged is None else None) for answer in part)


class _Inside:
    """How far a round has come, for whoever watches."""

    def __init__(self, moment: Moment, tell: Tell) -> None:
        self._moment, self._tell = moment, tell
        tell(moment)

    def reach(self, phase: Phase) -> None:
        self._moment = self._moment.at(phase)
        self._tell(self._moment)

    def client(self, index: int, state: ClientState) -> None:
        if index in self._moment.clients:
            self._moment = self._moment.with_client(index, state)
            self._tell(self._moment)
