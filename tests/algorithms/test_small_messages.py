"""T-FedAvg with everything compressed: differences up, the rest on a grid, trits that learn with any optimizer."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from ternfed.aggregation.aggregation import Uploads
from ternfed.algorithms import eden, fedpaq, stc, tfedavg
from ternfed.algorithms.algorithm import Algorithm, Client, Helpers, Local, Network, Training
from ternfed.algorithms.network import dense_weights
from ternfed.algorithms.rest import added, changes, rounded
from ternfed.algorithms.statistics import Statistics
from ternfed.algorithms.tfedavg_settings import Settings, Upload
from ternfed.data.sets import load
from ternfed.data.values import DataSet
from ternfed.engines import simulate
from ternfed.experiment.experiment import Experiment
from ternfed.models import mlp, resnet18
from ternfed.quantize.ternary import requantize
from ternfed.round.exchange import Broadcasts
from ternfed.round.federation import Federation, open_federation, prepare
from ternfed.round.state import pack, unpack
from ternfed.training.choose import train_recovering
from ternfed.training.work import Work
from ternfed.wire import Kind, trits_of

SMALL = Settings()
TRAINING = Training(epochs=5)
CLIENT = Client(0, 2, lambda purpose: torch.Generator().manual_seed(len(purpose)))
NO_HELP = Helpers(judge=lambda weights: 0.0, statistics=lambda weights: weights)


@pytest.fixture(scope="module")
def digits() -> DataSet:
    return load("digits")


def small_mlp() -> Network:
    torch.manual_seed(0)
    return Network.of(mlp(inputs=12, hidden=(8, 6), classes=3))


def federation(digits: DataSet, *settings: str) -> Federation:
    usual = ("model.hidden=[48, 32]", "federation.clients=10", "federation.participation=0.5", "training.rate=0.3")
    schedule = ("training.schedule=cosine", "algorithm.name=tfedavg")
    return open_federation(Experiment.from_toml("", [*usual, *schedule, *settings]), digits)


def made_work(federation: Federation) -> Work:
    """The work of client 0 in round 1."""
    site, algorithm = federation.site(0), federation.algorithm
    broadcasts = Broadcasts(algorithm, federation.open().server, 1)
    return prepare(site, 1, broadcasts.given(None).broadcast, algorithm.client_memory())[0]


def kinds(algorithm: Algorithm) -> set[Kind]:
    return {slot.kind for slot in algorithm.up[0].slots}


class TestTheRestOnAGrid:
    def test_a_change_is_right_on_average_and_never_off_by_more_than_a_step(self) -> None:
        received = {"w": torch.zeros(4, 50), "b": torch.zeros(7)}
        moved = {name: torch.randn(tensor.shape) for name, tensor in received.items()}
        source = torch.Generator().manual_seed(0)
        many = [changes(moved, received, dict.fromkeys(moved, 3), source) for _ in range(800)]
        for name, tensor in moved.items():
            step = torch.ldexp(torch.ones(()), many[0][name].exponents.int().max())
            errors = torch.stack([sent[name].dense() - tensor for sent in many])
            assert errors.abs().max() < step
            assert errors.mean(0).abs().max() < 5 * step * 0.5 / 800**0.5

    def test_matrices_have_a_step_per_row_and_vectors_one(self) -> None:
        weights = {"w": torch.randn(4, 3), "b": torch.randn(4), "one": torch.randn(())}
        sent = rounded(weights, {}, dict.fromkeys(weights, 4))
        assert [tuple(sent[name].exponents.shape) for name in ("w", "b", "one")] == [(4,), (), ()]

    def test_a_later_broadcast_has_the_finer_step_that_its_smaller_change_needs(self) -> None:
        weights = {"w": torch.randn(3, 40)}
        first = rounded(weights, {}, {"w": 4})
        nearer = {"w": first["w"].dense() + 0.001 * torch.randn(3, 40)}
        second = rounded(nearer, {"w": first["w"].dense()}, {"w": 4})
        assert (second["w"].exponents < first["w"].exponents).all()
        assert (second["w"].dense() - nearer["w"]).abs().max() < 0.001

    @pytest.mark.parametrize("change", [0.0, 1e-30, 1e-12, 1e-7])
    def test_a_tensor_that_hardly_changes_stays_what_it_is(self, change: float) -> None:
        weights = {"w": torch.randn(3, 40), "norm.running_var": torch.rand(5)}
        sent = rounded({n: w + change for n, w in weights.items()}, weights, dict.fromkeys(weights, 3))
        for name, tensor in weights.items():
            torch.testing.assert_close(sent[name].dense(), tensor + change, rtol=0, atol=1e-6)

    def test_a_variance_that_is_sent_is_never_zero(self) -> None:
        sent = rounded({"norm.running_var": torch.tensor([100.0, 0.001])}, {}, {"norm.running_var": 3})
        assert sent["norm.running_var"].dense().min() > 0

    def test_a_variance_stays_one(self) -> None:
        weights = {"norm.running_var": torch.tensor([0.1, 1.0]), "norm.running_mean": torch.zeros(2)}
        change = {name: torch.tensor([-0.5, 0.5]) for name in weights}
        moved = added(weights, weights, change, Network.of(resnet18(width=2)))
        assert moved["norm.running_var"].tolist() == [0.0, 1.5]
        assert moved["norm.running_mean"].tolist() == [-0.5, 0.5]

    @pytest.mark.parametrize("of", [tfedavg, fedpaq, eden, stc], ids=lambda of: of.ABOUT.label)
    def test_statistics_that_clients_find_again_and_again_do_not_swing(self, of: ModuleType) -> None:
        """What rounding lost of them is not added to them: small variances would fall to 0, and rise again."""
        network = Network.of(resnet18(width=4))
        made = of.algorithm(network, TRAINING, of.Settings(finest_bits=6, statistics="best"))
        server, judged = made.open(network.weights()), []
        helpers = Helpers(judge=lambda weights: judged.append({**weights}) or 0.0, statistics=lambda weights: weights)
        found = {n: torch.tensor([0.006, 0.012, 0.02, 1.0]) for n in network.buffers if n.endswith("running_var")}
        for number in range(6):
            same = {n: server.weights[n] if n in network.ternary else torch.zeros(()) for n in network.floats}
            change = {n: torch.zeros_like(server.weights[n]) + tensor for n, tensor in same.items()}
            change |= {n: variances - server.weights[n] for n, variances in found.items()}
            before, server = server.weights, made.update(server, Uploads(change, {}, 5, 0), helpers)
            for name, variances in found.items():
                torch.testing.assert_close(judged[-1][name], variances)
                assert number < 3 or torch.equal(server.weights[name], before[name])

    @pytest.mark.parametrize("of", [tfedavg, fedpaq, eden, stc], ids=lambda of: of.ABOUT.label)
    def test_statistics_are_counted_for_the_weights_that_clients_will_have(self, of: ModuleType) -> None:
        """Not for those that only the server knows: with coarse steps they belong to another network."""
        network = Network.of(resnet18(width=4))
        made = of.algorithm(network, TRAINING, of.Settings(finest_bits=3, statistics="best"))
        counted = []
        helpers = Helpers(judge=lambda weights: 0.0, statistics=lambda weights: counted.append({**weights}) or weights)
        server = made.open(network.weights())
        source = torch.Generator().manual_seed(0)
        change = {n: 0.1 * torch.randn(server.weights[n].shape, generator=source) for n in network.floats}
        server = made.update(server, Uploads(change, {}, 5, 0), helpers)
        assert all(torch.equal(counted[0][name], server.weights[name]) for name in network.ternary)

    def test_the_server_keeps_what_rounding_a_broadcast_lost(self) -> None:
        network = small_mlp()
        made = tfedavg.algorithm(network, TRAINING, SMALL)
        server = made.open(network.weights())
        rest = "linear3.weight"
        assert not torch.equal(server.weights[rest], server.memory.rest[rest])
        nothing = {name: torch.zeros_like(tensor) for name, tensor in network.weights().items()}
        after = made.update(server, Uploads(nothing, {}, 2, 0), NO_HELP)
        assert torch.equal(after.memory.rest[rest], server.memory.rest[rest])


class TestDifferences:
    def test_without_batchnorm_clients_send_differences_with_it_trits(self) -> None:
        assert Kind.TERNARY not in kinds(tfedavg.algorithm(small_mlp(), TRAINING, SMALL))
        with_norm = Network.of(resnet18(width=4))
        assert kinds(tfedavg.algorithm(with_norm, TRAINING, SMALL)) == {Kind.TERNARY, Kind.GRID, Kind.GRID_ROWS}

    def test_clients_train_plain_weights_from_the_received_trits(self) -> None:
        network = small_mlp()
        made = tfedavg.algorithm(network, TRAINING, SMALL)
        received = made.broadcast(made.open(network.weights()))
        local, _ = made.start(received, made.client_memory(), CLIENT)
        assert made.training.quantizer is None
        for name in network.parameters:
            assert torch.equal(local.weights[name], dense_weights(received)[name])

    def test_the_servers_latent_weights_move_by_the_mean_difference_and_trits_follow(self) -> None:
        network, rate = small_mlp(), 0.5
        made = tfedavg.algorithm(network, TRAINING, replace(SMALL, server_rate=rate))
        server = made.open(network.weights())
        received = made.broadcast(server)
        (name,) = network.ternary
        moved = {n: t + 0.1 * torch.randn(t.shape) for n, t in dense_weights(received).items()}
        message, _ = made.finish(Local(moved, {}), received, made.client_memory(), CLIENT)
        sent = dense_weights(message)
        after = made.update(server, Uploads(sent, {}, 1, 0), NO_HELP)
        expected = network.weights()[name] + rate * sent[name]
        assert torch.equal(after.memory.latents[name], expected)
        assert torch.equal(trits_of(after.sent[name]), requantize(expected, SMALL.server_rule, 0.7).codes)

    def test_a_trit_that_is_held_changes_only_well_beyond_the_threshold(self) -> None:
        network = small_mlp()
        (name,) = network.ternary
        ways = {hold: tfedavg.algorithm(network, TRAINING, replace(SMALL, hold=hold)) for hold in (0.0, 0.4)}
        opened = {hold: made.open(network.weights()) for hold, made in ways.items()}
        assert torch.equal(trits_of(opened[0.0].sent[name]), trits_of(opened[0.4].sent[name]))
        nudge = 0.03 * torch.randn(network.weights()[name].shape, generator=torch.Generator().manual_seed(1))
        change = {**{n: torch.zeros_like(t) for n, t in network.weights().items()}, name: nudge}
        flips, latents = {}, network.weights()[name] + nudge
        threshold = 0.7 * latents.abs().mean()
        for hold, made in ways.items():
            after = made.update(opened[hold], Uploads(change, {}, 1, 0), NO_HELP)
            flipped = trits_of(after.sent[name]) != trits_of(opened[hold].sent[name])
            flips[hold] = int(flipped.sum())
            assert bool(((latents.abs() - threshold).abs() >= hold * threshold)[flipped].all())
            assert torch.equal(after.memory.latents[name], latents)  # nothing is lost: it may flip later
        assert 0 < flips[0.4] < flips[0.0]

    def test_where_clients_send_trits_none_is_held(self) -> None:
        network = Network.of(resnet18(width=4))
        average = {n: t + 0.01 * torch.randn(t.shape) for n, t in network.weights().items()}
        ends = []
        for hold in (0.0, 0.9):
            made = tfedavg.algorithm(network, TRAINING, replace(SMALL, hold=hold, statistics=Statistics.AVERAGE))
            server = made.open(network.weights())
            zero = {n: torch.zeros_like(t) if n in made.changes else t for n, t in average.items()}
            ends.append(made.update(server, Uploads(zero, {}, 1, 0), NO_HELP))
        for name in network.ternary:
            assert torch.equal(trits_of(ends[0].sent[name]), trits_of(ends[1].sent[name]))

    @pytest.mark.parametrize("more", [(), ("algorithm.hold=0.5",)], ids=["as it comes", "held"])
    def test_a_resumed_run_ends_like_one_never_interrupted(self, digits: DataSet, more: tuple[str, ...]) -> None:
        made = federation(digits, "federation.rounds=4", "training.epochs=1", *more)
        whole = list(simulate.play(made))
        tensors, facts = pack(whole[1][0])
        resumed = list(simulate.play(made, unpack(made.algorithm, 2, tensors, facts)))
        assert [record.to_line() for _, record in resumed] == [record.to_line() for _, record in whole[2:]]


class TestLearning:
    @pytest.mark.parametrize(
        "optimizer",
        [("training.rate=0.3",), ("training.momentum=0.9", "training.rate=0.03"),
         ("training.optimizer=adam", "training.rate=0.003")],
        ids=["sgd", "momentum", "adam"],
    )  # fmt: skip
    @pytest.mark.parametrize("layers", ["inner", "all"])
    def test_trits_flip_and_the_network_learns_whatever_the_optimizer(
        self, digits: DataSet, optimizer: tuple[str, ...], layers: str
    ) -> None:
        made = federation(digits, "federation.rounds=15", f"model.ternary={layers}", *optimizer)
        records = [record for _, record in simulate.play(made)]
        assert (records[1].changed or 0) > 0.01
        assert records[-1].score > 0.85

    def test_latent_weights_have_an_adam_of_their_own_that_sgd_does_not_slow_down(self, digits: DataSet) -> None:
        slow = ("training.rate=0.01", "algorithm.upload=trits", "federation.rounds=2")
        flips = [
            next(simulate.play(federation(digits, *slow, f"algorithm.latent_adam={own}")))[1].changed
            for own in ("0.04", "none")
        ]
        assert (flips[0] or 0) > 0.02
        assert (flips[0] or 0) > 10 * (flips[1] or 0)

    @pytest.mark.parametrize("rate", [200, 10_000], ids=["huge", "NaN"])
    def test_clients_that_diverge_train_again_with_smaller_steps(self, digits: DataSet, rate: int) -> None:
        made = federation(digits, "federation.rounds=3", f"training.rate={rate}", "training.schedule=constant")
        (alone,) = made.trainer.train([made_work(made)])
        assert not all((tensor.abs() < 100).all() for tensor in alone.local.weights.values())
        (recovered,) = train_recovering(made.trainer, [made_work(made)], made.algorithm.retries)
        assert all(torch.isfinite(tensor).all() for tensor in recovered.local.weights.values())
        largest = max(float(tensor.abs().max()) for tensor in recovered.local.weights.values())
        assert largest < max(float(tensor.abs().max().nan_to_num(torch.inf)) for tensor in alone.local.weights.values())

    @pytest.mark.parametrize("settings", ["algorithm.preset=frozen", "algorithm.latent_adam=0.0"])
    def test_the_control_never_changes_a_trit(self, digits: DataSet, settings: str) -> None:
        trits = ("algorithm.upload=trits", "algorithm.plain_epochs=0")
        made = federation(digits, settings, *trits, "federation.rounds=5", "training.rate=0.1")
        assert [record.changed for _, record in simulate.play(made)] == [0.0] * 5

    def test_everything_is_small_in_both_directions(self, digits: DataSet) -> None:
        made = federation(digits, "model.hidden=[256, 256]", "model.ternary=all", "federation.rounds=6")
        records = [record for _, record in simulate.play(made)]
        up, down = sum(r.bytes_up for r in records), sum(r.bytes_down for r in records)
        assert 30 * up < sum(r.bytes_up_fp32 for r in records)
        assert 20 * down < sum(r.bytes_down_fp32 for r in records)


def test_a_network_with_batchnorm_learns_with_everything_compressed(digits: DataSet) -> None:
    def build() -> nn.Module:
        torch.manual_seed(0)
        layers = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1)]
        return nn.Sequential(
            *layers, nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10)
        )

    settings = ["data.dataset=own:digits", "federation.clients=5", "federation.participation=1", "federation.rounds=6"]
    more = ["training.optimizer=adam", "training.rate=0.01", "training.schedule=cosine"]
    experiment = Experiment.from_toml("", [*settings, *more, "algorithm.name=tfedavg", "training.epochs=2"])
    made = open_federation(experiment, digits, model=build())
    records = [record for _, record in simulate.play(made)]
    assert records[-1].score > 0.8
    assert records[-1].dropped == ()


@pytest.mark.parametrize("key", ["difference_bits", "rest_bits_up", "rest_bits_down", "full_bits"])
@pytest.mark.parametrize("bits", [0, 17])
def test_impossible_bits_are_refused(key: str, bits: int) -> None:
    with pytest.raises(ValueError, match=f"{key} = {bits}: 1 to 16"):
        Settings(**{key: bits})  # type: ignore[arg-type]


def test_the_way_up_can_be_chosen(tmp_path: Path) -> None:
    network = small_mlp()
    made = tfedavg.algorithm(network, TRAINING, replace(SMALL, upload=Upload.TRITS))
    assert Kind.TERNARY in kinds(made)
