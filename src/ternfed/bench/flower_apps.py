"""Somebody's Flower app, with and without ternfed's two lines: strategies by modes, in one process.

The app is Flower's quickstart: its network of 62,006 weights, plain SGD, equal parts for five clients; the data are
3,000 images of MNIST, or scikit-learn's digits, enlarged to the 32 × 32 colour images that the network takes.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ternfed.bench.ordered_grid import PARTITION, OrderedGrid, digest_of
from ternfed.data.partitions import Iid
from ternfed.data.sets import load
from ternfed.engines.flower.adapter.in_process import in_process_grid
from ternfed.engines.flower.errors import NetworkError
from ternfed.engines.flower.modes import Mode, check_bits
from ternfed.quantize.rotation import TRITS

CLIENTS, ROUNDS, EPOCHS, BATCH, RATE, MOMENTUM = 5, 10, 1, 32, 0.02, 0.9
PLAIN = "none"
"""In place of a mode: the app without ternfed."""


class QuickstartNet(nn.Sequential):
    """The network of Flower's quickstart, 62,006 weights; with BatchNorm on request."""

    def __init__(self, norm: bool = False) -> None:
        def block(layer: nn.Module, width: int, kind: type[nn.Module], *more: nn.Module) -> list[nn.Module]:
            return [layer, *([kind(width)] if norm else []), nn.ReLU(), *more]

        super().__init__(
            *block(nn.Conv2d(3, 6, 5), 6, nn.BatchNorm2d, nn.MaxPool2d(2)),
            *block(nn.Conv2d(6, 16, 5), 16, nn.BatchNorm2d, nn.MaxPool2d(2)),
            nn.Flatten(),
            *block(nn.Linear(400, 120), 120, nn.BatchNorm1d),
            *block(nn.Linear(120, 84), 84, nn.BatchNorm1d),
            nn.Linear(84, 10),
        )


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    strategy: str
    norm: bool = False
    fraction: float = 1.0

    @property
    def label(self) -> str:
        """In words."""
        more = [
            *(["BatchNorm"] if self.norm else []),
            *([f"{self.fraction:.0%} of clients"] if self.fraction < 1 else []),
        ]
        return f"{self.strategy}{', ' if more else ''}{', '.join(more)}"


@dataclass(frozen=True)
class Outcome:
    """What a run ended with."""

    case: Case
    mode: str
    seed: int
    accuracy: float
    down: float = 1.0
    """Bytes of all rounds, as a share of the same models in float32."""
    up: float = 1.0
    nodes: tuple[int, ...] = ()
    """The node id of each part of the data."""
    model: str = ""
    """The digest of the last model."""
    asked: tuple[tuple[int, ...], ...] = ()
    """The parts of the data that were asked for in each round."""


Rates = Mapping[str, float]
"""Settings of a strategy's server by name."""

RATES: Mapping[Case, Rates] = {
    Case("FedAdam"): {"eta": 0.02, "tau": 0.001},
    Case("FedYogi"): {"eta": 0.01, "tau": 0.001},
    Case("FedAdagrad"): {"eta": 0.02, "tau": 0.001},
    Case("QFedAvg"): {"client_learning_rate": 1.0},
    Case("FedAdam", norm=True): {"beta_1": 0.0, "tau": 0.1, "eta": 0.3},
    Case("FedYogi", norm=True): {"beta_1": 0.0, "tau": 1.0, "eta": 1.0},
    Case("FedAdagrad", norm=True): {"tau": 1.0, "eta": 1.0},
    Case("QFedAvg", norm=True): {"client_learning_rate": 100.0},
}
"""With which the app learns without ternfed. Those with BatchNorm were chosen by `flower_rates`, on held-out images."""


def strategies() -> dict[str, Callable[..., Any]]:
    """Flower's strategies by name; some take rates."""
    from flwr.serverapp import strategy as flower

    return {
        "FedAvg": flower.FedAvg,
        "FedProx": partial(flower.FedProx, proximal_mu=0.1),
        "FedAvgM": partial(flower.FedAvgM, server_learning_rate=1.0, server_momentum=0.5),
        "FedAdam": flower.FedAdam,
        "FedYogi": flower.FedYogi,
        "FedAdagrad": flower.FedAdagrad,
        "QFedAvg": partial(flower.QFedAvg, q=0.1),
        "FedMedian": flower.FedMedian,
        "FedTrimmedAvg": flower.FedTrimmedAvg,
        "Krum": flower.Krum,
    }


def rates_of(case: Case) -> Rates:
    """The rates of a row's server, the same with and without ternfed; none where the strategy has none."""
    return RATES.get(replace(case, fraction=1.0), {})


@dataclass(frozen=True, eq=False)
class Data:
    """What clients train with, and what the model is judged with."""

    name: str
    held_out: bool
    inputs: Tensor
    labels: Tensor
    judged: Tensor
    answers: Tensor

    def __reduce__(self) -> tuple[Any, ...]:
        """As a name: Ray hands an app to its workers with each message, and they have loaded the data themselves."""
        return _loaded, (self.name, self.held_out)


def data(name: str = "mnist", held_out: bool = False) -> Data:
    """The first 3,000 training images of MNIST, or all digits; judged with the test set, or with later training images.

    What is held out is for whoever chooses settings. A process loads it once.
    """
    return _loaded(name, held_out)


@cache
def _loaded(name: str, held_out: bool) -> Data:
    whole = load(name)
    train, labels = _images(whole.train.inputs), whole.train.labels
    count = min(3000, len(labels) * 4 // 5 if held_out else len(labels))
    if held_out:
        later = slice(count, count + 5000)
        return Data(name, True, train[:count], labels[:count], train[later], labels[later])
    return Data(name, False, train[:count], labels[:count], _images(whole.test.inputs), whole.test.labels)


def _images(inputs: Tensor) -> Tensor:
    """32 × 32 pixels in three equal colours."""
    side = round((inputs.numel() / len(inputs)) ** 0.5)
    images = inputs.reshape(-1, 1, side, side)[:10000].float()
    large = nn.functional.interpolate(images, size=32, mode="bilinear")
    return ((large - large.mean()) / large.std()).expand(-1, 3, -1, -1)


def sends_counters(case: Case, mode: str) -> bool:
    """Whether BatchNorm's counters travel. QFedAvg by itself multiplies whole numbers by a float in place, and crashes.

    An app that wants it leaves them out. They change no result: BatchNorm's momentum is a number here.
    """
    return mode != PLAIN or case.strategy != "QFedAvg"


def state_of(model: nn.Module, counters: bool) -> dict[str, Tensor]:
    """What of a model travels."""
    return {name: tensor for name, tensor in model.state_dict().items() if counters or tensor.is_floating_point()}


def client_app(given: Data, norm: bool, mods: Sequence[Any], counters: bool = True) -> Any:
    """The user's ClientApp: nothing in its train function knows of ternfed. The seed comes with the messages."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Any, context: Any) -> Any:
        config, inputs, labels = message.content["config"], given.inputs, given.labels
        seed = int(config["seed"])
        model = QuickstartNet(norm)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=counters)
        start = [parameter.detach().clone() for parameter in model.parameters()]
        parts = Iid().split(labels, CLIENTS, torch.Generator().manual_seed(seed))
        own = parts[int(context.node_config[PARTITION])]
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
        source = torch.Generator().manual_seed(hash((seed, int(config["server-round"]), int(own[0]))) % 2**62)
        mu, total = float(config.get("proximal-mu", 0.0)), 0.0
        for _ in range(EPOCHS):
            for batch in own[torch.randperm(len(own), generator=source)].split(BATCH):  # type: ignore[no-untyped-call]
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
                total += loss.item() * len(batch)
                if mu:
                    pairs = zip(model.parameters(), start, strict=True)
                    loss = loss + mu / 2 * sum((now - then).square().sum() for now, then in pairs)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        told = {"num-examples": len(own), "train_loss": total / (EPOCHS * len(own))}
        metrics = MetricRecord({**told, PARTITION: int(context.node_config[PARTITION])})
        arrays = ArrayRecord(torch_state_dict=state_of(model, counters))
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def app_of(case: Case, mode: str, given: Data) -> Any:
    """The ClientApp of a run; with ternfed, one line of it is another."""
    from ternfed.engines.flower.mod import ternary_mod

    return client_app(given, case.norm, [] if mode == PLAIN else [ternary_mod], sends_counters(case, mode))


def play(
    case: Case,
    mode: str,
    seed: int,
    given: Data,
    rounds: int = ROUNDS,
    bits_up: float = TRITS,
    nodes: Sequence[int] = range(1, CLIENTS + 1),
    asked: Sequence[Sequence[int]] = (),
    rates: Rates | None = None,
) -> Outcome:
    """One run in this process; `nodes` are the ids of its clients, `asked` says which of them each round is with."""
    grid = in_process_grid(dict.fromkeys(nodes, app_of(case, mode, given)))
    shown = [[nodes[part] for part in parts] for parts in asked]
    return serve(OrderedGrid(grid, shown), case, mode, seed, given, rounds, bits_up, rates)


def serve(
    ordered: OrderedGrid,
    case: Case,
    mode: str,
    seed: int,
    given: Data,
    rounds: int = ROUNDS,
    bits_up: float = TRITS,
    rates: Rates | None = None,
) -> Outcome:
    """The server's half of a run, with whatever clients a grid has; with ternfed, one line of it is another.

    `rates` are tried in place of the row's own.
    """
    from flwr.app import ArrayRecord, ConfigRecord, MetricRecord

    from ternfed.engines.flower.strategy import TernaryStrategy

    torch.manual_seed(seed)
    random.seed(seed)
    model, counters = QuickstartNet(case.norm), sends_counters(case, mode)
    nodes = max(2, round(CLIENTS * case.fraction))
    made: Any = strategies()[case.strategy](
        **(rates or rates_of(case)),
        fraction_train=case.fraction,
        fraction_evaluate=0.0,
        min_train_nodes=nodes,
        min_available_nodes=nodes if ordered.shown else CLIENTS,
    )
    if mode != PLAIN:
        made = TernaryStrategy(made, mode, seed=seed, bits_up=bits_up)

    def evaluate(server_round: int, arrays: Any) -> Any:
        if server_round < rounds:
            return None
        model.load_state_dict(arrays.to_torch_state_dict(), strict=counters)
        with torch.no_grad():
            right = (model.eval()(given.judged).argmax(1) == given.answers).double().mean().item()
        return MetricRecord({"accuracy": right})

    start = ArrayRecord(torch_state_dict=state_of(model, counters))
    config = ConfigRecord({"seed": seed})
    result = made.start(ordered, start, num_rounds=rounds, train_config=config, evaluate_fn=evaluate)
    if ordered.failed:  # Flower's strategies go on without them, to the end
        raise NetworkError(f"{case.label}, {mode}, seed {seed}: {ordered.failed} replies failed")
    accuracy = result.evaluate_metrics_serverapp[rounds]["accuracy"]
    metrics = result.train_metrics_clientapp
    down, up = (1.0, 1.0) if mode == PLAIN else (_share(metrics, "down"), _share(metrics, "up"))
    return Outcome(case, mode, seed, accuracy, down, up, ordered.nodes, digest_of(result.arrays), ordered.asked)


def _share(metrics: Mapping[int, Any], way: str) -> float:
    """Bytes of all rounds as a share of float32, by the metrics of a run: those that anybody sees."""
    sent = [float(each[f"ternfed-bytes-{way}"]) for each in metrics.values()]
    shares = [float(each[f"ternfed-share-of-float32-{way}"]) for each in metrics.values()]
    return sum(sent) / sum(size / share for size, share in zip(sent, shares, strict=True))


def quiet() -> None:
    """Flower says nothing but errors."""
    import flwr.serverapp.strategy  # noqa: F401  (it sets its logger up when it is loaded)

    logging.getLogger("flwr").setLevel(logging.ERROR)


Play = Callable[..., Iterable[Outcome]]
"""Makes the runs of one row in one mode, from some seeds."""


def play_each(case: Case, mode: str, seeds: Sequence[int], given: Data, **more: Any) -> Iterator[Outcome]:
    """Runs in this process, one after the other."""
    return (play(case, mode, seed, given, **more) for seed in seeds)


def cases(names: Sequence[str] | None = None) -> list[Case]:
    """All rows: every strategy with and without BatchNorm, and FedAvg and FedAdam with three of five clients."""
    for name in names or ():
        if name not in strategies():
            raise ValueError(f"--strategy {name}: {', '.join(strategies())} is allowed")
    rows = [Case(name, norm) for name in names or strategies() for norm in (False, True)]
    return rows + [Case(name, fraction=0.6) for name in ("FedAvg", "FedAdam") if not names or name in names]


def modes(names: Sequence[str] | None = None) -> list[str]:
    """The columns: without ternfed, and each of its modes."""
    known = [PLAIN, *Mode]
    for name in names or ():
        if name not in known:
            raise ValueError(f"--mode {name}: {', '.join(known)} is allowed")
    return list(names or known)


def run(
    rows: Iterable[Case],
    modes: Sequence[str],
    seeds: Iterable[int],
    name: str = "mnist",
    bits_up: float = TRITS,
    kept: Path | None = None,
    play: Play = play_each,
) -> Iterator[Outcome]:
    """Every row in every mode from every seed.

    `kept` is a file of outcomes, one JSON object per line: those in it are not run again, new ones are added.
    """
    quiet()
    check_bits(bits_up)
    chosen, known = list(seeds), {} if kept is None else read_outcomes(kept)
    for case in rows:
        for mode in modes:
            missing = [seed for seed in chosen if (case, mode, seed) not in known]
            for outcome in play(case, mode, missing, data(name), bits_up=bits_up) if missing else ():
                known[case, mode, outcome.seed] = outcome
                if kept is not None:
                    with kept.open("a", encoding="utf-8") as stream:
                        stream.write(json.dumps(asdict(outcome)) + "\n")
            yield from (known[case, mode, seed] for seed in chosen)


def outcome_of(table: Mapping[str, Any]) -> Outcome:
    """What `asdict` made a table of."""
    asked = tuple(tuple(parts) for parts in table.get("asked", ()))
    return Outcome(**{**table, "case": Case(**table["case"]), "nodes": tuple(table.get("nodes", ())), "asked": asked})


def read_outcomes(file: Path) -> dict[tuple[Case, str, int], Outcome]:
    """The outcomes in a file, by what was run; none where there is no file. ValueError where it is another file."""
    if not file.exists():
        return {}
    found: dict[tuple[Case, str, int], Outcome] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            table = json.loads(line)
            outcome = outcome_of(table)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{file}, line {number}: is no outcome of this benchmark") from error
        found[outcome.case, outcome.mode, outcome.seed] = outcome
    return found


def stored(kept: Path, rows: Iterable[Case], modes: Sequence[str], seeds: Iterable[int]) -> list[Outcome]:
    """What of these rows a file of outcomes has, in their order; nothing is run."""
    known, chosen = read_outcomes(kept), list(seeds)
    wanted = [(case, mode, seed) for case in rows for mode in modes for seed in chosen]
    return [known[each] for each in wanted if each in known]


def again(
    outcomes: Iterable[Outcome], name: str = "mnist", rounds: int = ROUNDS, bits_up: float = TRITS
) -> Iterator[tuple[Outcome, Outcome]]:
    """Runs that were made elsewhere, each with the same run in this process.

    It has the same seed, the same node ids, and the same clients in each round.
    """
    quiet()
    for first in outcomes:
        if len(first.nodes) != CLIENTS:
            raise ValueError(f"{first.case.label}, {first.mode}, seed {first.seed}: not all of its node ids are known")
        yield first, play(first.case, first.mode, first.seed, data(name), rounds, bits_up, first.nodes, first.asked)
