"""The trainer is the fastest one that gives what `train_one` gives: it obeys the task and the precision."""

import gc
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ternfed.algorithms.algorithm import Local, Network, Training
from ternfed.data.images import Augment
from ternfed.data.sets import load
from ternfed.data.values import Samples
from ternfed.engines.simulate import play
from ternfed.experiment.experiment import Experiment
from ternfed.models import mlp
from ternfed.quantize.ternary import TWN, Quantizer
from ternfed.round.federation import Federation, open_federation
from ternfed.task import CLASSIFICATION
from ternfed.training import batched
from ternfed.training.captured import CapturedTrainer
from ternfed.training.choose import Trainer, train_recovering, trainer_for
from ternfed.training.plain import train_one
from ternfed.training.work import Trained, TrainingData, Work

INPUTS, CLASSES, SAMPLES = 12, 4, 40
SMOOTHED = replace(CLASSIFICATION, loss=nn.CrossEntropyLoss(label_smoothing=0.1))


@pytest.fixture
def feed() -> TrainingData:
    source = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, INPUTS, generator=source)
    return TrainingData(Samples(inputs, torch.randint(CLASSES, (SAMPLES,), generator=source)), (0.0,), (1.0,))


def chain() -> Network:
    torch.manual_seed(0)
    return Network.of(mlp("relu", INPUTS, (16, 16), CLASSES))


def no_chain() -> Network:
    torch.manual_seed(0)
    return Network.of(
        nn.Sequential(nn.Linear(INPUTS, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, CLASSES))
    )


def works_of(network: Network, training: Training) -> list[Work]:
    tensors = network.weights()
    local = Local({n: tensors[n] for n in network.parameters}, {n: tensors[n] for n in network.buffers}, {}, 0.7)
    parts = torch.arange(SAMPLES).split(20)
    return [Work.draw(local, own, training, None, seed=3, round=2, client=k) for k, own in enumerate(parts)]


def moved(trained: Trained, work: Work) -> Tensor:
    return torch.cat([(t - work.local.weights[n]).flatten() for n, t in trained.local.weights.items()])


def assert_same(left: Iterator[Trained], right: list[Trained]) -> None:
    for one, other in zip(left, right, strict=True):
        # Some ten roundings of 6e-8 on numbers around 1.
        torch.testing.assert_close(one.local.weights, other.local.weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("network", "change", "way"),
    [
        (chain(), {}, "batched"),
        (chain(), {"precision": "bfloat16"}, "plain"),
        (replace(chain(), task=SMOOTHED), {}, "plain"),
        (no_chain(), {}, "plain"),
        (no_chain(), {"precision": "bfloat16"}, "plain"),
    ],
)
def test_every_choice_gives_what_one_step_after_another_gives(
    network: Network, change: dict[str, str], way: str, feed: TrainingData
) -> None:
    training = Training(epochs=1, batch=8, **change)
    trainer, works = trainer_for(network, training, feed), works_of(network, training)
    assert trainer.way == way
    assert_same(trainer.train(works), [train_one(network, training, feed, work) for work in works])


def test_augmented_samples_are_not_trained_all_at_once(feed: TrainingData) -> None:
    assert trainer_for(chain(), Training(), replace(feed, augment=Augment())).way == "plain"


@pytest.mark.parametrize("network", [chain(), no_chain()])
@pytest.mark.parametrize("quantizer", [None, TWN])
def test_bfloat16_is_obeyed_on_a_cpu_and_rounds_the_computation_but_not_the_weights(
    network: Network, quantizer: Quantizer | None, feed: TrainingData
) -> None:
    training = Training(epochs=1, batch=20, quantizer=quantizer, ternary=network.ternary if quantizer else ())
    (work, _) = works_of(network, training)
    wide, narrow = (
        next(iter(trainer_for(network, replace(training, precision=precision), feed).train([work])))
        for precision in ("float32", "bfloat16")
    )
    assert {tensor.dtype for tensor in narrow.local.weights.values()} == {torch.float32}
    # One step: its update carries bfloat16's rounding (2⁻⁹ each) of three layers' inputs, weights and gradients, and a
    # ReLU near 0 or two that fall on the other side.
    gap = (moved(narrow, work) - moved(wide, work)).norm() / moved(wide, work).norm()
    assert 2**-12 < gap < 0.15


def test_bfloat16_is_obeyed_by_a_whole_run_on_chains() -> None:
    records = [
        [record for _, record in play(small_federation(f"training.precision={precision}"))]
        for precision in ("float32", "bfloat16")
    ]
    assert records[0][-1].loss != records[1][-1].loss
    assert records[0][-1].loss == pytest.approx(records[1][-1].loss, rel=0.05)


@pytest.mark.parametrize("make", [chain, no_chain])
def test_an_unknown_precision_is_refused_everywhere(make: type[Network], feed: TrainingData) -> None:
    training = Training(batch=8, precision="float16")
    works = works_of(make(), training)
    with pytest.raises(ValueError, match="precision is 'float16'; allowed are 'float32' and 'bfloat16'"):
        list(trainer_for(make(), training, feed).train(works))


def small_federation(*settings: str) -> Federation:
    return open_federation(
        Experiment.from_toml("", ["federation.rounds=2", "training.epochs=1", "algorithm.name=fedavg", *settings]),
        load("digits"),
    )


def test_nothing_keeps_the_samples_of_a_federation_that_is_gone() -> None:
    made = small_federation()
    list(play(made))
    kept = [weakref.ref(made.feed.samples.inputs), weakref.ref(made.test.samples.inputs)]
    del made
    gc.collect()
    assert [each() for each in kept] == [None, None]


def test_what_a_captured_trainer_holds_goes_with_it(feed: TrainingData) -> None:
    network, training = no_chain(), Training(epochs=1, batch=8)
    trainer = CapturedTrainer(network, training, feed)
    list(trainer.train(works_of(network, training)))
    held = weakref.ref(trainer._device)
    assert held() is not None
    del trainer
    assert held() is None


def test_a_client_recovers_from_work_that_is_made_again_as_from_work_that_was_kept(feed: TrainingData) -> None:
    """The second client diverges until its rates are a sixteenth; its work is remade each time, and never held."""
    network, training = chain(), Training(rate=0.5, epochs=1, batch=8)
    tried: list[tuple[int, float]] = []

    def train(works: Sequence[Work]) -> Iterator[Trained]:
        for work in works:
            tried.append((int(work.order.min()), work.rates[0]))
            diverges = int(work.order.min()) >= 20 and work.rates[0] > 0.04
            weights = {name: torch.full_like(t, torch.inf) for name, t in work.local.weights.items()}
            yield Trained(replace(work.local, weights=weights) if diverges else work.local, work.rates[0])

    def losses(given: bool) -> list[float]:
        works = works_of(network, training)
        again = (lambda place: works_of(network, training)[place]) if given else None
        outcomes = train_recovering(Trainer("plain", train), works, 3, again)
        assert len(works) == (0 if given else 2)
        return [outcome.loss for outcome in outcomes]

    assert losses(given=False) == losses(given=True) == [0.5, 0.5 / 16]
    assert tried[: len(tried) // 2] == tried[len(tried) // 2 :]


def test_what_a_large_client_starts_from_is_let_go(feed: TrainingData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "WORKING_SET", {"cpu": 100, "cuda": 100})
    network, training = chain(), Training(rate=0.5, epochs=1, batch=8)
    works = works_of(network, training)
    starts = [weakref.ref(tensor) for tensor in works[0].local.weights.values()]
    alive: list[int] = []

    def steps(*arguments: Any) -> Iterator[Any]:
        alive.append(sum(start() is not None for start in starts))
        yield from real(*arguments)

    real = batched.steps_of
    monkeypatch.setattr(batched, "steps_of", steps)
    again = lambda place: works_of(network, training)[place]  # noqa: E731
    list(train_recovering(trainer_for(network, training, feed), works[:1], 3, again))
    assert alive == [len(starts)]  # the test's own list holds them
    del works[1:]
    list(train_recovering(trainer_for(network, training, feed), works, 3, again))
    assert alive[1] == 0
