"""FedPAQ: FedAvg with a few bits per number in both directions, right on average, with nothing lost on the server."""

import pytest
import torch
from torch import nn

from ternfed.aggregation.aggregation import Uploads
from ternfed.algorithms import fedavg, fedpaq
from ternfed.algorithms.algorithm import Algorithm, Client, Helpers, Local, Network, Training, Weights
from ternfed.algorithms.fedpaq import Settings
from ternfed.algorithms.network import dense_weights
from ternfed.data.sets import load
from ternfed.data.values import DataSet
from ternfed.engines import simulate
from ternfed.experiment.experiment import Experiment, ExperimentError
from ternfed.models import mlp
from ternfed.round.federation import Federation, open_federation
from ternfed.runs.folder import Round
from ternfed.wire import Kind

NO_HELP = Helpers(judge=lambda weights: 0.0, statistics=lambda weights: weights)


@pytest.fixture(scope="module")
def digits() -> DataSet:
    return load("digits")


def with_norm() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 10))


def small_mlp() -> Network:
    torch.manual_seed(0)
    return Network.of(mlp(inputs=12, hidden=(8, 6), classes=3))


def client(seed: int) -> Client:
    return Client(0, 2, lambda purpose: torch.Generator().manual_seed(seed))


def federation(digits: DataSet, *settings: str) -> Federation:
    usual = ("federation.clients=10", "federation.participation=0.5", "training.rate=0.3", "training.schedule=cosine")
    return open_federation(Experiment.from_toml("", [*usual, "algorithm.name=fedpaq", *settings]), digits)


def played(made: Federation) -> list[Round]:
    return [record for _, record in simulate.play(made)]


def kinds(algorithm: Algorithm) -> tuple[set[Kind], set[Kind]]:
    return tuple({slot.kind for slot in schema.slots} for schema in (algorithm.up[0], algorithm.down[0]))  # type: ignore[return-value]


def moved(weights: Weights, seed: int = 1) -> Weights:
    source = torch.Generator().manual_seed(seed)
    return {name: tensor + 0.1 * torch.randn(tensor.shape, generator=source) for name, tensor in weights.items()}


class TestUploads:
    @pytest.mark.parametrize("bits", [1, 2, 3, 8])
    def test_their_mean_over_many_draws_is_the_clients_change(self, bits: int) -> None:
        network = small_mlp()
        made = fedpaq.algorithm(network, Training(), Settings(bits_up=bits))
        received = made.broadcast(made.open(network.weights()))
        before = dense_weights(received)
        after, draws = moved(before), 600
        sent = [dense_weights(made.finish(Local(after, {}), received, None, client(n))[0]) for n in range(draws)]
        for name, tensor in after.items():
            errors = torch.stack([each[name] for each in sent]) - (tensor - before[name])
            step = (errors.max() - errors.min()).item()
            assert errors.mean(0).abs().max() < 5 * step / 2 / draws**0.5

    @pytest.mark.parametrize("bits", [1, 2, 3, 8])
    def test_no_code_is_larger_than_its_bits_say(self, bits: int) -> None:
        network = small_mlp()
        made = fedpaq.algorithm(network, Training(), Settings(bits_up=bits))
        received = made.broadcast(made.open(network.weights()))
        message, _ = made.finish(Local(moved(dense_weights(received)), {}), received, None, client(0))
        most = max(2 ** (bits - 1) - 1, 1)
        assert all(value.codes.abs().max() <= most for value in message.tensors.values())  # type: ignore[union-attr]


class TestWhatTravels:
    def test_every_float_is_on_a_grid_and_counters_stay_at_home(self) -> None:
        network = Network.of(with_norm())
        made = fedpaq.algorithm(network, Training(), Settings())
        assert kinds(made) == ({Kind.GRID, Kind.GRID_ROWS}, {Kind.GRID, Kind.GRID_ROWS})
        assert {slot.name for slot in made.up[0].slots} == set(network.floats)
        assert "1.num_batches_tracked" not in network.floats

    @pytest.mark.parametrize("direction", ["up", "down"])
    def test_none_means_floats_in_that_direction(self, direction: str) -> None:
        made = fedpaq.algorithm(small_mlp(), Training(), Settings(**{f"bits_{direction}": None}))  # type: ignore[arg-type]
        up, down = kinds(made)
        assert (up == {Kind.FLOAT32}, down == {Kind.FLOAT32}) == (direction == "up", direction == "down")

    def test_without_any_bits_it_is_fedavg_to_the_bit(self, digits: DataSet) -> None:
        short = ("federation.rounds=2", "training.epochs=1")
        made = federation(digits, *short, "algorithm.bits_up=none", "algorithm.bits_down=none")
        plain = federation(digits, *short, "algorithm.name=fedavg")
        assert [r.to_line() for r in played(made)] == [r.to_line() for r in played(plain)]


class TestServer:
    @pytest.mark.parametrize("bits_up", [2, None])
    def test_it_keeps_what_rounding_a_broadcast_lost(self, bits_up: int | None) -> None:
        network = small_mlp()
        made = fedpaq.algorithm(network, Training(), Settings(bits_up=bits_up, finest_bits=24))
        server = made.open(network.weights())
        # Nobody moved: clients that send models send the one that was broadcast.
        nothing = {name: torch.zeros_like(t) if bits_up else t for name, t in server.weights.items()}
        for _ in range(6):
            server = made.update(server, Uploads(nothing, {}, 2, 0), NO_HELP)
            nothing = {name: torch.zeros_like(t) if bits_up else t for name, t in server.weights.items()}
        for name, tensor in network.weights().items():
            torch.testing.assert_close(server.memory.model[name], tensor, rtol=0, atol=1e-6)
            torch.testing.assert_close(server.weights[name], tensor, rtol=0, atol=1e-5)

    def test_a_variance_that_is_moved_below_nothing_is_none(self) -> None:
        network = Network.of(with_norm())
        made = fedpaq.algorithm(network, Training(), Settings())
        server = made.open(network.weights())
        change = {name: torch.full_like(server.weights[name], -2.0) for name in network.floats}
        after = made.update(server, Uploads(change, {}, 1, 0), NO_HELP)
        assert (after.weights["1.running_var"] >= 0).all()
        assert (after.weights["1.running_mean"] < 0).all()

    def test_a_round_without_uploads_changes_nothing(self) -> None:
        network = small_mlp()
        made = fedpaq.algorithm(network, Training(), Settings())
        server = made.open(network.weights())
        assert made.update(server, Uploads({}, {}, 0, 2), NO_HELP) is server

    def test_eight_bits_are_within_rounding_of_fedavg(self) -> None:
        network = small_mlp()
        own = network.weights()
        fine = fedpaq.algorithm(network, Training(), Settings(8, 8))
        plain = fedavg.algorithm(network, Training(), fedavg.Settings())
        server = fine.open(own)
        received = fine.broadcast(server)
        local = Local(moved(dense_weights(received)), {})
        sent = {
            name: dense_weights(made.finish(local, received, None, client(0))[0])
            for name, made in (("fine", fine), ("plain", plain))
        }
        after = fine.update(server, Uploads(sent["fine"], {}, 1, 0), NO_HELP)
        for name, tensor in sent["plain"].items():
            # A step is at most max / 63 of what is rounded: the first model, the change, the second model.
            step = 2 / 127 * (own[name].abs().max() + 2 * (tensor - own[name]).abs().max())
            assert (after.weights[name] - tensor).abs().max() < step


class TestRuns:
    @pytest.mark.parametrize("bits", [("2", "4"), ("1", "3"), ("8", "8")])
    def test_it_learns_as_fedavg_does(self, digits: DataSet, bits: tuple[str, str]) -> None:
        up, down = bits
        made = federation(digits, "federation.rounds=15", f"algorithm.bits_up={up}", f"algorithm.bits_down={down}")
        plain = federation(digits, "federation.rounds=15", "algorithm.name=fedavg")
        assert played(made)[-1].score > played(plain)[-1].score - 0.03

    def test_few_bits_are_few_bytes(self, digits: DataSet) -> None:
        records = played(federation(digits, "federation.rounds=5", "training.epochs=1", "model.hidden=[256, 256]"))
        assert 25 * sum(r.bytes_up for r in records) < sum(r.bytes_up_fp32 for r in records)
        assert 7 * sum(r.bytes_down for r in records) < sum(r.bytes_down_fp32 for r in records)

    def test_batchnorm_travels_and_learns_on_grids(self, digits: DataSet) -> None:
        settings = ["data.dataset=own:digits", "federation.clients=5", "federation.rounds=6", "training.epochs=2"]
        more = ["training.optimizer=adam", "training.rate=0.01", "algorithm.name=fedpaq", "algorithm.statistics=best"]
        experiment = Experiment.from_toml("", [*settings, *more])
        records = played(open_federation(experiment, digits, model=with_norm()))
        assert records[-1].score > 0.6
        assert records[-1].dropped == ()

    def test_no_trits_travel_so_none_are_told_of(self, digits: DataSet) -> None:
        record = played(federation(digits, "federation.rounds=1", "training.epochs=1"))[0]
        assert (record.changed, record.zeros, record.layer_bits, record.strategy) == (None, None, None, None)


@pytest.mark.parametrize("key", ["bits_up", "bits_down"])
@pytest.mark.parametrize("bits", [0, 9])
def test_impossible_bits_are_refused_in_one_sentence(key: str, bits: int) -> None:
    with pytest.raises(ExperimentError, match=f"{key} = {bits}: 1 to 8 is allowed, or none$"):
        Experiment.from_toml("", ["algorithm.name=fedpaq", f"algorithm.{key}={bits}"])
