"""A registered client is not a trusted one: what it claims counts within bounds, and the record says so."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ternfed.aggregation import clipped_mean, krum, mean
from ternfed.aggregation.aggregation import Aggregation, Start, Uploads
from ternfed.aggregation.private_mean import private
from ternfed.algorithms import fedavg, tfedavg
from ternfed.algorithms.algorithm import Client, Network, Training
from ternfed.bench import attacks
from ternfed.data.sets import load
from ternfed.engines import simulate
from ternfed.experiment.experiment import Experiment, ExperimentError
from ternfed.round.acceptance import Bounds, NotFinite, OutOfBounds, accepted
from ternfed.round.exchange import Broadcast
from ternfed.round.federation import open_federation
from ternfed.round.intake import Intake
from ternfed.runs.records import Round
from ternfed.wire import Message

SENDER = Client(0, 5, lambda purpose: torch.Generator())
NETWORK = Network.of(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 2)))
FEDAVG = fedavg.algorithm(NETWORK, Training(), fedavg.Settings())
CLIPPED = clipped_mean.aggregation()


def upload(value: float | Tensor, samples: float = 10.0) -> Message:
    tensor = torch.full((8,), value) if isinstance(value, float) else value
    return Message({"w": tensor}, {"round": 1.0, "samples": samples, "loss": 0.5})


def clipped(messages: dict[int, Message], center: Tensor | None = None, expected: int = 5) -> Uploads:
    assert CLIPPED.begin_at is not None
    state = CLIPPED.begin_at(Start({"w": torch.zeros(8) if center is None else center}, expected))
    for client, message in messages.items():
        CLIPPED.add(state, client, message)
    return CLIPPED.finish(state)


class TestSamples:
    def intake(self, rule: Aggregation[mean.Sums] | None = None) -> Intake:
        own = rule or mean.aggregation()
        return Intake(own, own.begin, registered=[10, 10, 10, 10, 10])

    def test_a_claim_of_ten_million_counts_as_the_median(self) -> None:
        intake = self.intake()
        for client, message in enumerate([upload(0.0), upload(0.0), upload(1.0, 1e7), upload(0.0), upload(0.0)]):
            intake.add(client, message)
        uploads = intake.finish()
        assert uploads.average["w"].tolist() == pytest.approx([0.2] * 8)
        assert uploads.notes == {2: "client 2: claimed 10000000 samples, counted as 10"}

    def test_the_order_of_arrival_changes_no_bit(self) -> None:
        messages = {0: upload(0.1, 7), 1: upload(0.2, 30), 2: upload(0.3, 1e7), 3: upload(0.4, 12)}
        averages = []
        for order in itertools.permutations(messages):
            intake = self.intake()
            for client in order:
                intake.add(client, messages[client])
            uploads = intake.finish()
            averages.append((uploads.average["w"].tolist(), uploads.notes))
        assert all(each == averages[0] for each in averages)

    def test_what_the_partition_gives_a_client_is_never_capped(self) -> None:
        rule = mean.aggregation()
        intake = Intake(rule, rule.begin, registered=[10, 10, 1000])
        for client, message in enumerate([upload(0.0, 10), upload(0.0, 10), upload(1.0, 1000)]):
            intake.add(client, message)
        uploads = intake.finish()
        assert not uploads.notes
        assert uploads.average["w"][0].item() == pytest.approx(1000 / 1020)


class TestBounds:
    def sent(self, **changed: Tensor) -> Message:
        named = {name.replace("_", ".", 1): tensor for name, tensor in changed.items()}
        tensors = {**NETWORK.without_counters(NETWORK.weights()), **named}
        return Message(dict(tensors), {"round": 1.0, "samples": 10.0, "loss": 0.5})

    def check(self, message: Message, algorithm=FEDAVG) -> Message:  # type: ignore[no-untyped-def]
        broadcast = Broadcast(self.sent(), None)
        return accepted(algorithm, NETWORK, message, broadcast, SENDER, Bounds())

    def test_an_honest_upload_passes_as_it_is(self) -> None:
        message = self.sent()
        assert self.check(message) is message

    @pytest.mark.parametrize(
        ("name", "tensor", "sentence"),
        [
            ("1_running_var", torch.tensor([1.0, 1.0, -0.001, 1.0]), "1.running_var: a variance of -0.001"),
            ("1_running_var", torch.full((4,), 3e38), r"1.running_var: 3e\+38 is more than 1e\+06"),
            ("1_running_mean", torch.full((4,), -3e38), r"1.running_mean: 3e\+38 is more than 1e\+06"),
            ("0_weight", torch.full((4, 4), 101.0), "0.weight: 101 is more than 100"),
        ],
    )
    def test_what_no_client_sends_is_refused_by_name(self, name: str, tensor: Tensor, sentence: str) -> None:
        with pytest.raises(OutOfBounds, match=sentence):
            self.check(self.sent(**{name: tensor}))

    def test_what_is_not_finite_is_refused_by_name(self) -> None:
        with pytest.raises(NotFinite, match=r"1.running_var: holds values that are not finite"):
            self.check(self.sent(**{"1_running_var": torch.full((4,), torch.nan)}))

    def test_a_change_of_a_variance_is_held_to_the_broadcast(self) -> None:
        differs = replace(FEDAVG, changes=("1.running_var",))
        self.check(self.sent(**{"1_running_var": torch.tensor([-0.99, 0.0, 0.0, 0.5])}), differs)
        with pytest.raises(OutOfBounds, match=r"1.running_var: a variance of -4"):
            self.check(self.sent(**{"1_running_var": torch.tensor([-5.0, 0.0, 0.0, 0.5])}), differs)

    @pytest.mark.parametrize("claim", [1e9, -0.1, 1.01])
    def test_an_accuracy_is_a_share(self, claim: float) -> None:
        message = self.sent()
        with pytest.raises(OutOfBounds, match="accuracy"):
            self.check(Message(message.tensors, {**message.numbers, "accuracy": claim}))

    @pytest.mark.parametrize("samples", [0.0, 2.5, -1.0, 1e9])
    def test_samples_are_a_whole_number(self, samples: float) -> None:
        message = self.sent()
        with pytest.raises(OutOfBounds, match="samples"):
            self.check(Message(message.tensors, {**message.numbers, "samples": samples}))

    def test_t_fedavg_says_which_tensors_are_changes(self) -> None:
        plain = Network.of(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)))
        assert set(tfedavg.algorithm(plain, Training(), tfedavg.Settings()).changes) == set(plain.floats)


class TestClippedMean:
    @given(st.lists(st.floats(1.0, 2.9), min_size=1, max_size=7), st.integers(0, 5))
    @settings(deadline=None, max_examples=50)
    def test_is_the_mean_to_the_bit_where_nobody_is_far_off(self, sizes: list[float], seed: int) -> None:
        source = torch.Generator().manual_seed(seed)
        messages = {}
        for client, size in enumerate(sizes):
            drawn = torch.randn(8, generator=source)
            messages[client] = upload(drawn / drawn.norm() * size, 10.0 + client)
        state = mean.aggregation().begin()
        for client, message in messages.items():
            mean.add(state, client, message)
        uploads = clipped(messages)
        assert torch.equal(uploads.average["w"], mean.finish(state).average["w"])
        assert not uploads.notes

    def test_who_moved_too_far_is_pulled_back_and_who_moved_far_too_far_is_left_out(self) -> None:
        near = {client: upload(1.0) for client in range(4)}
        pulled = clipped({**near, 4: upload(4.0)})
        assert pulled.average["w"].tolist() == pytest.approx([(4 + 3) / 5] * 8)
        assert pulled.notes[4].startswith("client 4: w moved 11.3, clipped to 8.49")
        out = clipped({**near, 4: upload(1e30)})
        assert out.average["w"].tolist() == [1.0] * 8
        assert "left out" in out.notes[4]

    def test_distances_are_measured_from_the_broadcast(self) -> None:
        messages = {client: upload(100.0 + step) for client, step in enumerate((1.0, 1.0, 1.0, 1.0, -50.0))}
        assert set(clipped(messages, torch.full((8,), 100.0)).notes) == {4}
        assert not clipped(messages).notes

    def test_more_samples_take_a_client_farther(self) -> None:
        assert not clipped({**{client: upload(1.0) for client in range(4)}, 4: upload(9.0, 100.0)}).notes

    def test_the_order_of_arrival_changes_no_bit(self) -> None:
        messages = {client: upload(float(value)) for client, value in enumerate((1, -1, 2, 40, 5))}
        averages = [clipped({c: messages[c] for c in order}) for order in itertools.permutations(messages)]
        assert all(torch.equal(each.average["w"], averages[0].average["w"]) for each in averages)
        assert all(each.notes == averages[0].notes for each in averages)

    def test_two_who_disagree_are_both_believed_and_so_are_more_than_memory_holds(self) -> None:
        assert not clipped({0: upload(1.0), 1: upload(1e6)}).notes
        assert not clipped({c: upload(1.0 if c else 1e6) for c in range(5)}, expected=1 << 40).notes


class TestKrum:
    @pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 2, 0, 3, 1)])
    def test_takes_the_upload_that_is_closest_to_the_others(self, order: tuple[int, ...]) -> None:
        messages = {client: upload(value) for client, value in enumerate((1.0, 1.1, 1.2, 50.0, 0.7))}
        rule = krum.aggregation()
        state = rule.begin()
        for client in order:
            rule.add(state, client, messages[client])
        assert torch.equal(rule.finish(state).average["w"], torch.full((8,), 1.1))

    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_of_few_it_still_takes_one(self, count: int) -> None:
        rule = krum.aggregation()
        state = rule.begin()
        for client in range(count):
            rule.add(state, client, upload(float(client)))
        assert rule.finish(state).average["w"][0].item() in range(count)


class TestPrivacy:
    def test_a_client_moves_the_mean_by_no_more_than_its_clip(self) -> None:
        rule = private(clip=2.0, noise=1e-9)
        assert rule.begin_at is not None
        state = rule.begin_at(Start({"w": torch.ones(8)}, 4))
        for client in range(3):
            rule.add(state, client, upload(1.0))
        rule.add(state, 3, upload(1e6))
        moved = rule.finish(state).average["w"] - 1
        assert float(moved.norm()) == pytest.approx(2.0 / 4, rel=1e-3)

    def test_the_noise_is_as_large_as_promised_and_never_the_same(self) -> None:
        rule = private(clip=2.0, noise=3.0)
        assert rule.begin_at is not None
        drawn = []
        for _ in range(2):
            state = rule.begin_at(Start({"w": torch.zeros(20_000)}, 10))
            rule.add(state, 0, upload(torch.zeros(20_000)))
            drawn.append(rule.finish(state).average["w"])
        assert float(drawn[0].std()) == pytest.approx(3.0 * 2.0 / 10, rel=0.05)
        assert not torch.equal(*drawn)

    @pytest.mark.parametrize(
        ("given", "sentence"),
        [
            (["privacy.clip=1"], "privacy.clip = 1.0: is needed with privacy.noise"),
            (["privacy.clip=1", "privacy.noise=0"], "privacy.noise = 0.0: a number above 0"),
            (["federation.aggregate=median"], "brings a mean of its own"),
            (["federation.audit=0.1"], "looks at uploads before noise hides them"),
            (["algorithm.name=cmfl"], "depends on its data, which privacy cannot hide"),
            (["algorithm.name=centralized"], "has no clients"),
            (
                ["algorithm.upload=trits", "algorithm.judging=clients"],
                "clients send accuracy beside their model, which privacy cannot hide",
            ),
        ],
    )
    def test_what_would_give_more_away_is_refused(self, given: list[str], sentence: str) -> None:
        usual = [] if "privacy.clip=1" in given else ["privacy.clip=1", "privacy.noise=1"]
        with pytest.raises(ExperimentError, match=sentence):
            open_federation(Experiment.from_toml("", [*usual, *given]), load("digits"))

    def test_settings_without_privacy_say_nothing_of_it(self) -> None:
        assert "privacy" not in Experiment.from_toml("").to_table()
        own = Experiment.from_toml("", ["privacy.clip=1", "privacy.noise=2"])
        assert Experiment.from_toml(own.to_toml()) == own
        assert [key for key, _, _ in Experiment.from_toml("").differences(own)] == [
            "privacy.clip", "privacy.noise", "privacy.delta",
        ]  # fmt: skip

    def test_epsilon_is_that_of_the_client_with_the_most_rounds(self) -> None:
        pytest.importorskip("dp_accounting", reason="the extra [privacy]")
        from ternfed.experiment.accountant import epsilon, epsilon_of

        own = Experiment.from_toml(
            "", ["privacy.clip=1", "privacy.noise=2", "federation.clients=4", "federation.participation=1"]
        )
        assert epsilon(own, 3) == epsilon_of(2.0, 3, 1e-5)
        assert epsilon_of(2.0, 3, 1e-5) == epsilon_of(4.0, 12, 1e-5) < epsilon_of(2.0, 4, 1e-5)
        assert epsilon(Experiment.from_toml(""), 3) is None


def test_a_record_says_what_was_held_back_and_is_as_before_where_nothing_was() -> None:
    numbers = dict.fromkeys(("bytes_up", "bytes_down", "bytes_up_fp32", "bytes_down_fp32"), 0)
    plain = Round(1, 0.5, 1.0, None, None, bits_per_weight_up=None, clients=2, **numbers)
    assert b"capped" not in plain.to_line()
    held = replace(plain, capped=("client 1: claimed 9 samples, counted as 2",))
    assert Round.from_line(held.to_line()) == held
    assert Round.from_line(plain.to_line()) == plain


def test_honest_runs_are_those_of_the_plain_mean_to_the_bit() -> None:
    digits = load("digits")
    small = ["federation.clients=4", "federation.participation=1", "federation.rounds=2", "training.epochs=1"]
    ends = []
    for rule in ("own", "mean"):
        experiment = Experiment.from_toml("", [*small, f"federation.aggregate={rule}", "data.classes_per_client=4"])
        *_, (state, record) = simulate.play(open_federation(experiment, digits))
        ends.append(state.server.weights)
        assert not record.capped
        assert not record.dropped
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())


def test_a_liar_is_left_out_by_the_audit_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacks, "ROUNDS", 5)
    digits, settings_ = load("digits"), attacks.DATA["N_c = 4"]
    turned = next(attack for attack in attacks.ATTACKS if attack.name == "its change turned round")
    lied_to = attacks.score(digits, (*settings_, *attacks.RULES["mean"]), turned, 0)
    audited = attacks.score(digits, (*settings_, *attacks.RULES["server"]), turned, 0)
    assert audited > lied_to + 0.1
