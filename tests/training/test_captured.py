"""Local training as it runs on a GPU gives what one plain step after another gives."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from ternfed.algorithms.algorithm import Local, Network, Training
from ternfed.algorithms.optimizers import Adam, Sgd
from ternfed.data.images import Augment
from ternfed.data.values import Samples
from ternfed.quantize.ternary import FTTQ, TTQ, TWN, Quantizer, start_factors
from ternfed.training.captured import CapturedTrainer, _Kind, _OnDevice, _turn
from ternfed.training.plain import train_one
from ternfed.training.work import Trained, TrainingData, Work

# Sums run in another order: flat instead of by layer, channels last instead of first. After a dozen steps that is a
# few hundred units in the last place of a float64 near 1.
CLOSE = {"rtol": 1e-10, "atol": 1e-11}


class Widen(nn.Module):
    """float32 images into a float64 network, so that augmentation can be compared to float64 rounding."""

    def forward(self, batch: Tensor) -> Tensor:
        return batch.double()


def small_network(*extra: nn.Module, dtype: torch.dtype = torch.float64) -> Network:
    torch.manual_seed(0)
    parts = OrderedDict(
        conv1=nn.Conv2d(3, 4, 3, padding=1),
        norm1=nn.BatchNorm2d(4),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(4, 6, 3, padding=1, bias=False),
        norm2=nn.BatchNorm2d(6),
        relu2=nn.ReLU(),
        conv3=nn.Conv2d(6, 4, 1, bias=False),
        norm3=nn.BatchNorm2d(4),
        pool=nn.AdaptiveAvgPool2d(2),
        flatten=nn.Flatten(),
        linear1=nn.Linear(16, 9),
        relu3=nn.ReLU(),
        linear2=nn.Linear(9, 5),
    )
    widen = OrderedDict(widen=Widen()) if dtype == torch.float64 else OrderedDict()
    more = OrderedDict((f"extra{i}", part) for i, part in enumerate(extra))
    return Network.of(nn.Sequential(widen | more | parts).to(dtype))


def images(count: int = 60, augment: Augment | None = None, device: str = "cpu", exact: bool = False) -> TrainingData:
    """Random images; `exact` ones that every device normalises to the same bits, by powers of two."""
    source = torch.Generator().manual_seed(1)
    labels = torch.randint(5, (count,), generator=source)
    if augment is None:
        inputs = torch.randn(count, 3, 8, 8, generator=source)
        return TrainingData(Samples(inputs.to(device), labels.to(device)), (0.0,), (1.0,))
    pixels = torch.randint(256, (count, 3, 8, 8), generator=source, dtype=torch.uint8)
    if exact:
        return TrainingData(Samples((pixels / 256).to(device), labels.to(device)), (0.5,) * 3, (0.25,) * 3, augment)
    return TrainingData(Samples(pixels.to(device), labels.to(device)), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), augment)


def local_of(network: Network, training: Training, client: int = 0) -> Local:
    """The network's weights, a little different for each client, with factors where they are trained."""
    source = torch.Generator().manual_seed(client)
    tensors = network.weights()
    weights = {name: tensors[name] for name in network.parameters}
    for name in weights:
        weights[name] = weights[name] + 0.01 * torch.randn(weights[name].shape, generator=source).to(weights[name])
    factors = {}
    if training.quantizer is not None:
        started = {name: start_factors(weights[name], training.quantizer) for name in training.ternary}
        factors = {name: factor for name, factor in started.items() if factor is not None}
    buffers = {name: tensors[name] for name in network.buffers}
    threshold = 0.0 if training.quantizer is None else training.quantizer.factor + 0.01 * client
    return Local(weights, buffers, factors, threshold, dict.fromkeys(training.ternary, 1.5 + 0.1 * client))


def works_of(network: Network, training: Training, feed: TrainingData, sizes: list[int]) -> list[Work]:
    works, first = [], 0
    for client, size in enumerate(sizes):
        indices = torch.arange(first, first + size) % len(feed.samples)
        local = local_of(network, training, client)
        work = Work.draw(local, indices, training, feed.augment, seed=3, round=2, client=client)
        works.append(replace(work, rates=replace(training, rate=training.rate * (1 + client)).rates))
        first += size
    return works


def train_captured(
    network: Network, training: Training, feed: TrainingData, works: list[Work], **options: int
) -> Iterator[Trained]:
    return CapturedTrainer(network, training, feed, **options).train(works)


def assert_same(left: Trained, right: Trained, **close: float) -> None:
    for part in ("weights", "factors", "buffers"):
        one, two = getattr(left.local, part), getattr(right.local, part)
        assert list(one) == list(two)
        for name in one:
            torch.testing.assert_close(
                one[name].cpu(), two[name].cpu(), msg=lambda text, n=name: f"{n}: {text}", **close
            )
    assert left.local.threshold == right.local.threshold
    assert left.loss == pytest.approx(right.loss, rel=close["rtol"])


ALGORITHMS = {
    "fedavg": {},
    "fttq": {"quantizer": Quantizer()},
    "the paper's fttq": {"quantizer": FTTQ, "clip": 0.3},
    "ttq": {"quantizer": TTQ, "latent_rate": 3.0, "factor_rate": 0.1},
    "twn": {"quantizer": TWN},
}
OPTIMIZERS = {
    "sgd": {"optimizer": Sgd(), "rate": 0.05},
    "momentum": {"optimizer": Sgd(momentum=0.9), "rate": 0.02, "weight_decay": 0.01},
    "adam": {"optimizer": Adam(), "rate": 0.003, "weight_decay": 0.01},
    "own for latents": {"optimizer": Sgd(), "rate": 0.05, "latent_optimizer": Adam(), "latent_rate": 0.01},
}


def training_of(network: Network, algorithm: str, optimizer: str, **more: object) -> Training:
    options = {"epochs": 2, "batch": 8, **ALGORITHMS[algorithm], **OPTIMIZERS[optimizer], **more}
    return Training(ternary=network.ternary if "quantizer" in options else (), **options)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_agrees_with_one_step_after_another_to_float64_rounding(algorithm: str, optimizer: str) -> None:
    network, feed = small_network(), images(augment=Augment(padding=2))
    training = training_of(network, algorithm, optimizer)
    works = works_of(network, training, feed, [16, 21, 19])
    for outcome, work in zip(train_captured(network, training, feed, works), works, strict=True):
        assert_same(outcome, train_one(network, training, feed, work), **CLOSE)


def test_clients_of_nearly_one_size_take_all_but_their_tails_together() -> None:
    plans = [[_Kind(8, True)] * 3 + [_Kind(tail, True)] for tail in (5, 4, 3)]
    at, moves = [0, 0, 0], []
    while ahead := {k: (plans[k] * 2)[at[k]] for k in range(3) if at[k] < 8}:
        for which in _turn(ahead, full=8):
            moves.append(which)
            at = [steps + (k in which) for k, steps in enumerate(at)]
    assert moves == ([(0, 1, 2)] * 3 + [(0,), (1,), (2,)]) * 2


def test_a_client_that_does_not_quantize_yet_catches_up_with_the_others() -> None:
    assert _turn({0: _Kind(8, True), 1: _Kind(8, False), 2: _Kind(8, False)}, full=8) == [(1, 2)]
    assert _turn({0: _Kind(8, True), 2: _Kind(8, True)}, full=8) == [(0, 2)]


def test_uneven_clients_come_back_in_the_order_they_were_given() -> None:
    network, feed = small_network(), images()
    training = training_of(network, "fttq", "adam")
    works = works_of(network, training, feed, [3, 30, 8, 1 + 16, 16])
    # A batch of one sample passes BatchNorm here, because its images have more than one position.
    outcomes = list(train_captured(network, training, feed, works, side_by_side=2))
    for outcome, work in zip(outcomes, works, strict=True):
        assert_same(outcome, train_one(network, training, feed, work), **CLOSE)


def test_plain_epochs_leave_factors_and_their_optimizer_state_alone() -> None:
    network, feed = small_network(), images()
    training = training_of(network, "fttq", "adam", epochs=3, plain_epochs=2)
    works = works_of(network, training, feed, [11, 20])
    for outcome, work in zip(train_captured(network, training, feed, works), works, strict=True):
        assert_same(outcome, train_one(network, training, feed, work), **CLOSE)


def test_frozen_parameters_stay_as_they_were() -> None:
    network, feed = small_network().without(("conv1.weight", "norm2.bias")), images()
    before = {name: tensor.detach().clone() for name, tensor in network.model.state_dict().items()}
    training = training_of(network, "fttq", "momentum")
    works = works_of(network, training, feed, [20])
    (outcome,) = train_captured(network, training, feed, works)
    assert_same(outcome, train_one(network, training, feed, works[0]), **CLOSE)
    assert set(network.frozen).isdisjoint(outcome.local.weights)
    for name in network.frozen:
        assert torch.equal(network.model.state_dict()[name], before[name])


def test_nothing_is_left_over_from_the_clients_before() -> None:
    network, feed = small_network(), images(augment=Augment(padding=2))
    training = training_of(network, "fttq", "adam")
    works = works_of(network, training, feed, [20, 13])
    trainer = CapturedTrainer(network, training, feed)
    first = list(trainer.train(works))
    list(trainer.train(works[::-1]))
    again = list(trainer.train(works))
    for left, right in zip(first, again, strict=True):
        assert_same(left, right, rtol=0.0, atol=0.0)


def test_a_network_that_draws_at_random_gets_each_clients_own_seed() -> None:
    network, feed = small_network(nn.Dropout(0.5)), images()
    training = training_of(network, "fedavg", "sgd")
    works = works_of(network, training, feed, [16, 16, 11])
    trainer = CapturedTrainer(network, training, feed)
    together = list(trainer.train(works))
    for outcome, work in zip(together, works, strict=True):
        (alone,) = trainer.train([work])
        assert_same(outcome, alone, rtol=0.0, atol=0.0)
    (other,) = trainer.train([replace(works[0], seed=works[0].seed + 1)])
    assert other.loss != together[0].loss


def test_a_batchnorm_that_runs_twice_counts_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(3)

        def forward(self, batch: Tensor) -> Tensor:
            twice: Tensor = self.norm(self.norm(batch))
            return twice

    network, feed = small_network(Twice()), images()
    training = training_of(network, "fedavg", "sgd")
    works = works_of(network, training, feed, [20])
    (outcome,) = train_captured(network, training, feed, works)
    assert outcome.local.buffers["extra0.norm.num_batches_tracked"] == 2 * 3 * 2
    assert_same(outcome, train_one(network, training, feed, works[0]), **CLOSE)


def test_bfloat16_rounds_the_computation_but_not_the_weights() -> None:
    network, feed = small_network(dtype=torch.float32), images(augment=Augment(padding=2))
    training = training_of(network, "fttq", "sgd", epochs=1)
    works = works_of(network, training, feed, [8])
    (narrow,) = train_captured(network, replace(training, precision="bfloat16"), feed, works)
    (wide,) = train_captured(network, training, feed, works)
    assert all(tensor.dtype == torch.float32 for tensor in narrow.local.weights.values())

    def moved(outcome: Trained) -> Tensor:
        return torch.cat([(t - works[0].local.weights[n]).flatten() for n, t in outcome.local.weights.items()])

    # One step: its update carries bfloat16's rounding (2⁻⁹ each) of five layers' inputs, weights and gradients.
    gap = (moved(narrow) - moved(wide)).norm() / moved(wide).norm()
    assert 2**-12 < gap < 15 * 2**-9


def test_an_unknown_precision_is_refused() -> None:
    network, feed = small_network(), images()
    training = training_of(network, "fedavg", "sgd", precision="float16")
    with pytest.raises(ValueError, match="precision is 'float16'"):
        list(train_captured(network, training, feed, works_of(network, training, feed, [8])))


def test_no_work_is_no_result() -> None:
    assert list(train_captured(small_network(), Training(), images(), [])) == []


def test_a_step_that_no_graph_can_hold_is_made_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(self: _OnDevice, which: tuple[int, ...], kind: _Kind) -> torch.cuda.CUDAGraph:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    network = small_network()
    training = training_of(network, "fttq", "adam", epochs=4)
    works = works_of(network, training, images(), [45, 40])
    trainer = CapturedTrainer(network, training, images())
    list(trainer.train(works[:1]))
    assert trainer._device is not None
    monkeypatch.setattr(_OnDevice, "_capture", refused)
    trainer._device.captures = True  # as on a GPU
    for outcome, work in zip(trainer.train(works), works, strict=True):
        assert_same(outcome, train_one(network, training, images(), work), **CLOSE)
    (said,) = caplog.messages
    assert said.endswith("without a captured graph, slower: operation not permitted when stream is capturing")


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


@needs_gpu
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_graphs_agree_with_one_step_after_another_to_float64_rounding(algorithm: str, optimizer: str) -> None:
    network = small_network()
    here, there = (images(augment=Augment(padding=2), device=device, exact=True) for device in ("cpu", "cuda"))
    # A GPU's fused optimizers read their rates as float32: powers of two are the same in both.
    exact = {"rate": 2.0**-7, "latent_rate": 2.0, "factor_rate": 0.25}
    training = training_of(network, algorithm, optimizer, **exact, epochs=4)
    works = [replace(work, rates=training.rates) for work in works_of(network, training, here, [45, 45, 43])]
    for outcome, work in zip(train_captured(network, training, there, works), works, strict=True):
        assert_same(outcome, train_one(network, training, here, work), rtol=1e-9, atol=1e-10)


@needs_gpu
def test_graphs_in_float32_agree_to_its_rounding() -> None:
    network = small_network(dtype=torch.float32)
    here, there = images(augment=Augment(padding=2)), images(augment=Augment(padding=2), device="cuda")
    training = training_of(network, "fedavg", "sgd", epochs=2)
    works = works_of(network, training, here, [48])
    (outcome,) = train_captured(network, training, there, works)
    plain = train_one(network, training, here, works[0])
    # 12 steps on weights near 1/2, each with sums of some hundred terms: 12 · √100 · 2⁻²⁴ is 7e-6.
    assert_same(outcome, plain, rtol=1e-4, atol=1e-5)


@needs_gpu
def test_graphs_repeat_to_the_bit() -> None:
    network = small_network(dtype=torch.float32)
    training = training_of(network, "fttq", "adam", epochs=3, precision="bfloat16")
    feed = images(augment=Augment(padding=2), device="cuda")
    works = works_of(network, training, feed, [40, 35, 40])
    trainer = CapturedTrainer(network, training, feed)
    first = list(trainer.train(works))
    for left, right in zip(first, trainer.train(works), strict=True):
        assert_same(left, right, rtol=0.0, atol=0.0)


@needs_gpu
def test_graphs_start_over_when_a_larger_client_comes(caplog: pytest.LogCaptureFixture) -> None:
    network = small_network(dtype=torch.float32)
    training = training_of(network, "fttq", "adam", epochs=3)
    feed = images(augment=Augment(padding=2), device="cuda")
    trainer = CapturedTrainer(network, training, feed)
    for size in (20, 30, 45, 20):
        list(trainer.train(works_of(network, training, feed, [size, size])))
    assert "without a captured graph" not in caplog.text


class Curious(nn.Module):
    """Looks at a number on the CPU, which no graph can hold."""

    def forward(self, batch: Tensor) -> Tensor:
        return batch if float(batch.sum()) < 1e9 else -batch


@needs_gpu
def test_a_network_that_no_graph_can_hold_trains_all_the_same() -> None:
    network = small_network(Curious())
    here, there = (images(augment=Augment(padding=2), device=device, exact=True) for device in ("cpu", "cuda"))
    training = training_of(network, "fttq", "sgd", rate=2.0**-7, epochs=4)
    works = [replace(work, rates=training.rates) for work in works_of(network, training, here, [45, 45])]
    for outcome, work in zip(train_captured(network, training, there, works), works, strict=True):
        assert_same(outcome, train_one(network, training, here, work), rtol=1e-9, atol=1e-10)
