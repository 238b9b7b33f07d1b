"""STC, top-k and signs: compressed updates in both directions, and nothing that they leave out is lost."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from ternfed.aggregation.aggregation import Uploads
from ternfed.algorithms import signsgd_ef, stc, topk
from ternfed.algorithms.algorithm import Algorithm, Client, Helpers, Local, Network, Server, Training, Weights
from ternfed.algorithms.feedback import largest
from ternfed.algorithms.network import dense_weights as numbers_of
from ternfed.algorithms.statistics import Statistics
from ternfed.data.sets import load
from ternfed.data.values import DataSet
from ternfed.engines import simulate
from ternfed.experiment.experiment import Experiment
from ternfed.quantize.grid import Grid
from ternfed.quantize.ternary import NonFiniteError, Ternary
from ternfed.round.exchange import receive, reply, send
from ternfed.round.federation import Federation, open_federation
from ternfed.round.state import pack, unpack

TRAINING = Training(epochs=1)
CLIENT = Client(0, 2, lambda purpose: torch.Generator().manual_seed(len(purpose)))
NO_HELP = Helpers(judge=lambda weights: 0.0, statistics=lambda weights: weights)
NUMBERS = {"round": 1.0, "samples": 10.0, "loss": 1.0}
NAMES = ["stc", "topk", "signsgd_ef"]

SETTINGS: Mapping[str, Any] = {
    "stc": stc.Settings(sparsity_up=0.1, sparsity_down=0.2, finest_bits=16),
    "topk": topk.Settings(share_up=0.1, share_down=0.2, finest_bits=16),
    "signsgd_ef": signsgd_ef.Settings(finest_bits=16),
}
MODULES = {"stc": stc, "topk": topk, "signsgd_ef": signsgd_ef}

every = pytest.mark.parametrize("name", NAMES)


def make(name: str, network: Network, **settings: Any) -> Algorithm:
    return MODULES[name].algorithm(network, TRAINING, replace(SETTINGS[name], **settings))


@pytest.fixture(scope="module")
def digits() -> DataSet:
    return load("digits")


def plain() -> Network:
    torch.manual_seed(0)
    return Network(nn.Sequential(nn.Linear(30, 50), nn.ReLU(), nn.Linear(50, 40), nn.Linear(40, 3)))


def with_batchnorm() -> Network:
    torch.manual_seed(0)
    return Network(nn.Sequential(nn.Linear(30, 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Linear(50, 3)))


def moved(weights: Weights, seed: int, by: float = 0.1) -> Weights:
    source = torch.Generator().manual_seed(seed)
    floats = {name: tensor for name, tensor in weights.items() if tensor.is_floating_point()}
    return {name: tensor + by * torch.randn(tensor.shape, generator=source) for name, tensor in floats.items()}


def updates(network: Network, seed: int) -> Uploads:
    zeros = {name: torch.zeros_like(tensor) for name, tensor in network.weights().items()}
    return Uploads(moved(zeros, seed, 0.01), {}, 1, 0)


def kernels(network: Network) -> list[str]:
    """What is compressed: all parameters but BatchNorm's."""
    norm = {f"{n}." for n, module in network.model.named_modules() if isinstance(module, nn.BatchNorm1d)}
    return [name for name in network.parameters if not any(name.startswith(each) for each in norm)]


class TestWhatIsSent:
    def test_stc_keeps_the_share_of_largest_size_as_their_mean(self) -> None:
        sent = stc.compress({"a": torch.tensor([3.0, -0.5]), "b": torch.tensor([-1.0, 0.1])}, 0.5)
        assert [value.dense().tolist() for value in sent.values()] == [[2.0, 0.0], [-2.0, 0.0]]

    def test_of_nothing_stc_sends_nothing(self) -> None:
        assert stc.compress({"a": torch.zeros(4)}, 0.5)["a"].dense().tolist() == [0.0] * 4

    def test_topk_keeps_it_as_it_is(self) -> None:
        kept = largest({"a": torch.tensor([3.0, -0.5]), "b": torch.tensor([-1.0, 0.1])}, 0.5)
        assert [part.tolist() for part in kept.values()] == [[3.0, 0.0], [-1.0, 0.0]]

    def test_a_share_is_at_least_one_number(self) -> None:
        assert largest({"a": torch.tensor([3.0, -0.5])}, 1e-6)["a"].tolist() == [3.0, 0.0]

    def test_signs_have_a_scale_per_tensor_and_no_zeros(self) -> None:
        sent = signsgd_ef.signs({"a": torch.tensor([3.0, -1.0, 0.0, 0.0]), "b": torch.tensor([-0.5])})
        assert [value.dense().tolist() for value in sent.values()] == [[1.0, -1.0, 1.0, 1.0], [-0.5]]

    @pytest.mark.parametrize(("bits", "error"), [(3, 0.5), (8, 0.02), (None, 1e-6)])
    def test_topk_rounds_what_it_keeps_to_the_bits_that_are_asked_for(self, bits: int | None, error: float) -> None:
        network = plain()
        made = topk.algorithm(network, TRAINING, topk.Settings(share_up=1.0, value_bits=bits))
        received = made.broadcast(made.open(network.weights()))
        trained = moved(numbers_of(received), 1)
        sent = numbers_of(made.finish(Local(trained, {}), received, made.client_memory(), CLIENT)[0])
        worst = max(float((trained[n] - numbers_of(received)[n] - part).abs().max()) for n, part in sent.items())
        assert worst < error * 0.5

    @pytest.mark.parametrize(
        ("settings", "share", "bits"),
        [(stc.Settings(sparsity_up=0.01), 0.01, 1), (stc.Settings(sparsity_up=0.1), 0.1, 1),
         (topk.Settings(share_up=0.1), 0.1, 3), (topk.Settings(share_up=0.1, value_bits=None), 0.1, 24),
         (signsgd_ef.Settings(), 1.0, 1)],
        ids=["stc 0.01", "stc 0.1", "topk", "topk in full", "signs"],
    )  # fmt: skip
    def test_positions_cost_their_entropy_and_what_is_kept_its_few_bits(
        self, settings: Any, share: float, bits: int
    ) -> None:
        network = Network(nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 3)))
        module = {stc.Settings: stc, topk.Settings: topk, signsgd_ef.Settings: signsgd_ef}[type(settings)]
        made = module.algorithm(network, TRAINING, settings)
        broadcast = receive(made, send(made, made.broadcast(made.open(network.weights())), 1, None), None)
        trained = moved(numbers_of(broadcast.message), 1)
        message, _ = made.finish(Local(trained, {}), broadcast.message, made.client_memory(), CLIENT)
        positions = -share * math.log2(share) - (1 - share) * math.log2(1 - share) if share < 1 else 0.0
        weights = sum(tensor.numel() for tensor in trained.values())
        assert len(reply(made, message, NUMBERS, broadcast)) < (positions + share * bits) * weights / 8 + 100


class TestNothingIsLost:
    @every
    @pytest.mark.parametrize("build", [plain, with_batchnorm])
    def test_a_client_sends_later_what_it_left_out(self, name: str, build: Callable[[], Network]) -> None:
        """Over the rounds, sent and left-out parts add up to everything the client learned."""
        network = build()
        made = make(name, network)
        received = made.broadcast(made.open(network.weights()))
        memory, sent, learned = made.client_memory(), {}, {}
        for round in range(5):
            local, memory = made.start(received, memory, CLIENT)
            trained = replace(local, weights=moved(local.weights, round))
            message, memory = made.finish(trained, received, memory, CLIENT)
            for n in kernels(network):
                sent[n] = sent.get(n, 0) + numbers_of(message)[n]
                learned[n] = learned.get(n, 0) + trained.weights[n] - local.weights[n]
        for n in kernels(network):
            assert (sent[n] != learned[n]).any()
            torch.testing.assert_close(sent[n] + memory.residual[n], learned[n], rtol=1e-5, atol=1e-6)
        assert set(memory.residual) == set(kernels(network))

    @every
    def test_the_server_broadcasts_later_what_it_left_out(self, name: str) -> None:
        network = plain()
        made = make(name, network)
        server = opened = made.open(network.weights())
        total = {n: torch.zeros_like(tensor) for n, tensor in opened.weights.items()}
        for round in range(5):
            arrived = updates(network, round)
            server = made.update(server, arrived, NO_HELP)
            total = {n: total[n] + arrived.average[n] for n in total}
        for n, tensor in total.items():
            torch.testing.assert_close(server.memory.model[n], opened.weights[n] + tensor, rtol=1e-5, atol=1e-6)
        left = [distance(server)]
        nothing = {n: torch.zeros_like(tensor) for n, tensor in total.items()}
        for _ in range(30):
            server = made.update(server, Uploads(nothing, {}, 1, 0), NO_HELP)
            left.append(distance(server))
        assert left[-1] < 0.3 * left[0]

    @every
    def test_a_round_without_uploads_changes_nothing(self, name: str) -> None:
        network = plain()
        made = make(name, network)
        server = made.update(made.open(network.weights()), updates(network, 1), NO_HELP)
        assert made.update(server, Uploads({}, {}, 0, 2), NO_HELP) is server

    @every
    def test_training_that_ended_in_nan_is_not_sent(self, name: str) -> None:
        network = plain()
        made = make(name, network)
        received = made.broadcast(made.open(network.weights()))
        local, memory = made.start(received, made.client_memory(), CLIENT)
        broken = {**local.weights, "0.bias": torch.full((50,), math.nan)}
        with pytest.raises(NonFiniteError):
            made.finish(replace(local, weights=broken), received, memory, CLIENT)


def distance(server: Server) -> float:
    """Between the clients' model and the one that leaves nothing out."""
    parts = [(server.memory.model[name] - tensor).abs().sum() for name, tensor in server.weights.items()]
    return float(torch.stack(parts).sum())


class TestBroadcasts:
    def played(self, made: Algorithm, network: Network, rounds: int) -> list[Server]:
        servers = [made.open(network.weights())]
        for round in range(rounds):
            servers.append(made.update(servers[-1], updates(network, round), NO_HELP))
        return servers

    @every
    @pytest.mark.parametrize("build", [plain, with_batchnorm])
    def test_everybody_rebuilds_the_servers_model_whatever_broadcast_they_hold(
        self, name: str, build: Callable[[], Network]
    ) -> None:
        network = build()
        made = make(name, network)
        servers = self.played(made, network, 4)
        last, sizes = servers[-1], []
        for held in (None, *servers[:-1]):
            old = None if held is None else receive(made, send(made, made.broadcast(held), 1, None), None).reference
            data = send(made, made.broadcast(last), 5, old)
            local, _ = made.start(receive(made, data, old).message, made.client_memory(), CLIENT)
            for n, tensor in network.without_counters({**local.weights, **local.buffers}).items():
                assert torch.equal(tensor, last.weights[n]), n
            sizes.append(len(data))
        # Nothing held costs most, the last broadcast least.
        assert sizes[0] == max(sizes)
        assert all(newer < older for older, newer in pairwise(sizes[1:]))

    @every
    def test_what_does_not_change_keeps_its_value_while_steps_become_finer(self, name: str) -> None:
        network = plain()
        servers = self.played(make(name, network), network, 4)
        for before, after in pairwise(servers):
            for n, value in after.sent.items():
                old = before.sent[n]
                assert isinstance(value, Grid)
                assert isinstance(old, Grid)
                assert value.exponents <= old.exponents
        if name != "signsgd_ef":
            same = [float((servers[0].weights[n] == servers[1].weights[n]).float().mean()) for n in network.parameters]
            assert min(same) > 0.5

    def test_steps_do_not_become_finer_than_float32_can_tell(self) -> None:
        network = plain()
        made = make("stc", network)
        server = made.open(network.weights())
        for _ in range(3):
            tiny = {n: torch.full_like(tensor, 1e-20) for n, tensor in network.weights().items()}
            server = made.update(server, Uploads(tiny, {}, 1, 0), NO_HELP)
        for value in server.sent.values():
            assert isinstance(value, Grid)
            assert int(value.codes.abs().max()) < 2**16

    @every
    @pytest.mark.parametrize("finest", [3, 4, 6])
    def test_no_code_has_more_bits_than_the_finest_step_allows(self, name: str, finest: int) -> None:
        """Also where weights grow: what then needs a coarser step gets one."""
        network = plain()
        made = make(name, network, finest_bits=finest)
        server = made.open(network.weights())
        for round in range(6):
            server = made.update(server, updates(network, round), NO_HELP)
            for value in server.sent.values():
                assert isinstance(value, Grid)
                assert int(value.codes.abs().max()) < 2 ** (finest - 1)

    @every
    def test_what_coarse_steps_lose_comes_later(self, name: str) -> None:
        """Changes of half a step and less do not show at once; over some rounds they add up."""
        network = plain()
        made = make(name, network, finest_bits=4)
        server = opened = made.open(network.weights())
        little = {n: torch.full_like(tensor, 0.004) for n, tensor in opened.weights.items()}
        for _ in range(50):
            server = made.update(server, Uploads(little, {}, 1, 0), NO_HELP)
        for n in network.parameters:
            assert float((server.weights[n] - opened.weights[n]).mean()) == pytest.approx(50 * 0.004, rel=0.2)

    def test_the_paper_preset_has_the_papers_sparsity(self) -> None:
        paper = stc.PRESETS["paper"]
        assert (paper.sparsity_up, paper.sparsity_down) == (1 / 400, 1 / 400)


class TestBatchNorm:
    @every
    def test_its_parameters_and_statistics_are_sent_whole_on_a_grid(self, name: str) -> None:
        network = with_batchnorm()
        made = make(name, network)
        received = made.broadcast(made.open(network.weights()))
        local, memory = made.start(received, made.client_memory(), CLIENT)
        one = {n: tensor + 1 for n, tensor in local.weights.items()}
        buffers = {n: tensor + 1 for n, tensor in local.buffers.items()}
        message, _ = made.finish(Local(one, buffers), received, memory, CLIENT)
        for n in ("1.weight", "1.bias", "1.running_mean", "1.running_var"):
            assert isinstance(message.tensors[n], Grid)
            assert numbers_of(message)[n].tolist() == [1.0] * 50
        assert isinstance(message.tensors["0.weight"], Grid if name == "topk" else Ternary)
        assert "1.num_batches_tracked" not in message.tensors

    @pytest.mark.parametrize("choice", list(Statistics))
    def test_the_model_gets_the_statistics_that_are_chosen(self, choice: Statistics) -> None:
        network = with_batchnorm()
        made = stc.algorithm(network, TRAINING, stc.Settings(statistics=choice))
        found = {"1.running_mean": torch.full((50,), 2.0)}
        lent = Helpers(lambda weights: float(weights["1.running_mean"].mean()), lambda weights: {**weights, **found})
        server = made.update(made.open(network.weights()), updates(network, 1), lent)
        expected = 0.0 if choice is Statistics.AVERAGE else 2.0
        assert float(server.weights["1.running_mean"].mean()) == pytest.approx(expected, abs=0.1)
        assert made.needs_held_out is (choice is not Statistics.AVERAGE)


def federation(digits: DataSet, *settings: str) -> Federation:
    usual = ("model.hidden=[48, 32]", "federation.clients=10", "federation.participation=0.5", "training.rate=0.3")
    return open_federation(Experiment.from_toml("", [*usual, "training.schedule=cosine", *settings]), digits)


class TestRuns:
    @every
    def test_a_resumed_run_ends_like_one_never_interrupted(self, digits: DataSet, name: str) -> None:
        made = federation(digits, f"algorithm.name={name}", "federation.rounds=4", "training.epochs=1")
        whole = list(simulate.play(made))
        resumed = list(simulate.play(made, unpack(made.algorithm, 2, *pack(whole[1][0]))))
        assert [record.to_line() for _, record in resumed] == [record.to_line() for _, record in whole[2:]]

    @every
    def test_half_of_the_clients_in_each_round_learn(self, digits: DataSet, name: str) -> None:
        made = federation(digits, f"algorithm.name={name}", "federation.rounds=15")
        records = [record for _, record in simulate.play(made)]
        assert records[-1].score > 0.9
        down = sum(r.bytes_down_fp32 for r in records) / sum(r.bytes_down for r in records)
        assert down > 8  # nobody gets float32, also who missed rounds

    @every
    def test_a_network_with_batchnorm_learns_with_adam(self, digits: DataSet, name: str) -> None:
        torch.manual_seed(0)
        first = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
        second = [nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2)]
        model = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(64, 10))
        settings = ["data.dataset=own:digits", "federation.clients=5", "federation.rounds=15", "training.epochs=2"]
        adam = ["training.optimizer=adam", "training.rate=0.01", "training.schedule=cosine"]
        made = open_federation(
            Experiment.from_toml("", [*settings, *adam, f"algorithm.name={name}"]), digits, model=model
        )
        assert [record for _, record in simulate.play(made)][-1].score > 0.85


@pytest.mark.parametrize("share", [0.0, 1.5, math.nan])
@pytest.mark.parametrize(
    ("settings", "key"),
    [(stc.Settings, "sparsity_up"), (stc.Settings, "sparsity_down"), (topk.Settings, "share_up"),
     (topk.Settings, "share_down")],
)  # fmt: skip
def test_an_impossible_share_is_refused(settings: Callable[..., Any], key: str, share: float) -> None:
    with pytest.raises(ValueError, match=f"{key} = {share}: a share above 0, at most 1"):
        settings(**{key: share})


@pytest.mark.parametrize("bits", [1, 25])
def test_impossible_bits_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match=f"value_bits = {bits}: 2 to 16 is allowed, or none"):
        topk.Settings(value_bits=bits)
    for module in MODULES.values():
        with pytest.raises(ValueError, match=f"finest_bits = {bits}: 2 to 24 is allowed"):
            module.Settings(finest_bits=bits)
