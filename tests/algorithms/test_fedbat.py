"""FedBAT: a client learns a binary update and the size of its steps, and sends a bit per weight."""

from functools import partial

import pytest
import torch
from torch import nn

from ternfed import draws
from ternfed.algorithms import fedbat
from ternfed.algorithms.algorithm import Algorithm, Client, Local, Network, Training
from ternfed.algorithms.fedbat import LARGEST, SMALLEST, Settings, _Binarize, ups
from ternfed.algorithms.network import dense_weights
from ternfed.data.sets import load
from ternfed.engines import simulate
from ternfed.experiment.experiment import Experiment, ExperimentError
from ternfed.models import resnet18
from ternfed.quantize.ternary import Ternary
from ternfed.round.federation import open_federation
from ternfed.wire import Kind, Message

MATRIX = "0.weight"


def network() -> Network:
    torch.manual_seed(0)
    return Network.of(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))


def client(index: int = 0) -> Client:
    return Client(index, 10, partial(draws.generator, 0, round=1, client=index))


def made(settings: Settings = Settings(warm_up=0.5)) -> tuple[Network, Algorithm, Message, Local]:  # noqa: B008
    own = network()
    algorithm = fedbat.algorithm(own, Training(), settings)
    message = algorithm.broadcast(algorithm.open(own.weights()))
    return own, algorithm, message, algorithm.start(message, None, client())[0]


class TestBinarization:
    def test_a_draw_decides_between_plus_and_minus_a_step(self) -> None:
        """0.02 is +0.1 with the chance (0.02 / 0.1 + 1) / 2 = 0.6, -0.05 with 0.25, and what lies beyond always."""
        update, step = torch.tensor([0.02, 0.02, -0.05, -0.05, 0.2, -0.2]), torch.tensor(0.1)
        drawn = torch.tensor([0.59, 0.61, 0.24, 0.26, 0.999, 0.0])
        assert ups(update, step, drawn).tolist() == [1, 0, 1, 0, 1, 0]

    def test_its_derivatives_by_hand(self) -> None:
        """To the update: 1 inside [-α, α], else 0. To α: what the draw added, in steps, inside; the sign beyond."""
        update = torch.tensor([0.02, -0.05, 0.2, -0.3], requires_grad=True)
        step = torch.tensor(0.1, requires_grad=True)
        out = _Binarize.apply(update, step, torch.tensor([0.59, 0.26, 0.9, 0.1]))  # type: ignore[no-untyped-call]
        assert out.tolist() == pytest.approx([0.1, -0.1, 0.1, -0.1])
        out.backward(torch.tensor([1.0, 2.0, 3.0, 5.0]))
        assert update.grad is not None
        assert step.grad is not None
        assert update.grad.tolist() == [1.0, 2.0, 0.0, 0.0]
        # 1·(1 - 0.2) + 2·(-1 + 0.5) + 3·1 + 5·(-1)
        assert float(step.grad) == pytest.approx(0.8 - 1.0 + 3.0 - 5.0)


class TestLocalSteps:
    def test_the_warm_up_computes_with_the_weights_as_they_are(self) -> None:
        _, algorithm, _, local = made()
        forward = algorithm.training.forward
        assert forward is not None
        assert forward(local.weights, local.factors, local, 0.49) is local.weights

    def test_then_with_the_received_weights_plus_or_minus_the_mean_size_of_the_update(self) -> None:
        _, algorithm, _, local = made()
        forward = algorithm.training.forward
        assert forward is not None
        change = torch.tensor([0.01, -0.02, 0.03, -0.02]).expand(3, 4)
        leaves = {**local.weights, MATRIX: (local.weights[MATRIX] + change).requires_grad_()}
        factors = {name: factor.clone().requires_grad_() for name, factor in local.factors.items()}
        used = forward(leaves, factors, local, 0.5)
        sizes = (used[MATRIX] - local.weights[MATRIX]).abs()
        assert torch.allclose(sizes, torch.full_like(sizes, 0.02), atol=1e-6)
        assert used["0.bias"] is leaves["0.bias"]
        assert factors[MATRIX].tolist() == pytest.approx([0.02, 0.0])
        # The mean size at the end of the warm-up stays; from then on α learns by its exponent alone.
        leaves[MATRIX] = (local.weights[MATRIX] + 3 * change).requires_grad_()
        used = forward(leaves, factors, local, 0.6)
        (used[MATRIX] * torch.randn(3, 4)).sum().backward()
        assert factors[MATRIX].tolist() == pytest.approx([0.02, 0.0])
        assert factors[MATRIX].grad is not None
        assert factors[MATRIX].grad[0] == 0
        assert factors[MATRIX].grad[1] != 0

    def test_a_step_is_never_nothing_and_never_large(self) -> None:
        _, algorithm, _, local = made()
        forward = algorithm.training.forward
        assert forward is not None
        for change, size in ((0.0, SMALLEST), (1.0, LARGEST)):
            leaves = {name: tensor + change for name, tensor in local.weights.items()}
            factors = {name: torch.zeros(2) for name in local.factors}
            used = forward(leaves, factors, local, 0.9)
            apart = (used[MATRIX] - local.weights[MATRIX]).abs()
            assert torch.allclose(apart, torch.full_like(apart, size), atol=1e-6)


class TestUploads:
    def test_the_mean_over_many_clients_is_the_update(self) -> None:
        _, algorithm, message, local = made()
        change = torch.linspace(-0.02, 0.02, 12).view(3, 4)
        factors = {name: torch.tensor([0.02, 0.0]) for name in local.factors}
        moved = Local({**local.weights, MATRIX: local.weights[MATRIX] + change}, local.buffers, factors)
        sent = [algorithm.finish(moved, message, None, client(index))[0].tensors[MATRIX] for index in range(800)]
        assert all(isinstance(value, Ternary) and bool((value.codes != 0).all()) for value in sent)
        mean = torch.stack([dense_weights(Message({MATRIX: v}, {}))[MATRIX] for v in sent]).mean(0)
        assert torch.allclose(mean, change, atol=4 * 0.02 / 800**0.5)

    def test_the_learned_exponent_scales_what_is_sent(self) -> None:
        _, algorithm, message, local = made(Settings(rho=2.0))
        factors = {name: torch.tensor([0.01, 0.5]) for name in local.factors}
        sent = algorithm.finish(Local(local.weights, local.buffers, factors), message, None, client())[0]
        value = dense_weights(sent)[MATRIX]
        assert value.abs().unique().tolist() == pytest.approx([0.01 * 2.718281828])

    def test_matrices_and_kernels_are_bits_the_rest_is_on_a_grid(self) -> None:
        own = Network.of(resnet18(width=8))
        (schema,) = fedbat.algorithm(own, Training(), Settings()).up
        shapes = {name: tensor.dim() for name, tensor in own.weights().items()}
        kinds = {slot.name: slot.kind for slot in schema.slots}
        assert all(kinds[n] is (Kind.TERNARY if shapes[n] > 1 else Kind.GRID) for n in own.floats)


def test_it_learns_as_fedavg_does_at_a_bit_per_weight() -> None:
    scores = {}
    for name in ("fedavg", "fedbat"):
        settings = ["federation.clients=5", "federation.participation=1.0", "federation.rounds=3", "training.rate=0.3"]
        experiment = Experiment.from_toml("", [*settings, "training.epochs=4", f"algorithm.name={name}"])
        *_, (_, record) = simulate.play(open_federation(experiment, load("digits")))
        scores[name] = record.score
    assert record.bits_per_weight_up is not None
    assert 0.9 < record.bits_per_weight_up < 1.1
    assert scores["fedbat"] > scores["fedavg"] - 0.06


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("warm_up=1.0", r"warm_up = 1\.0: 0 to below 1 is allowed"),
        ("rho=-1.0", r"rho = -1\.0: at least 0 is needed"),
        ("rest_bits_up=9", "rest_bits_up = 9: 1 to 8 is allowed"),
        ("bits_down=0", "bits_down = 0: 1 to 8 is allowed, or none"),
    ],
)
def test_impossible_settings_are_refused_in_one_sentence(setting: str, sentence: str) -> None:
    with pytest.raises(ExperimentError, match=f"{sentence}$"):
        Experiment.from_toml("", ["algorithm.name=fedbat", f"algorithm.{setting}"])
