"""The halves of each algorithm, by hand: what a client starts from, what it sends, what the server makes of it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ternfed import draws
from ternfed.aggregation.aggregation import Uploads
from ternfed.algorithms import (
    centralized,
    cmfl,
    eden,
    fedavg,
    fedopt,
    fedpaq,
    fedprox,
    signsgd_ef,
    stc,
    tfedavg,
    tfedavg_settings,
    tfedavg_uploads,
    topk,
)
from ternfed.algorithms.algorithm import Algorithm, Client, Helpers, Local, Network, Server, Strategy, Training, Weights
from ternfed.algorithms.network import dense_weights
from ternfed.algorithms.optimizers import Adam, Optimizer, Sgd
from ternfed.algorithms.statistics import Statistics
from ternfed.quantize.grid import Grid
from ternfed.quantize.ternary import Rule, Scale, Ternary, normalise, requantize
from ternfed.round.exchange import receive, send
from ternfed.training.plain import forward_weights
from ternfed.wire import Kind, Message, same

TRAINING = Training(epochs=2)
CLIENT = Client(0, 10, lambda purpose: draws.generator(0, purpose))


def helpers(*accuracies: float) -> Helpers:
    """A judge that gives these accuracies one after another."""
    answers = iter(accuracies)
    return Helpers(lambda weights: next(answers), lambda weights: weights)


@pytest.fixture
def network() -> Network:
    torch.manual_seed(0)
    return Network.of(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.Linear(4, 3)))


def moved(weights: Weights, by: float = 0.1, seed: int = 0) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    return {name: tensor + by * torch.randn(tensor.shape, generator=generator) for name, tensor in weights.items()}


def uploads(average: Weights, **numbers: float) -> Uploads:
    return Uploads(average, numbers, 1, 0)


def opened(network: Network) -> Server:
    """T-FedAvg's server with the network's own weights, in full precision."""
    return Server(network.weights(), memory=tfedavg_uploads.ServerMemory())


def started(algorithm: Algorithm, server: Server) -> Local:
    """What a client that remembers nothing trains, given this server's broadcast."""
    return algorithm.start(algorithm.broadcast(server), algorithm.client_memory(), CLIENT)[0]


def numbered(message: Message, round: int = 1) -> Message:
    return Message(message.tensors, {"round": float(round)})


class TestFedAvg:
    def test_a_client_starts_from_the_broadcast_and_sends_its_model(self, network: Network) -> None:
        algorithm = fedavg.algorithm(network, TRAINING, fedavg.Settings())
        weights = network.weights()
        local = started(algorithm, algorithm.open(weights))
        assert_same(local.weights, weights)
        trained = replace(local, weights=moved(weights))
        message, _ = algorithm.finish(trained, Message({}, {}), algorithm.client_memory(), CLIENT)
        assert_same(dense_weights(message), trained.weights)

    def test_the_average_becomes_the_model(self, network: Network) -> None:
        algorithm = fedavg.algorithm(network, TRAINING, fedavg.Settings())
        average = moved(network.weights())
        assert_same(algorithm.update(Server(network.weights()), uploads(average), helpers()).weights, average)

    def test_without_uploads_the_model_stays(self, network: Network) -> None:
        algorithm = fedavg.algorithm(network, TRAINING, fedavg.Settings())
        server = Server(network.weights())
        assert algorithm.update(server, uploads({}), helpers()) is server

    def test_bfloat16_halves_what_travels(self, network: Network) -> None:
        algorithm = fedavg.algorithm(network, TRAINING, fedavg.Settings(dense=Kind.BFLOAT16))
        message = algorithm.broadcast(Server(network.weights()))
        assert {tensor.dtype for tensor in message.tensors.values() if isinstance(tensor, Tensor)} == {torch.bfloat16}
        assert dense_weights(message)["0.weight"].dtype == torch.float32

    def test_centralized_is_one_client_and_sends_nothing(self, network: Network) -> None:
        assert centralized.algorithm(network, TRAINING, centralized.Settings()).central


class TestStatistics:
    @pytest.fixture
    def network(self) -> Network:
        return Network.of(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)))

    @pytest.mark.parametrize(
        ("choice", "judged", "mean"),
        [
            (Statistics.AVERAGE, [], 0.0),
            (Statistics.RECOMPUTE, [], 1.0),
            (Statistics.BEST, [0.9, 0.5], 1.0),
            (Statistics.BEST, [0.5, 0.9], 0.0),
        ],
    )
    def test_the_averaged_model_gets_the_chosen_ones(
        self, network: Network, choice: Statistics, judged: list[float], mean: float
    ) -> None:
        answers = iter(judged)
        lent = Helpers(lambda weights: next(answers), lambda weights: {**weights, "2.running_mean": torch.ones(4)})
        algorithm = fedavg.algorithm(network, TRAINING, fedavg.Settings(statistics=choice))
        server = algorithm.update(Server(network.weights()), uploads(network.weights()), lent)
        assert server.weights["2.running_mean"].tolist() == [mean] * 4
        assert algorithm.needs_held_out == (choice is not Statistics.AVERAGE)


def trits(**settings: Any) -> tfedavg.Settings:
    """Trits up and everything else in floats."""
    floats = {"rest_bits_up": None, "rest_bits_down": None, "full_bits": None}
    return tfedavg.Settings(**{"upload": tfedavg_settings.Upload.TRITS, **floats, **settings})


class TestTFedAvgClient:
    def test_the_paper_preset_is_the_algorithm_as_published(self) -> None:
        paper = tfedavg.PRESETS["paper"]
        assert (paper.rule, paper.factor, paper.randomise) == (Rule.MEAN, 0.05, True)
        assert (paper.server_rule, paper.server_factor, paper.tolerance) == (Rule.MAX, 0.05, 0.03)
        assert paper.latents is tfedavg_settings.Latents.RECEIVED
        assert paper.latent_rate == paper.factor_rate == 1
        assert paper.latent_adam is None
        assert paper.upload is tfedavg_settings.Upload.TRITS
        assert paper.rest_bits_up is paper.rest_bits_down is paper.full_bits is None
        assert paper.plain_epochs == 0
        assert not paper.keep_latents

    def test_starts_from_the_received_weights_with_the_optimal_factor(self, network: Network) -> None:
        algorithm = tfedavg.algorithm(network, TRAINING, tfedavg.PRESETS["paper"])
        weights = network.weights()
        local = started(algorithm, Server(weights))
        assert_same(local.weights, weights)
        assert 0.05 <= local.threshold < 0.06
        kept = weights["2.weight"].abs()
        kept = kept[kept > local.threshold * kept.mean()]
        assert local.factors["2.weight"].item() == pytest.approx(kept.mean().item(), rel=1e-6)

    def test_normalised_latents_reach_from_minus_one_to_one(self, network: Network) -> None:
        algorithm = tfedavg.algorithm(network, TRAINING, trits())
        local = started(algorithm, Server(network.weights()))
        assert torch.equal(local.weights["2.weight"], normalise(network.weights()["2.weight"]))
        assert local.weights["2.weight"].abs().max() == 1
        assert torch.equal(local.weights["0.weight"], network.weights()["0.weight"])

    @pytest.mark.parametrize("latents", list(tfedavg_settings.Latents))
    def test_plain_epochs_begin_with_the_received_weights_whatever_the_latents(
        self, network: Network, latents: tfedavg_settings.Latents
    ) -> None:
        algorithm = tfedavg.algorithm(network, TRAINING, trits(latents=latents, plain_epochs=1))
        received = algorithm.broadcast(Server(network.weights()))
        local, _ = algorithm.start(received, algorithm.client_memory(), CLIENT)
        used = forward_weights(algorithm.training, local.weights, local.factors, local, epoch=0)
        torch.testing.assert_close(used, dense_weights(received))

    def test_a_layer_of_zeros_can_learn_in_plain_epochs(self, network: Network) -> None:
        algorithm = tfedavg.algorithm(network, TRAINING, trits(plain_epochs=1))
        weights = {**network.weights(), "2.weight": torch.zeros(4, 5)}
        local = started(algorithm, Server(weights))
        assert local.scales == {"2.weight": 1.0}

    @pytest.mark.parametrize(("epochs", "plain"), [(1, 0), (2, 1), (5, 3), (10, 6)])
    def test_three_fifths_of_the_local_epochs_are_plain_unless_told(
        self, network: Network, epochs: int, plain: int
    ) -> None:
        training = replace(TRAINING, epochs=epochs)
        assert tfedavg.algorithm(network, training, trits()).training.plain_epochs == plain
        assert tfedavg.algorithm(network, training, trits(plain_epochs=0)).training.plain_epochs == 0

    @pytest.mark.parametrize(("optimizer", "rate"), [(Sgd(), 1.0), (Adam(), 0.1)])
    def test_factors_learn_at_a_rate_that_suits_the_optimizer_unless_told(
        self, network: Network, optimizer: Optimizer, rate: float
    ) -> None:
        training = replace(TRAINING, optimizer=optimizer)
        assert tfedavg.algorithm(network, training, trits()).training.factor_rate == rate
        told = trits(factor_rate=0.5)
        assert tfedavg.algorithm(network, training, told).training.factor_rate == 0.5

    def test_factors_can_start_at_one(self, network: Network) -> None:
        algorithm = tfedavg.algorithm(network, TRAINING, trits(start=tfedavg_settings.Start.ONE))
        local = started(algorithm, Server(network.weights()))
        assert local.factors["2.weight"].tolist() == [1.0]

    def test_sends_trits_for_the_middle_and_floats_for_the_ends(self, network: Network) -> None:
        algorithm = tfedavg.algorithm(network, TRAINING, trits())
        local = started(algorithm, Server(network.weights()))
        message, _ = algorithm.finish(local, Message({}, {}), algorithm.client_memory(), CLIENT)
        assert [name for name, value in message.tensors.items() if isinstance(value, Ternary)] == ["2.weight"]

    def test_the_mean_scale_has_no_factors(self, network: Network) -> None:
        algorithm = tfedavg.algorithm(network, TRAINING, trits(scale=Scale.MEAN))
        local = started(algorithm, Server(network.weights()))
        assert local.factors == {}

    def test_kept_latents_survive_where_the_broadcast_agrees(self, network: Network) -> None:
        algorithm = tfedavg.algorithm(network, TRAINING, trits(keep_latents=True))
        received = algorithm.broadcast(Server(network.weights()))
        local, memory = algorithm.start(received, algorithm.client_memory(), CLIENT)
        trained = replace(local, weights=moved(local.weights, 0.5))
        sent, memory = algorithm.finish(trained, received, memory, CLIENT)
        again, _ = algorithm.start(received, memory, CLIENT)
        own, broadcast = sent.tensors["2.weight"], algorithm.reference(received)
        assert isinstance(own, Ternary)
        assert broadcast is not None
        agrees = own.codes == broadcast["2.weight"]
        assert 0 < agrees.sum() < agrees.numel()
        assert torch.equal(again.weights["2.weight"][agrees], trained.weights["2.weight"][agrees])
        assert torch.equal(again.weights["2.weight"][~agrees], local.weights["2.weight"][~agrees])

    def test_a_first_layer_that_is_not_sent_stays_as_it_was(self, network: Network) -> None:
        algorithm = tfedavg.algorithm(network, TRAINING, trits(send_first=False))
        message = algorithm.broadcast(algorithm.open(network.weights()))
        assert "0.weight" not in message.tensors
        local, _ = algorithm.start(message, algorithm.client_memory(), CLIENT)
        assert "0.weight" not in local.weights
        sent, _ = algorithm.finish(local, message, algorithm.client_memory(), CLIENT)
        assert "0.weight" not in sent.tensors
        average = {name: t for name, t in network.weights().items() if name != "0.weight"}
        server = algorithm.update(algorithm.open(network.weights()), uploads(average), helpers(1.0, 1.0))
        assert "0.weight" not in server.weights

    def test_impossible_settings_are_one_sentence(self, network: Network) -> None:
        with pytest.raises(ValueError, match="plain_epochs = 2: fewer than the 2 local epochs"):
            tfedavg.algorithm(network, TRAINING, trits(plain_epochs=2))
        with pytest.raises(ValueError, match="plain_epochs = -1: at least 0"):
            tfedavg.Settings(plain_epochs=-1)
        with pytest.raises(ValueError, match="no layer that can be ternary"):
            tfedavg.algorithm(Network(nn.Linear(2, 2)), TRAINING, trits())
        with pytest.raises(ValueError, match="clip = 0"):
            tfedavg.Settings(clip=0)
        with pytest.raises(ValueError, match="threshold factor"):
            tfedavg.Settings(server_rule=Rule.MAX, server_factor=1.0)


class TestTFedAvgServer:
    def test_strategy_one_broadcasts_the_requantized_average(self, network: Network) -> None:
        algorithm = tfedavg.algorithm(network, TRAINING, trits())
        average = moved(network.weights())
        server = algorithm.update(opened(network), uploads(average), helpers(0.90, 0.93))
        expected = requantize(average["2.weight"], Rule.MEAN, 0.7)
        assert server.strategy is Strategy.TERNARY
        assert torch.equal(server.sent["2.weight"].codes, expected.codes)
        assert torch.equal(server.weights["2.weight"], expected.dense())
        assert torch.equal(server.weights["0.weight"], average["0.weight"])

    def test_strategy_two_when_the_quantized_model_is_over_three_points_worse(self, network: Network) -> None:
        algorithm = tfedavg.algorithm(network, TRAINING, trits())
        average = moved(network.weights())
        server = algorithm.update(opened(network), uploads(average), helpers(0.89, 0.93))
        assert server.strategy is Strategy.FULL
        assert server.sent == {}
        assert_same(server.weights, average)
        message = algorithm.broadcast(server)
        assert not any(isinstance(value, Ternary) for value in message.tensors.values())

    def test_strategy_two_can_be_on_a_grid(self, network: Network) -> None:
        algorithm = tfedavg.algorithm(network, TRAINING, trits(full_bits=6))
        average = moved(network.weights())
        server = algorithm.update(opened(network), uploads(average), helpers(0.89, 0.93))
        assert server.strategy is Strategy.FULL
        sent = algorithm.broadcast(server).tensors["2.weight"]
        assert isinstance(sent, Grid)
        assert torch.equal(server.weights["2.weight"], sent.dense())
        largest = average["2.weight"].abs().amax(1, keepdim=True)
        assert ((sent.dense() - average["2.weight"]).abs() <= largest / 31).all()

    @pytest.mark.parametrize(("due", "strategy"), [(True, "II"), (False, "I")])
    def test_strategy_two_when_a_broadcast_in_full_precision_is_due(
        self, network: Network, due: bool, strategy: str
    ) -> None:
        algorithm = tfedavg.algorithm(network, TRAINING, trits(full_at=(0.3, 0.7)))
        lent = replace(helpers(1.0, 1.0), reaches_share=lambda share: due and share == 0.7)
        average = moved(network.weights())
        server = algorithm.update(opened(network), uploads(average), lent)
        assert server.strategy == strategy
        assert bool(server.memory.lost) is not due  # what is sent whole loses nothing

    @pytest.mark.parametrize(("share", "strategy"), [(0.25, "II"), (None, "I"), (0.1, "I")])
    def test_strategy_two_when_the_rates_have_decayed(
        self, network: Network, share: float | None, strategy: str
    ) -> None:
        algorithm = tfedavg.algorithm(network, TRAINING, trits(full_at_decay=share))
        lent = replace(helpers(1.0, 1.0), decays_to=lambda share: share == 0.25)
        assert algorithm.update(opened(network), uploads(moved(network.weights())), lent).strategy == strategy

    @pytest.mark.parametrize("share", [0.0, 1.0, -0.5, 7.0])
    def test_the_first_and_the_last_model_are_not_for_a_share_to_say(self, share: float) -> None:
        with pytest.raises(ValueError, match="full_at"):
            tfedavg.Settings(full_at=(0.5, share))

    def test_the_first_broadcast_is_ternary_and_as_published_full(self, network: Network) -> None:
        for settings, ternary in ((tfedavg.Settings(), ["2.weight"]), (tfedavg.PRESETS["paper"], [])):
            algorithm = tfedavg.algorithm(network, TRAINING, settings)
            message = algorithm.broadcast(algorithm.open(network.weights()))
            assert [name for name, value in message.tensors.items() if isinstance(value, Ternary)] == ternary

    @pytest.mark.parametrize("scale", [0.2, 1.0, 3.0])
    def test_trits_that_no_client_changes_stay_whatever_the_factor_learns(self, network: Network, scale: float) -> None:
        algorithm = tfedavg.algorithm(network, TRAINING, trits())
        server = algorithm.update(opened(network), uploads(moved(network.weights())), helpers(1.0, 1.0))
        codes = server.sent["2.weight"].codes
        for step in range(1, 6):
            agreed = {**server.weights, "2.weight": scale**step * codes}
            server = algorithm.update(server, uploads(agreed), helpers(1.0, 1.0))
            assert torch.equal(server.sent["2.weight"].codes, codes)

    def test_what_one_client_of_five_asks_for_again_and_again_comes_about(self, network: Network) -> None:
        codes = torch.ones_like(network.weights()["2.weight"])
        codes.view(-1)[0] = 0
        vote = codes.clone()
        vote.view(-1)[0] = 1 / 5
        for feedback, flips in ((1.0, True), (0.0, False)):
            algorithm = tfedavg.algorithm(network, TRAINING, trits(error_feedback=feedback))
            server = opened(network)
            for _ in range(4):
                average = {**network.weights(), "2.weight": vote}
                server = algorithm.update(server, uploads(average), helpers(1.0, 1.0))
            assert bool(server.sent["2.weight"].codes.view(-1)[0]) is flips

    def test_clients_notice_a_collapse_one_round_later(self, network: Network) -> None:
        algorithm = tfedavg.algorithm(network, TRAINING, trits(judging=tfedavg_settings.Judging.CLIENTS))
        server = opened(network)
        strategies = []
        for accuracy in (0.5, 0.8, 0.6, 0.79):
            server = algorithm.update(server, uploads(network.weights(), accuracy=accuracy), helpers())
            strategies.append(server.strategy)
        assert strategies == ["I", "I", "II", "I"]
        assert not algorithm.needs_held_out
        assert "accuracy" in algorithm.up[0].numbers

    def test_judging_can_be_off(self, network: Network) -> None:
        algorithm = tfedavg.algorithm(network, TRAINING, trits(judging=tfedavg_settings.Judging.OFF))
        server = algorithm.update(opened(network), uploads(network.weights()), helpers())
        assert server.strategy is Strategy.TERNARY

    def test_the_reference_of_a_full_precision_broadcast_is_its_ternarization(self, network: Network) -> None:
        algorithm = tfedavg.algorithm(network, TRAINING, trits())
        codes = algorithm.reference(algorithm.broadcast(Server(network.weights())))
        assert codes is not None
        assert torch.equal(codes["2.weight"], requantize(network.weights()["2.weight"], Rule.MEAN, 0.7).codes)


class TestCmfl:
    def upload(
        self, network: Network, update: float | Tensor, last: float, settings: cmfl.Settings, round: int = 1
    ) -> Message:
        """What is sent for an update by `update` after a last global update by `last` in all elements."""
        algorithm = cmfl.algorithm(network, TRAINING, settings)
        before = network.weights()
        now = {name: tensor + last for name, tensor in before.items()}
        received = numbered(Message({**now}, {}), round)
        local = Local({name: tensor + update for name, tensor in now.items()}, {})
        return algorithm.finish(local, received, cmfl.ClientMemory(before if last else {}), CLIENT)[0]

    def test_an_update_along_the_last_global_one_is_sent(self, network: Network) -> None:
        assert self.upload(network, 0.1, 0.1, cmfl.Settings(threshold=0.8)).tensors

    def test_an_update_against_it_is_a_notice_without_tensors(self, network: Network) -> None:
        assert not self.upload(network, -0.1, 0.1, cmfl.Settings(threshold=0.8)).tensors

    def test_without_a_last_update_everyone_sends(self, network: Network) -> None:
        assert self.upload(network, -0.1, 0.0, cmfl.Settings(threshold=0.8)).tensors

    def test_the_threshold_may_fall_with_the_root_of_the_round(self, network: Network) -> None:
        one = Network(nn.Linear(1, 2, bias=False))
        half_along = torch.tensor([[0.1], [-0.1]])
        falling = cmfl.Settings(threshold=1.0, decay=cmfl.Decay.ROOT)
        assert not self.upload(one, half_along, 0.1, falling, round=3).tensors  # 0.5 < 1/√3
        assert self.upload(one, half_along, 0.1, falling, round=4).tensors  # 0.5 = 1/√4

    def test_a_client_remembers_the_model_it_received(self, network: Network) -> None:
        algorithm = cmfl.algorithm(network, TRAINING, cmfl.Settings())
        received = numbered(algorithm.broadcast(Server(network.weights())))
        local, memory = algorithm.start(received, algorithm.client_memory(), CLIENT)
        _, memory = algorithm.finish(local, received, memory, CLIENT)
        assert_same(memory.received, network.weights())


def test_every_broadcast_fits_one_of_the_algorithms_schemas_and_is_what_the_server_holds(network: Network) -> None:
    made: list[Algorithm] = [
        fedavg.algorithm(network, TRAINING, fedavg.Settings()),
        tfedavg.algorithm(network, TRAINING, tfedavg.Settings()),
        stc.algorithm(network, TRAINING, stc.Settings()),
        topk.algorithm(network, TRAINING, topk.Settings()),
        signsgd_ef.algorithm(network, TRAINING, signsgd_ef.Settings()),
        cmfl.algorithm(network, TRAINING, cmfl.Settings()),
        fedprox.algorithm(network, TRAINING, fedprox.Settings(ternary=True)),
        fedopt.algorithm(network, TRAINING, fedopt.Settings()),
        fedpaq.algorithm(network, TRAINING, fedpaq.Settings()),
        eden.algorithm(network, TRAINING, eden.Settings(bits_down=None)),
    ]
    for algorithm in made:
        opened = algorithm.open(network.weights())
        # Quantized and averaged model judge alike (Strategy I), and the quantized one collapses (Strategy II).
        one, two = (algorithm.update(opened, uploads(moved(opened.weights)), helpers(j, 1.0)) for j in (1.0, 0.0))
        last = receive(algorithm, send(algorithm, algorithm.broadcast(opened), 1, None), None).reference
        for server, held in ((opened, False), (one, False), (one, True), (two, False), (two, True)):
            data = send(algorithm, algorithm.broadcast(server), 2, last if held else None)
            arrived = receive(algorithm, data, last if held else None).message
            assert same(arrived, numbered(algorithm.broadcast(server), 2)), algorithm.name


def assert_same(first: Weights, second: Weights) -> None:
    assert set(first) == set(second)
    for name in first:
        assert torch.equal(first[name], second[name]), name
