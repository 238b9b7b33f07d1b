"""EDEN: clients send rotated updates in one to four bits, and the server turns each back by its sender's own draws."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from ternfed import draws
from ternfed.algorithms import eden
from ternfed.algorithms.algorithm import Algorithm, Client, Local, Network, Training, Weights
from ternfed.algorithms.eden import Settings
from ternfed.algorithms.network import dense_weights
from ternfed.data.sets import load
from ternfed.data.values import DataSet
from ternfed.engines import simulate
from ternfed.engines.flower.uploads import accept
from ternfed.experiment.experiment import Experiment, ExperimentError
from ternfed.models import mlp, resnet18
from ternfed.quantize.grid import Grid
from ternfed.round.acceptance import Bounds, NotFinite, OutOfBounds
from ternfed.round.exchange import Broadcast, Broadcasts, collect, reply
from ternfed.round.federation import Federation, answer, open_federation
from ternfed.wire import Kind, Message, Value, WireError, WrongValue, dense

MATRIX = "linear1.weight"


@pytest.fixture(scope="module")
def digits() -> DataSet:
    return load("digits")


def network() -> Network:
    torch.manual_seed(0)
    return Network.of(mlp(inputs=40, hidden=(50, 20), classes=3))


def client(index: int = 0, round: int = 1, seed: int = 0) -> Client:
    return Client(index, 1000, partial(draws.generator, seed, round=round, client=index))


def federation(digits: DataSet, *settings: str) -> Federation:
    usual = ("federation.clients=10", "federation.participation=0.5", "training.rate=0.3", "training.schedule=cosine")
    return open_federation(Experiment.from_toml("", [*usual, "algorithm.name=eden", *settings]), digits)


def upload(made: Algorithm, own: Network, sender: Client) -> tuple[Message, Weights]:
    """What a client sends that moved all its weights, and how far it moved them."""
    received = made.broadcast(made.open(own.weights()))
    source = torch.Generator().manual_seed(5)
    change = {n: 0.1 * torch.randn(t.shape, generator=source) for n, t in own.weights().items()}
    before = dense_weights(received)
    message, _ = made.finish(Local({n: before[n] + change[n] for n in change}, {}), received, None, sender)
    return message, change


class TestMeaning:
    @pytest.mark.parametrize(("bits", "loss"), [(1, 0.571), (2, 0.133), (3, 0.0358), (4, 0.0096)])
    def test_the_server_reads_what_the_client_meant_up_to_the_papers_loss(self, bits: int, loss: float) -> None:
        own = network()
        made = eden.algorithm(own, Training(), Settings(bits_up=bits))
        message, change = upload(made, own, client())
        meant = dense_weights(made.meaning(message, client()))
        assert set(meant) == set(own.floats)
        wrong = float((meant[MATRIX] - change[MATRIX]).square().sum() / change[MATRIX].square().sum())
        assert wrong == pytest.approx(loss, rel=0.15)

    def test_the_mean_over_many_clients_is_the_change(self) -> None:
        own, clients = network(), 400
        made = eden.algorithm(own, Training(), Settings())
        meant = []
        for index in range(clients):
            message, change = upload(made, own, client(index))
            meant.append(dense_weights(made.meaning(message, client(index))))
        for name, tensor in change.items():
            wrong = torch.stack([each[name] for each in meant]) - tensor
            assert wrong.mean(0).square().sum() < 1.5 * wrong.square().sum((1, 2)).mean() / clients

    @pytest.mark.parametrize("other", [client(index=1), client(round=2), client(seed=1)])
    def test_nobody_elses_draws_turn_it_back(self, other: Client) -> None:
        own = network()
        made = eden.algorithm(own, Training(), Settings(bits_up=4))
        message, change = upload(made, own, client())
        meant = dense_weights(made.meaning(message, other))
        assert (meant[MATRIX] - change[MATRIX]).square().sum() > change[MATRIX].square().sum()

    def test_it_survives_the_wire_bit_for_bit(self) -> None:
        own = network()
        made = eden.algorithm(own, Training(), Settings())
        message, _ = upload(made, own, client())
        broadcast = Broadcasts(made, made.open(own.weights()), 1).any()
        data = reply(made, message, {"round": 1, "samples": 3, "loss": 0.5}, broadcast)
        here, there = (made.meaning(m, client()) for m in (message, collect(made, data, broadcast)))
        for name, tensor in dense_weights(here).items():
            assert torch.equal(tensor, dense_weights(there)[name])

    def test_the_order_of_arrival_does_not_change_a_bit(self, digits: DataSet) -> None:
        made = federation(digits, "training.epochs=1")
        algorithm = made.algorithm
        broadcast = Broadcasts(algorithm, made.open().server, 1).any()
        uploads = {index: answer(made.site(index), 1, broadcast, algorithm.client_memory())[0] for index in range(4)}
        averages = []
        for order in ((0, 1, 2, 3), (3, 1, 0, 2)):
            arrived = algorithm.aggregate.begin()
            for index in order:
                message = collect(algorithm, uploads[index], broadcast)
                algorithm.aggregate.add(arrived, index, algorithm.meaning(message, made.site(index).client(1)))
            averages.append(algorithm.aggregate.finish(arrived).average)
        assert all(torch.equal(tensor, averages[1][name]) for name, tensor in averages[0].items())


class TestWhatTravels:
    def test_a_matrix_is_codes_and_a_scale_per_block_a_vector_is_on_a_grid(self) -> None:
        own = Network.of(resnet18(width=8))
        slots = {slot.name: slot for slot in eden.algorithm(own, Training(), Settings()).up[0].slots}
        shapes = {name: tuple(tensor.shape) for name, tensor in own.weights().items()}
        for name in own.floats:
            if len(shapes[name]) > 1:
                assert name not in slots
                assert slots[f"{name}/codes"].kind is Kind.GRID
                assert slots[f"{name}/scales"].kind is Kind.FLOAT32
                assert 0 <= slots[f"{name}/codes"].size - own.weights()[name].numel() < 64
            else:
                assert slots[name].kind is Kind.GRID
        assert not any("num_batches_tracked" in name for name in slots)

    def test_a_matrix_smaller_than_a_block_is_on_a_grid_too(self) -> None:
        own = network()
        slots = {slot.name: slot.kind for slot in eden.algorithm(own, Training(), Settings()).up[0].slots}
        assert own.weights()["linear3.weight"].numel() < 64
        assert slots["linear3.weight"] is Kind.GRID_ROWS

    @pytest.mark.parametrize(("bits", "most"), [(1, 1.1), (2, 2.0), (3, 2.92), (4, 3.86)])
    def test_codes_cost_their_entropy(self, digits: DataSet, bits: int, most: float) -> None:
        """Of two bits and more, Lloyd and Max's codes are not equally frequent: 1.91, 2.82 and 3.76 bits."""
        made = federation(digits, "model.hidden=[256, 256]", "training.epochs=1", f"algorithm.bits_up={bits}")
        _, record = next(simulate.play(made))
        assert record.bits_per_weight_up is not None
        assert bits - 0.25 < record.bits_per_weight_up < most

    @pytest.mark.parametrize(("down", "kind"), [(4, Kind.GRID_ROWS), (None, Kind.FLOAT32)])
    def test_broadcasts_are_on_a_grid_or_floats(self, down: int | None, kind: Kind) -> None:
        made = eden.algorithm(network(), Training(), Settings(bits_down=down))
        assert {slot.name: slot.kind for slot in made.down[0].slots}[MATRIX] is kind


class TestRuns:
    @pytest.mark.parametrize("bits", [1, 2])
    def test_it_learns_as_fedavg_does(self, digits: DataSet, bits: int) -> None:
        made = federation(digits, "federation.rounds=20", f"algorithm.bits_up={bits}")
        plain = federation(digits, "federation.rounds=20", "algorithm.name=fedavg")
        scores = [[record.score for _, record in simulate.play(each)][-1] for each in (made, plain)]
        assert scores[0] > scores[1] - 0.04

    def test_a_client_whose_training_diverges_is_left_out_by_name(self, digits: DataSet) -> None:
        made = federation(digits, "training.rate=1e30", "federation.rounds=1")
        with pytest.raises(simulate.DivergedError, match="NaN or infinity"):
            next(simulate.play(made))


def _codes(value: int) -> Callable[[dict[str, Value]], Value]:
    def lie(tensors: dict[str, Value]) -> Value:
        honest = dense(tensors[f"{MATRIX}/codes"])
        return Grid(torch.full_like(honest, value, dtype=torch.int32), torch.zeros((), dtype=torch.int16))

    return lie


def _scales(value: float) -> Callable[[dict[str, Value]], Tensor]:
    return lambda tensors: torch.full_like(dense(tensors[f"{MATRIX}/scales"]), value)


class TestLies:
    """A registered client is not a trusted one: what it means is held to the bounds of weights."""

    @pytest.mark.parametrize(
        ("slot", "lie", "error", "words"),
        [
            ("codes", _codes(2), WrongValue, "linear1.weight: codes from 0 to 1 are allowed"),
            ("codes", _codes(-1), WrongValue, "linear1.weight: codes from 0 to 1 are allowed"),
            ("scales", _scales(torch.nan), NotFinite, "linear1.weight: holds values that are not finite"),
            ("scales", _scales(1e9), OutOfBounds, "linear1.weight: .* is more than 100"),
        ],
    )
    def test_they_are_named(
        self, slot: str, lie: Callable[[dict[str, Value]], Value], error: type[WireError], words: str
    ) -> None:
        own = network()
        made = eden.algorithm(own, Training(), Settings())
        message, _ = upload(made, own, client())
        broadcast = replace(Broadcasts(made, made.open(own.weights()), 1).any(), reference=None)
        accepted(made, own, message, broadcast)
        tensors = dict(message.tensors)
        tensors[f"{MATRIX}/{slot}"] = lie(tensors)
        with pytest.raises(error, match=words):
            accepted(made, own, Message(tensors, {}), broadcast)


def accepted(made: Algorithm, own: Network, message: Message, broadcast: Broadcast) -> None:
    data = reply(made, message, {"round": 1, "samples": 3, "loss": 0.5}, broadcast)
    accept(made, own, data, broadcast, client(), 1, Bounds())


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("bits_up=0", "bits_up = 0: 1 to 4 is allowed"),
        ("bits_up=5", "bits_up = 5: 1 to 4 is allowed"),
        ("rest_bits_up=9", "rest_bits_up = 9: 1 to 8 is allowed"),
        ("bits_down=9", "bits_down = 9: 1 to 8 is allowed, or none"),
    ],
)
def test_impossible_bits_are_refused_in_one_sentence(setting: str, sentence: str) -> None:
    with pytest.raises(ExperimentError, match=f"{sentence}$"):
        Experiment.from_toml("", ["algorithm.name=eden", f"algorithm.{setting}"])


def test_with_error_feedback_what_one_upload_leaves_out_is_added_to_the_next() -> None:
    net = network()
    algorithm = eden.algorithm(net, Training(), Settings(trits=True, error_feedback=True, rest_bits_up=6))
    server = algorithm.open(net.weights())
    received = algorithm.broadcast(server)
    source = torch.Generator().manual_seed(1)
    change = {name: 0.1 * torch.randn(tensor.shape, generator=source) for name, tensor in net.weights().items()}
    moved = {name: tensor + change[name] for name, tensor in dense_weights(received).items()}
    local = Local({n: moved[n] for n in net.parameters}, {n: moved[n] for n in net.buffers})
    memory, told = algorithm.client_memory(), {name: torch.zeros_like(tensor) for name, tensor in change.items()}
    errors = []
    for number in range(1, 9):
        upload, memory = algorithm.finish(local, received, memory, client(round=number))
        said = dense_weights(algorithm.meaning(upload, client(round=number)))
        told = {name: total + said[name] for name, total in told.items()}
        left = number * change[MATRIX] - told[MATRIX]
        assert torch.allclose(left, memory.residual[MATRIX], atol=1e-5)
        errors.append(float(left.norm() / (number * change[MATRIX]).norm()))
    assert errors[-1] < 0.3 * errors[0]
