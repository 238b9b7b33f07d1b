"""FedPM: weights stay random, clients send which of them to keep, and the server counts."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from ternfed import draws
from ternfed.aggregation.aggregation import Uploads
from ternfed.algorithms import fedpm
from ternfed.algorithms.algorithm import Algorithm, Client, Helpers, Local, Network, Server, Training
from ternfed.algorithms.fedpm import SURE, Settings, _draw, random_weights
from ternfed.algorithms.network import dense_weights
from ternfed.data.sets import load
from ternfed.engines import simulate
from ternfed.experiment.experiment import Experiment, ExperimentError
from ternfed.models import resnet18
from ternfed.quantize.ternary import Ternary
from ternfed.round.exchange import Broadcast, Broadcasts, collect, reply
from ternfed.round.federation import open_federation
from ternfed.wire import Kind, Message, WrongValue

MATRIX = "0.weight"
HELPERS = Helpers(lambda weights: 0.0, lambda weights: weights)
NUMBERS = {"round": 1.0, "samples": 3.0, "loss": 0.5}


def network(inputs: int = 4) -> Network:
    torch.manual_seed(0)
    return Network.of(nn.Sequential(nn.Linear(inputs, 3), nn.ReLU(), nn.Linear(3, 2)))


def client(index: int = 0) -> Client:
    return Client(index, 10, partial(draws.generator, 0, round=1, client=index))


def made(settings: Settings = Settings(), inputs: int = 4) -> tuple[Algorithm, Server]:  # noqa: B008
    own = network(inputs)
    algorithm = fedpm.algorithm(own, Training(), settings)
    return algorithm, algorithm.open(own.weights())


def after(algorithm: Algorithm, server: Server, mask: float, count: int = 2) -> Server:
    """The server after a round whose masks kept this share of every weight."""
    sent = dense_weights(algorithm.broadcast(server))
    average = {name: torch.full_like(t, mask if t.dim() > 1 else 0.0) for name, t in sent.items()}
    return algorithm.update(server, Uploads(average, {}, count, 0), HELPERS)


def chance(algorithm: Algorithm, server: Server) -> float:
    values = dense_weights(algorithm.broadcast(server))[MATRIX].unique().tolist()
    assert len(values) == 1
    return float(values[0])


class TestTheNetwork:
    def test_a_weight_is_a_sign_times_a_constant_of_its_layer(self) -> None:
        drawn = torch.tensor([[[[0.3, -0.1]]], [[[-0.2, 0.0]]]])
        size = math.e / math.sqrt(2)
        assert random_weights(drawn).flatten().tolist() == pytest.approx([size, -size, -size, size])

    def test_the_model_that_is_judged_has_no_other_weights_than_these_and_zeros(self) -> None:
        algorithm, server = made(inputs=40)
        constant = random_weights(network(40).weights()[MATRIX])
        model = server.weights[MATRIX]
        assert torch.equal(model[model != 0], constant[model != 0])
        assert 0.3 < float((model != 0).float().mean()) < 0.7
        kept = (after(algorithm, server, 1.0).weights[MATRIX] != 0).float().mean()
        assert float(kept) > 0.95

    def test_gradients_pass_through_the_draw_as_they_are(self) -> None:
        chances = torch.tensor([0.1, 0.5, 0.9], requires_grad=True)
        mask = _draw(chances)
        assert set(mask.detach().round(decimals=6).tolist()) <= {0.0, 1.0}
        mask.backward(torch.tensor([1.0, -2.0, 3.0]))
        assert chances.grad is not None
        assert chances.grad.tolist() == [1.0, -2.0, 3.0]
        many = torch.stack([_draw(chances.detach()) for _ in range(2000)]).mean(0)
        assert torch.allclose(many, chances.detach(), atol=0.05)

    def test_a_client_trains_the_scores_of_the_chances_that_it_received(self) -> None:
        algorithm, server = made()
        server = after(algorithm, server, 0.75)
        local = algorithm.start(algorithm.broadcast(server), None, client())[0]
        assert torch.allclose(local.weights[MATRIX], torch.tensor(math.log(3.0)))  # logit of 3/4
        forward = algorithm.training.forward
        assert forward is not None
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in local.weights.items()}
        used = forward(leaves, {}, local, 0.0)
        used[MATRIX].sum().backward()
        # By hand: constant · θ (1 - θ), whatever was drawn.
        assert leaves[MATRIX].grad is not None
        assert torch.allclose(leaves[MATRIX].grad, random_weights(network().weights()[MATRIX]) * 0.1875)
        assert used["0.bias"] is leaves["0.bias"]


class TestTheServer:
    def test_it_starts_from_even_chances(self) -> None:
        assert chance(*made()) == 0.5

    def test_the_chance_is_the_share_of_masks_of_this_round(self) -> None:
        algorithm, server = made()
        server = after(algorithm, server, 0.25)
        assert chance(algorithm, server) == 0.25
        assert chance(algorithm, after(algorithm, server, 0.75)) == 0.75

    def test_it_is_never_sure(self) -> None:
        algorithm, server = made(Settings(bits_down=16))
        assert chance(algorithm, after(algorithm, server, 1.0)) == pytest.approx(1 - SURE, abs=1e-4)
        assert chance(algorithm, after(algorithm, server, 0.0)) == pytest.approx(SURE, abs=1e-4)

    def test_masks_count_until_the_reset(self) -> None:
        """Beta's mode over two rounds: (0.25 · 2 + 0.75 · 6) / 8; the third round starts to count anew."""
        algorithm, server = made(Settings(reset=2))
        server = after(algorithm, after(algorithm, server, 0.25, count=2), 0.75, count=6)
        assert chance(algorithm, server) == 0.625
        assert chance(algorithm, after(algorithm, server, 0.5)) == 0.5


class TestMasks:
    def sent(self, algorithm: Algorithm, server: Server, score: float) -> tuple[Message, Broadcast, bytes]:
        broadcast = Broadcasts(algorithm, server, 1).any()
        local = algorithm.start(broadcast.message, None, client())[0]
        scores = {n: torch.full_like(t, score) if t.dim() > 1 else t for n, t in local.weights.items()}
        message, _ = algorithm.finish(Local(scores, local.buffers), broadcast.message, None, client())
        return message, broadcast, reply(algorithm, message, NUMBERS, broadcast)

    def test_they_keep_a_weight_with_its_chance_and_survive_the_wire(self) -> None:
        algorithm, server = made(inputs=2000)
        message, broadcast, data = self.sent(algorithm, server, math.log(4.0))
        meant = algorithm.meaning(collect(algorithm, data, broadcast), client())
        assert set(meant.tensors) == set(network(2000).floats)
        assert torch.equal(dense_weights(meant)[MATRIX], dense_weights(algorithm.meaning(message, client()))[MATRIX])
        assert float(dense_weights(meant)[MATRIX].mean()) == pytest.approx(0.8, abs=0.02)

    def test_they_cost_their_entropy_given_the_chances(self) -> None:
        """Half of the weights are kept by nine in ten, half by one in ten: 0.47 bits each, not the 1 of a fair coin."""
        algorithm, server = made(inputs=2000)
        likely = torch.arange(2000).remainder(2).expand(3, 2000) * 0.8 + 0.1
        average = {n: torch.zeros_like(t) for n, t in dense_weights(algorithm.broadcast(server)).items()}
        server = algorithm.update(server, Uploads({**average, MATRIX: likely}, {}, 10, 0), HELPERS)
        broadcast = Broadcasts(algorithm, server, 2).any()
        local = algorithm.start(broadcast.message, None, client())[0]
        message, _ = algorithm.finish(local, broadcast.message, None, client())
        size = len(reply(algorithm, message, NUMBERS, broadcast))
        assert 8 * size / 6000 < 0.6

    def test_a_mask_with_another_trit_is_refused(self) -> None:
        algorithm, server = made()
        message, _, _ = self.sent(algorithm, server, 0.0)
        wrong = Ternary(torch.full((3, 4), -1, dtype=torch.int8), torch.ones(()), torch.ones(()))
        with pytest.raises(WrongValue, match=r"^0\.weight: a mask has 0 and 1$"):
            algorithm.meaning(Message({**message.tensors, f"{MATRIX}/mask": wrong}, message.numbers), client())

    def test_matrices_and_kernels_are_masked_the_rest_is_on_a_grid(self) -> None:
        own = Network.of(resnet18(width=8))
        (schema,) = fedpm.algorithm(own, Training(), Settings()).up
        dims = {name: tensor.dim() for name, tensor in own.weights().items()}
        kinds = {slot.name: slot.kind for slot in schema.slots}
        assert all(
            kinds[f"{n}/mask" if dims[n] > 1 else n] is (Kind.TERNARY if dims[n] > 1 else Kind.GRID) for n in own.floats
        )


def test_masks_alone_learn_in_less_than_a_bit_per_weight() -> None:
    settings = ["federation.clients=5", "federation.participation=1.0", "federation.rounds=5", "model.hidden=[64, 64]"]
    further = ["training.optimizer=adam", "training.rate=0.1", "training.epochs=4", "algorithm.name=fedpm"]
    federation = open_federation(Experiment.from_toml("", [*settings, *further]), load("digits"))
    records = [record for _, record in simulate.play(federation)]
    assert records[-1].score > 0.75 > records[0].score
    assert records[-1].bits_per_weight_up is not None
    assert records[-1].bits_per_weight_up < 0.95
    assert records[-1].changed is None  # chances are no trits of a model


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("reset=0", "reset = 0: a whole number of at least 1 is needed"),
        ("bits_down=1", "bits_down = 1: 2 to 16 is allowed"),
        ("rest_bits_up=9", "rest_bits_up = 9: 1 to 8 is allowed"),
        ("rest_bits_down=0", "rest_bits_down = 0: 1 to 8 is allowed"),
    ],
)
def test_impossible_settings_are_refused_in_one_sentence(setting: str, sentence: str) -> None:
    with pytest.raises(ExperimentError, match=f"{sentence}$"):
        Experiment.from_toml("", ["algorithm.name=fedpm", f"algorithm.{setting}"])
