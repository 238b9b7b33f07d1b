"""Training many clients at once gives what training them one after another gives, to float64 rounding."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from ternfed.algorithms.algorithm import Local, Network, Training
from ternfed.algorithms.optimizers import Adam, Sgd
from ternfed.data.images import Augment
from ternfed.data.values import Samples
from ternfed.models import cnn, mlp
from ternfed.quantize.ternary import FTTQ, TTQ, TWN, FactorGradient, Quantizer, Rule, start_factors
from ternfed.task import CLASSIFICATION
from ternfed.training import batched
from ternfed.training.batched import train_batched
from ternfed.training.chain import Layer, chain_of
from ternfed.training.choose import trainer_for
from ternfed.training.plain import train_one
from ternfed.training.work import Trained, TrainingData, Work

# Sums in another order differ by about 1e-16; Adam divides by √v + 1e-8, which enlarges that where gradients vanish.
CLOSE = {"rtol": 1e-12, "atol": 1e-12}
INPUTS, CLASSES = 12, 5
SIZES = (1, 23, 8, 5, 17, 8, 16, 30)
"""One sample, less than a batch of 8, exactly one or two batches, and several with a rest."""

QUANTIZERS = {
    "paper": FTTQ,
    "exact": Quantizer(Rule.MEAN, 0.7),
    "scaled": Quantizer(Rule.MEAN, 0.7, gradient=FactorGradient.SCALED),
    "max rule": Quantizer(Rule.MAX, 0.3),
    "pair": TTQ,
    "mean": TWN,
    "straight": replace(FTTQ, straight=True),
    "mean scale, not straight": replace(TWN, straight=False),
}
OPTIMIZERS = {
    "sgd": Training(rate=0.1),
    "decay": Training(rate=0.1, weight_decay=0.01),
    "momentum": Training(Sgd(momentum=0.9), rate=0.05, weight_decay=0.01),
    "adam": Training(Adam(), rate=0.01, weight_decay=0.01),
}


def with_biases() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(INPUTS, 24),
        nn.ReLU(),
        nn.Sequential(nn.Linear(24, 18), nn.Identity(), nn.ReLU()),
        nn.Linear(18, 14),
        nn.Linear(14, CLASSES, bias=False),
    )


def without_activation() -> nn.Module:
    return mlp("none", INPUTS, (24, 18, 18), CLASSES)


def small_mlp() -> nn.Module:
    return mlp("relu", INPUTS, (24, 18, 18), CLASSES)


def feed_of(samples: int, dtype: torch.dtype = torch.float64) -> TrainingData:
    source = torch.Generator().manual_seed(1)
    inputs = torch.randn(samples, 3, 4, generator=source, dtype=torch.float64).to(dtype)
    return TrainingData(Samples(inputs, torch.randint(CLASSES, (samples,), generator=source)), (0.0,), (1.0,))


def network_of(build: Callable[[], nn.Module]) -> Network:
    torch.manual_seed(0)
    return Network.of(build().double())


def works_of(network: Network, training: Training, sizes: tuple[int, ...] = SIZES) -> list[Work]:
    """Every client starts elsewhere, with a T_k and factors of its own."""
    works, at = [], 0
    for k, size in enumerate(sizes):
        source = torch.Generator().manual_seed(k)
        weights = {
            name: tensor + 0.1 * torch.randn(tensor.shape, generator=source, dtype=tensor.dtype)
            for name, tensor in network.weights().items()
        }
        factors: dict[str, Tensor] = {}
        if training.quantizer is not None:
            started = {name: start_factors(weights[name], training.quantizer) for name in training.ternary}
            factors = {name: factor for name, factor in started.items() if factor is not None}
        threshold = 0.0 if training.quantizer is None else training.quantizer.factor * (1 + 0.05 * k)
        local = Local(weights, {}, factors, threshold, dict.fromkeys(training.ternary, 0.5 + 0.1 * k))
        works.append(Work.draw(local, torch.arange(at, at + size), training, None, seed=3, round=2, client=k))
        at += size
    return works


def assert_the_same(together: list[Trained], alone: list[Trained]) -> None:
    assert len(together) == len(alone)
    for fast, plain in zip(together, alone, strict=True):
        torch.testing.assert_close(fast.local.weights, plain.local.weights, **CLOSE)
        torch.testing.assert_close(fast.local.factors, plain.local.factors, **CLOSE)
        torch.testing.assert_close(fast.local.buffers, plain.local.buffers, rtol=0, atol=0)
        assert fast.local.threshold == plain.local.threshold
        assert fast.loss == pytest.approx(plain.loss, rel=1e-12)


def check(network: Network, training: Training, works: list[Work] | None = None) -> list[Trained]:
    """Both ways, held against each other; every client that has samples must really have moved."""
    works = works_of(network, training) if works is None else works
    feed = feed_of(sum(work.order.shape[1] for work in works))
    alone = [train_one(network, training, feed, work) for work in works]
    assert_the_same(list(train_batched(network, training, feed, works)), alone)
    for work, trained in zip(works, alone, strict=True):
        start, end = work.local.weights, trained.local.weights
        assert any(not torch.equal(start[name], end[name]) for name in start) == (work.order.numel() > 0)
    return alone


@pytest.mark.parametrize("build", [small_mlp, without_activation, with_biases])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_plain_weights_are_trained_as_one_client_at_a_time(build: Callable[[], nn.Module], optimizer: str) -> None:
    check(network_of(build), replace(OPTIMIZERS[optimizer], epochs=3, batch=8))


# No ReLU right after ternary weights without bias: sums of a few equal sizes cancel there, and whether 0 or 1e-18 is
# left, which decides about a gradient, is a matter of rounding.
@pytest.mark.parametrize("build", [without_activation, with_biases])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_ternary_weights_are_trained_as_one_client_at_a_time(
    build: Callable[[], nn.Module], optimizer: str, quantizer: str
) -> None:
    network = network_of(build)
    base = OPTIMIZERS[optimizer]
    check(network, replace(base, epochs=3, batch=8, quantizer=QUANTIZERS[quantizer], ternary=network.ternary))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_setting_of_ternary_training_is_obeyed(optimizer: str) -> None:
    network = network_of(with_biases)
    plain = replace(OPTIMIZERS[optimizer], epochs=4, batch=8, quantizer=Quantizer(), ternary=network.ternary)
    before = check(network, plain)[1].local
    for change in (
        {"clip": 0.2},
        {"plain_epochs": 2},
        {"latent_rate": 3.0},
        {"latent_optimizer": Adam(), "latent_rate": 0.02},
        {"latent_optimizer": Sgd(momentum=0.5), "latent_rate": 0.02, "decay": 0.5},
        {"factor_rate": 0.1},
    ):
        after = check(network, replace(plain, **change))[1].local
        assert any(not torch.equal(after.weights[name], before.weights[name]) for name in after.weights), change


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_is_frozen_is_one_for_all_clients_and_stays(optimizer: str) -> None:
    whole = network_of(with_biases)
    first, last = whole.parameters[:2], whole.parameters[-1:]
    plain = replace(OPTIMIZERS[optimizer], epochs=4, batch=8, quantizer=Quantizer(), ternary=whole.ternary)
    for names in (first, first[:1], last, (*first, *last)):
        network = whole.without(names)
        for training in (plain, replace(plain, clip=0.2, plain_epochs=3, latent_rate=2.0, factor_rate=0.5)):
            assert set(names).isdisjoint(check(network, training)[1].local.weights)


def test_epochs_that_are_all_plain_leave_the_factors_alone() -> None:
    network = network_of(small_mlp)
    training = Training(
        Sgd(momentum=0.9), epochs=2, batch=8, quantizer=Quantizer(), ternary=network.ternary, plain_epochs=2
    )
    works = works_of(network, training)
    for work, trained in zip(works, check(network, training, works), strict=True):
        assert all(torch.equal(trained.local.factors[name], work.local.factors[name]) for name in network.ternary)


def test_latent_rate_and_clip_hold_without_a_quantizer_too() -> None:
    network = network_of(small_mlp)
    training = Training(epochs=2, batch=8, ternary=network.ternary, latent_rate=5.0, clip=0.2)
    for trained in check(network, training):
        assert max(float(trained.local.weights[name].abs().max()) for name in network.ternary) <= 0.2


@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=9), most=st.integers(1, 9), seed=st.integers(0, 9))
@settings(deadline=None, max_examples=25)
def test_sizes_and_chunks_do_not_matter(sizes: list[int], most: int, seed: int) -> None:
    network = network_of(with_biases)
    training = Training(epochs=2, batch=8, quantizer=Quantizer(), ternary=network.ternary, plain_epochs=seed % 2)
    works = works_of(network, training, tuple(sizes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batched, "_clients_at_once", lambda *_: most)
        patch.setattr(batched, "WINDOW", most + seed)
        check(network, training, works)


def test_clients_may_differ_in_rate_and_in_epochs() -> None:
    network = network_of(small_mlp)
    training = Training(epochs=3, batch=8)
    works = works_of(network, training)
    works = [
        replace(work, rates=(0.1 * (1 + k % 2),) * 3, order=work.order[: 3 - k % 3]) for k, work in enumerate(works)
    ]
    check(network, training, works)


@pytest.mark.parametrize("sizes", [(1, 7, 30, 64, 65, 100, 128, 200, 333), (64,) * 9])
def test_a_client_gets_the_same_bits_alone_and_among_others(sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    network = Network.of(mlp())
    training = Training(epochs=2, quantizer=Quantizer(), ternary=network.ternary)
    feed = TrainingData(Samples(torch.randn(sum(sizes), 784), torch.randint(10, (sum(sizes),))), (0.0,), (1.0,))
    works = works_of(network, training, sizes)
    together = list(train_batched(network, training, feed, works))
    for k, work in enumerate(works):
        [alone] = train_batched(network, training, feed, [work])
        assert alone.loss == together[k].loss
        torch.testing.assert_close(alone.local.weights, together[k].local.weights, rtol=0, atol=0)
        torch.testing.assert_close(alone.local.factors, together[k].local.factors, rtol=0, atol=0)


def tiny() -> nn.Module:
    """Layers of so few numbers that PyTorch multiplies short batches of them without BLAS."""
    return nn.Sequential(nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 3))


def middling() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 100), nn.ReLU(), nn.Linear(100, 64), nn.Linear(64, 20), nn.Linear(20, 5))


@pytest.mark.parametrize("build", [with_biases, tiny, middling])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("batch", [50, 64, 128])
def test_so_it_does_whatever_code_the_sizes_of_its_products_choose(
    build: Callable[[], nn.Module], optimizer: str, batch: int
) -> None:
    torch.manual_seed(0)
    network = Network.of(build())
    training = replace(OPTIMIZERS[optimizer], epochs=2, batch=batch)
    sizes = (7, 16, 30, 45, 48, 60, 70, 100, 111, 300)
    feed = TrainingData(Samples(torch.randn(sum(sizes), 12), torch.randint(3, (sum(sizes),))), (0.0,), (1.0,))
    works = works_of(network, training, sizes)
    for work, among in zip(works, list(train_batched(network, training, feed, works)), strict=True):
        [alone] = train_batched(network, training, feed, [work])
        assert alone.loss == among.loss
        torch.testing.assert_close(alone.local.weights, among.local.weights, rtol=0, atol=0)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_clients_whose_batches_may_not_be_filled_up_alike_are_trained_all_the_same(
    optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batched, "widest", lambda _chain, _weights, width, batch: batch if width in (32, 48) else width)
    network = network_of(with_biases)
    plain = replace(OPTIMIZERS[optimizer], epochs=3, batch=48)
    fttq = replace(plain, quantizer=Quantizer(), ternary=network.ternary, clip=0.5)
    for training in (plain, fttq, replace(fttq, plain_epochs=1), replace(fttq, plain_epochs=3)):
        works = works_of(network, training, (1, 110, 20, 60, 48, 65, 47, 16, 150))
        check(network, training, works)


def test_a_client_without_samples_comes_back_as_it_was() -> None:
    network = network_of(small_mlp)
    works = works_of(network, Training(epochs=2, batch=8), (0, 4))
    done = check(network, Training(epochs=2, batch=8), works)[0]
    assert done.loss == 0
    assert all(torch.equal(done.local.weights[name], tensor) for name, tensor in works[0].local.weights.items())


def test_results_share_no_memory_with_the_start_or_with_each_other() -> None:
    network, training = network_of(small_mlp), Training(epochs=1, batch=8)
    works = works_of(network, training)
    before = [{name: tensor.clone() for name, tensor in work.local.weights.items()} for work in works]
    done = list(train_batched(network, training, feed_of(sum(SIZES)), works))
    for work, start, trained in zip(works, before, done, strict=True):
        assert all(torch.equal(work.local.weights[name], tensor) for name, tensor in start.items())
        assert all(t.untyped_storage().nbytes() == t.nbytes for t in trained.local.weights.values())


def test_single_precision_stays_close_to_one_client_at_a_time() -> None:
    torch.manual_seed(0)
    network = Network.of(small_mlp())
    training, feed = Training(epochs=2, batch=8), feed_of(sum(SIZES), torch.float32)
    works = works_of(network, training)
    together = list(train_batched(network, training, feed, works))
    alone = [train_one(network, training, feed, work) for work in works]
    for fast, plain in zip(together, alone, strict=True):
        # Some ten roundings of 6e-8 on numbers around 1.
        torch.testing.assert_close(fast.local.weights, plain.local.weights, rtol=1e-5, atol=1e-6)


def test_an_impossible_threshold_is_refused_as_elsewhere() -> None:
    network = network_of(small_mlp)
    training = Training(epochs=1, batch=8, quantizer=TTQ, ternary=network.ternary)
    works = [replace(work, local=replace(work.local, threshold=1.5)) for work in works_of(network, training)]
    with pytest.raises(ValueError, match=r"threshold factor 1\.5"):
        list(train_batched(network, training, feed_of(sum(SIZES)), works))


def test_a_thousand_clients_of_a_sample_or_two_are_trained_in_bounded_chunks() -> None:
    network = Network.of(mlp("none", 64))
    training = Training(epochs=2, batch=8, quantizer=Quantizer(), ternary=network.ternary)
    source = torch.Generator().manual_seed(0)
    samples = Samples(torch.randn(1797, 64, generator=source), torch.randint(10, (1797,), generator=source))
    weights = network.weights()
    factors = {name: start_factors(weights[name], Quantizer()) for name in network.ternary}
    works = [
        Work.draw(
            Local(weights, {}, factors, 0.7), torch.arange(k, 1797, 1000), training, None, seed=0, round=0, client=k
        )
        for k in range(1000)
    ]
    feed = TrainingData(samples, (0.0,), (1.0,))
    done = list(train_batched(network, training, feed, iter(works)))
    assert len(done) == 1000
    for k in (0, 500, 999):
        alone = train_one(network, training, feed, works[k])
        torch.testing.assert_close(done[k].local.weights, alone.local.weights, rtol=1e-5, atol=1e-6)


def test_a_chain_is_read_off_the_model() -> None:
    assert chain_of(mlp()) == [
        Layer("linear1.weight", None, True), Layer("linear2.weight", None, True), Layer("linear3.weight", None, False),
    ]  # fmt: skip
    assert chain_of(with_biases()) == [
        Layer("1.weight", "1.bias", True), Layer("3.0.weight", "3.0.bias", True),
        Layer("4.weight", "4.bias", False), Layer("5.weight", None, False),
    ]  # fmt: skip
    assert chain_of(nn.Linear(3, 2)) == [Layer("weight", "bias", False)]
    assert chain_of(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.ReLU())) == [Layer("0.weight", "0.bias", True)]


def test_a_sample_that_does_not_fit_is_left_to_the_model_itself() -> None:
    flat, unflat = mlp(inputs=INPUTS), nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    assert chain_of(flat, (3, 4)) is not None
    assert chain_of(flat, (3, 5)) is None
    assert chain_of(unflat, (4,)) is not None
    assert chain_of(unflat, (3, 4)) is None
    works = works_of(Network(mlp().double()), Training(batch=8))
    with pytest.raises(ValueError, match="takes 784 numbers"):
        list(trainer_for(Network(mlp().double()), Training(batch=8), feed_of(sum(SIZES))).train(works))


def _shared() -> nn.Module:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(first, nn.ReLU(), second)


def _hooked(register: str) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4))
    getattr(model[0], register)(lambda *_: None)
    return model


def _replaced() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].forward = lambda batch: batch
    return model


class _Doubled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


LINEAR = nn.Linear(4, 4)
NO_CHAINS = {
    "no linear layer": nn.Sequential(nn.Flatten(), nn.ReLU()),
    "ReLU first": nn.Sequential(nn.ReLU(), nn.Linear(4, 4)),
    "dropout": nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)),
    "another activation": nn.Sequential(nn.Linear(4, 4), nn.GELU()),
    "convolutions": cnn(),
    "a partial flatten": nn.Sequential(nn.Flatten(2), nn.Linear(4, 4)),
    "shared weights": _shared(),
    "a layer used twice": nn.Sequential(LINEAR, LINEAR),
    "a parametrization": nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4))),
    "a forward hook": _hooked("register_forward_hook"),
    "a forward pre-hook": _hooked("register_forward_pre_hook"),
    "a backward hook": _hooked("register_full_backward_hook"),
    "a replaced forward": _replaced(),
    "a subclass": nn.Sequential(_Doubled(4, 4)),
    "layers that do not fit": nn.Sequential(nn.Linear(4, 3), nn.Linear(4, 3)),
}


@pytest.mark.parametrize("what", NO_CHAINS)
def test_whatever_the_batched_pass_would_not_reproduce_is_no_chain(what: str) -> None:
    assert chain_of(NO_CHAINS[what]) is None


def test_what_other_steps_would_train_is_refused() -> None:
    training, feed = Training(batch=8), feed_of(4)
    with pytest.raises(ValueError, match="use train_one"):
        next(train_batched(Network(cnn()), training, feed, []))
    with pytest.raises(ValueError, match="use train_one"):
        next(train_batched(network_of(small_mlp), training, replace(feed, augment=Augment(1, True)), []))
    with pytest.raises(ValueError, match="use train_one"):
        next(train_batched(network_of(small_mlp), replace(training, precision="bfloat16"), feed, []))
    label_smoothing = replace(CLASSIFICATION, loss=nn.CrossEntropyLoss(label_smoothing=0.1))
    with pytest.raises(ValueError, match="use train_one"):
        next(train_batched(replace(network_of(small_mlp), task=label_smoothing), training, feed, []))


def test_tensors_of_a_gpu_are_trained_there() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    network = network_of(with_biases)
    training = Training(epochs=2, batch=8, quantizer=Quantizer(), ternary=network.ternary, plain_epochs=1)
    works, feed = works_of(network, training), feed_of(sum(SIZES))

    def there(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.cuda() for name, tensor in tensors.items()}

    moved = [
        replace(w, local=replace(w.local, weights=there(w.local.weights), factors=there(w.local.factors)))
        for w in works
    ]
    cuda = TrainingData(Samples(feed.samples.inputs.cuda(), feed.samples.labels.cuda()), (0.0,), (1.0,))
    for fast, plain in zip(
        train_batched(network, training, cuda, moved), train_batched(network, training, feed, works), strict=True
    ):
        assert all(tensor.is_cuda for tensor in fast.local.weights.values())
        torch.testing.assert_close({n: t.cpu() for n, t in fast.local.weights.items()}, plain.local.weights, **CLOSE)
