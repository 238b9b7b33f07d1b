"""Which clients take a local step together, and how many samples each has in it."""

import pytest
import torch

from ternfed.algorithms.algorithm import Local, Training
from ternfed.data.values import Samples
from ternfed.models import mlp
from ternfed.training.chain import chain_of
from ternfed.training.passes import widest
from ternfed.training.steps import Step, steps_of
from ternfed.training.work import Work

SIZES = (150, 100, 70, 60, 33, 20, 7)
"""In batches of 64: the last ones have 22, 36, 6, 60, 33, 20 and 7 samples."""


def works_of(training: Training) -> list[Work]:
    starts = [sum(SIZES[:k]) for k in range(len(SIZES))]
    return [
        Work.draw(Local({}, {}, {}, 0.0), torch.arange(start, start + size), training, None, seed=0, round=0, client=k)
        for k, (start, size) in enumerate(zip(starts, SIZES, strict=True))
    ]


def parts(steps: list[Step]) -> list[tuple[int, int, int, int]]:
    """The number, the clients and the width of each step."""
    return [(step.number, step.first, step.end, step.share.shape[2]) for step in steps]


@pytest.fixture
def samples() -> Samples:
    return Samples(torch.randn(sum(SIZES), 3), torch.randint(2, (sum(SIZES),)))


def test_clients_take_a_step_together_where_short_batches_may_be_filled_up(samples: Samples) -> None:
    training = Training(epochs=2, batch=64)
    steps = list(steps_of(works_of(training), training, samples, lambda _: 64))
    assert parts(steps) == [
        (1, 0, 7, 64), (2, 0, 7, 64), (3, 0, 3, 64), (4, 0, 3, 64), (5, 0, 1, 64), (6, 0, 1, 32),
    ]  # fmt: skip


def test_otherwise_neighbours_do_and_the_others_follow(samples: Samples) -> None:
    training = Training(epochs=1, batch=64)
    steps = list(steps_of(works_of(training), training, samples, lambda width: 64 if width > 16 else 16))
    assert parts(steps) == [(1, 0, 6, 64), (1, 6, 7, 16), (2, 0, 2, 64), (2, 2, 3, 16), (3, 0, 1, 32)]


@pytest.mark.parametrize("apart", [False, True])
def test_every_sample_counts_once_an_epoch_and_a_batch_weighs_one(samples: Samples, apart: bool) -> None:
    training = Training(epochs=3, batch=64, plain_epochs=1)
    works = works_of(training)
    steps = list(steps_of(works, training, samples, (lambda width: width) if apart else (lambda _: 64)))
    seen: dict[int, list[int]] = {k: [] for k in range(len(works))}
    for step in steps:
        chosen = step.chosen.view(step.end - step.first, -1)
        torch.testing.assert_close(step.share.sum((1, 2)), torch.ones(len(chosen)))
        torch.testing.assert_close(step.labels.squeeze(1), samples.labels[chosen])
        for k, (rows, share) in enumerate(zip(chosen, step.share.squeeze(1), strict=True), start=step.first):
            epoch = (step.number - 1) // -(-SIZES[k] // 64)
            assert (k < step.plain) == (epoch < 1)
            assert (k < step.earlier) == (epoch < 2)
            seen[k] += rows[share > 0].tolist()
    assert seen == {k: work.order.flatten().tolist() for k, work in enumerate(works)}


def test_how_far_a_batch_may_be_filled_up_grows_with_it_and_ends_at_a_whole_one() -> None:
    model = mlp(inputs=12)
    chain = chain_of(model)
    assert chain is not None
    weights = {name: parameter.detach()[None] for name, parameter in model.named_parameters()}
    far = [widest(chain, weights, width, 50) for width in (16, 32, 48, 50)]
    assert far == sorted(far)
    assert all(own <= filled for own, filled in zip((16, 32, 48, 50), far, strict=True))
    assert far[-1] == 50
