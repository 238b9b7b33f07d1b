"""Two lines in anybody's Flower app: whatever strategy and arrays it has, the model goes where it went without."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from toy import (
    CLIENTS,
    COUNTER,
    State,
    arrays,
    client_app,
    distance,
    grid_of,
    network,
    play,
    record,
    small,
    state_of,
    target,
)

from ternfed.algorithms import tfedavg
from ternfed.algorithms.tfedavg_settings import Upload
from ternfed.engines.flower.envelope import wrap
from ternfed.engines.flower.parcel import Kept, pack, parcel_in, unpack
from ternfed.engines.flower.strategy import NoReplyCounted, TernaryStrategy

STRATEGIES: dict[str, Any] = {
    "FedAvg": flower.FedAvg,
    "FedProx": lambda **more: flower.FedProx(proximal_mu=0.1, **more),
    "FedAvgM": lambda **more: flower.FedAvgM(server_learning_rate=1.0, server_momentum=0.3, **more),
    "FedAdam": lambda **more: flower.FedAdam(eta=0.05, **more),
    "FedYogi": lambda **more: flower.FedYogi(eta=0.05, **more),
    "FedAdagrad": lambda **more: flower.FedAdagrad(eta=0.05, **more),
    "QFedAvg": lambda **more: flower.QFedAvg(client_learning_rate=0.1, q=0.1, **more),
    "FedMedian": flower.FedMedian,
    "FedTrimmedAvg": flower.FedTrimmedAvg,
    "Krum": flower.Krum,
}


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging.getLogger("flwr").setLevel(logging.WARNING)


# Whatever the strategy


@pytest.mark.parametrize("norm", [False, True], ids=["", "batchnorm"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_goes_where_it_went_without_the_two_lines(name: str, norm: bool) -> None:
    start = state_of(network(norm))
    made, result = play(small(STRATEGIES[name]), start)
    assert distance(arrays(result.arrays), start) < 1.0
    if not (norm and name == "QFedAvg"):  # which cannot take whole numbers by itself
        plain = small(STRATEGIES[name]).start(grid_of(client_app(start, mods=[])), record(start), num_rounds=4)
        alone = 0.3 if name == "Krum" else 0.15  # it takes the word of one client, whose losses no other makes up for
        assert distance(arrays(result.arrays), start) < distance(arrays(plain.arrays), start) + alone
    assert made.bytes_up < sum(each.plain_up for each in made.rounds) / 7  # a toy of 1,600 weights


@pytest.mark.parametrize("name", ["FedAvg", "FedAdam"])
def test_with_a_part_of_the_clients_per_round(name: str) -> None:
    start = state_of(network(norm=True))
    inner = small(STRATEGIES[name], fraction_train=0.5)
    made, result = play(inner, start, rounds=6)
    assert distance(arrays(result.arrays), start) < 0.5
    assert not made.dropped


@pytest.mark.parametrize("name", ["FedAvgM", "FedAdam", "FedYogi", "FedAdagrad", "QFedAvg"])
def test_the_strategy_inside_has_the_model_that_clients_received_as_its_reference(name: str) -> None:
    start, log = state_of(network(norm=True)), list[Any]()
    inner = small(STRATEGIES[name])
    strategy, grid = TernaryStrategy(inner), grid_of(client_app(start, log=log))
    now, references = record(start), list[State]()
    for server_round in (1, 2, 3):
        replies = list(grid.send_and_receive(strategy.configure_train(server_round, now, ConfigRecord(), grid)))
        references.append(dict(inner.current_arrays or {}))
        now, _ = strategy.aggregate_train(server_round, replies)
    _, received, _ = log[-1]
    reference = references[-1]
    assert reference.keys() == received.keys()
    for key, array in received.items():
        held = reference[key] if isinstance(reference[key], np.ndarray) else reference[key].numpy()
        assert np.array_equal(held, array), key


@pytest.mark.parametrize("mode", ["updates", "ternary"])
def test_what_is_returned_and_judged_is_the_model_that_clients_receive_next(mode: str) -> None:
    start, log, judged = state_of(network()), list[Any](), dict[int, State]()
    strategy = TernaryStrategy(small(flower.FedAvg), mode)

    def evaluate(server_round: int, found: Any) -> MetricRecord | None:
        judged[server_round] = arrays(found)
        return None

    strategy.start(grid_of(client_app(start, log=log)), record(start), num_rounds=3, evaluate_fn=evaluate)
    for server_round in (1, 2):
        _, received, _ = log[CLIENTS * server_round]
        assert all(np.array_equal(judged[server_round][name], received[name]) for name in received)


def test_arrays_that_somebody_changes_between_rounds_are_the_ones_that_travel() -> None:
    start, log = state_of(network()), list[Any]()
    strategy, grid = TernaryStrategy(small(flower.FedAvg)), grid_of(client_app(start, log=log))
    list(grid.send_and_receive(strategy.configure_train(1, record(start), ConfigRecord(), grid)))
    other = {name: array + 1 for name, array in start.items()}
    list(grid.send_and_receive(strategy.configure_train(2, record(other), ConfigRecord(), grid)))
    _, received, _ = log[-1]
    assert all(np.abs(received[name] - other[name]).max() < 0.3 for name in other)


# Error feedback


def test_what_one_upload_leaves_out_comes_with_the_next() -> None:
    """The same change again and again: with every round the mean of what was decoded is nearer to it."""
    start = state_of(network())
    strategy, grid = TernaryStrategy(small(flower.FedAvg), seed=3), grid_of(client_app(start, share=0.1), clients=2)
    errors, wanted = list[float](), np.zeros(())
    now = record(start)
    name = "0.weight"
    for server_round in range(1, 9):
        replies = grid.send_and_receive(strategy.configure_train(server_round, now, ConfigRecord(), grid))
        before = arrays(strategy._seen)[name]
        goal = (target(start, 0)[name] + target(start, 1)[name]) / 2
        now, _ = strategy.aggregate_train(server_round, replies)
        wanted = wanted + 0.1 * (goal - before)
        moved = strategy._model.server.memory.model["t0"].numpy() - start[name]  # type: ignore[union-attr]
        errors.append(float(np.linalg.norm(moved - wanted) / np.linalg.norm(wanted)))
    assert errors[-1] < 0.25 * errors[0]


@pytest.mark.parametrize("name", STRATEGIES)
def test_clients_keep_what_is_left_out_unless_the_strategy_adapts_or_picks(name: str) -> None:
    start = state_of(network())
    strategy, grid = TernaryStrategy(small(STRATEGIES[name])), grid_of(client_app(start))
    strategy.start(grid, record(start), num_rounds=2)
    kept = [Kept.found(context) for context in grid.contexts.values()]
    unsuited = name in ("FedAdam", "FedYogi", "Krum")
    assert [bool(each is not None and each.memory) for each in kept] == [not unsuited] * CLIENTS
    for asked in (True, False):
        assert TernaryStrategy(small(STRATEGIES[name]), error_feedback=asked).error_feedback is asked


@pytest.mark.parametrize(
    ("name", "low", "high"), [("Krum", 0.999, 1.001), ("FedAdam", 1.05, 1.3), ("FedAvg", 0.999, 1.001)]
)
def test_an_upload_is_as_long_as_the_update_unless_it_is_to_be_right_in_the_mean(
    name: str, low: float, high: float
) -> None:
    start, log = state_of(network()), list[Any]()
    strategy = TernaryStrategy(small(STRATEGIES[name]), seed=1)
    grid = grid_of(client_app(start, log=log))
    replies = list(grid.send_and_receive(strategy.configure_train(1, record(start), ConfigRecord(), grid)))
    strategy.aggregate_train(1, replies)
    for reply, (_, received, _) in zip(replies, log, strict=True):
        goal = target(start, reply.metadata.src_node_id - 1)["2.weight"]
        told = arrays(reply.content["arrays"])["2.weight"] - received["2.weight"]
        assert low < np.linalg.norm(told) / np.linalg.norm(0.5 * (goal - received["2.weight"])) < high


def test_without_error_feedback_an_adaptive_strategy_sees_less_noise() -> None:
    """What is left out now and sent later counts twice in its second moments, as a step there and as one back."""
    start, excess = state_of(network()), list[float]()
    plain = small(STRATEGIES["FedAdam"])
    plain.start(grid_of(client_app(start, mods=[], share=0.02)), record(start), num_rounds=6)
    for feedback in (True, False):
        inner = small(STRATEGIES["FedAdam"])
        strategy = TernaryStrategy(inner, error_feedback=feedback, seed=1)
        strategy.start(grid_of(client_app(start, share=0.02)), record(start), num_rounds=6)
        excess.append(float(inner.v_t["0.weight"].sum() / plain.v_t["0.weight"].sum()))
    with_feedback, without = (each - 1 for each in excess)
    assert with_feedback > 1.4 * without > 0


def test_more_bits_lose_less() -> None:
    start, errors = state_of(network()), []
    for bits in (1, 1.5, 4):
        strategy = TernaryStrategy(small(flower.FedAvg), bits_up=bits, seed=1)
        grid = grid_of(client_app(start, share=1.0))
        replies = grid.send_and_receive(strategy.configure_train(1, record(start), ConfigRecord(), grid))
        strategy.aggregate_train(1, replies)
        told = strategy._model.server.memory.model["t0"].numpy()  # type: ignore[union-attr]
        errors.append(float(np.linalg.norm(told - target(start)["0.weight"])))
    assert errors[0] > errors[1] > errors[2]
    with pytest.raises(ValueError, match=r"bits_up = 5: 1, 1.5, 2, 3, 4 is allowed"):
        TernaryStrategy(flower.FedAvg(), bits_up=5)


def test_what_clients_keep_survives_rounds_and_is_rebuilt_when_lost(caplog: pytest.LogCaptureFixture) -> None:
    start, log = state_of(network(norm=True)), list[Any]()
    strategy, grid = TernaryStrategy(small(flower.FedAvg)), grid_of(client_app(start, log=log))
    forget = {2: [1], 3: [1, 2, 3]}

    def evaluate(server_round: int, found: Any) -> None:
        for node in forget.get(server_round, ()):
            grid.contexts[node].state = RecordDict()

    result = strategy.start(grid, record(start), num_rounds=5, evaluate_fn=evaluate)
    assert len(log) == 5 * CLIENTS
    assert not strategy.dropped
    assert distance(arrays(result.arrays), start) < 0.2
    down = [each.down for each in strategy.rounds]
    assert down[1] < down[2] < down[3]  # nobody, one, all were sent the whole model once more
    assert down[4] < down[2]


def test_the_first_broadcast_is_within_a_fifteenth_of_each_rows_largest_weight() -> None:
    start, log = state_of(network()), list[Any]()
    play(small(flower.FedAvg), start, rounds=1, log=log)
    _, received, _ = log[0]
    for name, array in start.items():
        rows = array.reshape(len(array), -1) if array.ndim > 1 else array.reshape(1, -1)
        off = np.abs(received[name].reshape(rows.shape) - rows).max(1)
        assert (off <= np.abs(rows).max(1) / 15).all(), name


def test_a_client_that_sat_rounds_out_is_sent_the_difference_to_what_it_holds() -> None:
    start = state_of(network())
    strategy, grid = TernaryStrategy(small(flower.FedAvg)), grid_of(client_app(start))
    now, sizes = record(start), {}
    for server_round, absent in ((1, ()), (2, (3,)), (3, (3,)), (4, ())):
        messages = [
            message
            for message in strategy.configure_train(server_round, now, ConfigRecord(), grid)
            if message.metadata.dst_node_id not in absent
        ]
        sizes[server_round] = {m.metadata.dst_node_id: m.content["arrays"].count_bytes() for m in messages}
        now, _ = strategy.aggregate_train(server_round, grid.send_and_receive(messages))
    assert sizes[4][1] < sizes[4][3] < 0.9 * sizes[1][3]


# Any state_dict


def odd_state() -> State:
    source = np.random.default_rng(0)
    return {
        "z.half": source.standard_normal((20, 10)).astype(np.float16),
        "a.double": source.standard_normal((3, 70)),
        "mask": np.triu(np.full((6, 6), -np.inf, np.float32), 1),
        "count": np.array(5, np.int64),
        "ids": source.integers(0, 1000, (7, 3)).astype(np.int32),
        "flags": np.array([True, False, True]),
        "wide": np.array([1, 2**40], np.uint64),
        "complex": np.array([1 + 2j, 3j], np.complex64),
        "scalar": np.array(0.5, np.float32),
        "empty": np.zeros((0, 4), np.float32),
        "constant": np.zeros((16, 16), np.float32),
        "huge": np.full((4, 32), 1e35, np.float32),
        "layer.num_batches_tracked": np.array(0, np.int64),
    }


def test_any_arrays_arrive_with_their_names_order_shapes_and_dtypes() -> None:
    start, log = odd_state(), list[Any]()
    _, result = play(small(flower.FedAvg), start, rounds=3, log=log)
    for state in (arrays(result.arrays), *(got for _, got, _ in log)):
        assert list(state) == list(start)
        for name, array in start.items():
            assert (state[name].dtype, state[name].shape) == (array.dtype, array.shape), name
            if name in ("mask", "count", "ids", "flags", "wide", "complex", "huge"):
                assert np.array_equal(state[name], array), name
    assert int(arrays(result.arrays)["layer.num_batches_tracked"]) == 9


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_models_of_other_precisions_move_as_float32_ones_do(dtype: Any) -> None:
    start = {name: array.astype(dtype) for name, array in state_of(network()).items()}
    _, result = play(small(flower.FedAvg), start)
    assert distance(arrays(result.arrays), start) < 0.15
    assert all(array.dtype == dtype for array in arrays(result.arrays).values())


def test_a_batchnorm_model_keeps_its_counters_whole_over_rounds() -> None:
    start = state_of(network(norm=True))
    for name in ("FedAvg", "QFedAvg"):
        _, result = play(small(STRATEGIES[name]), start, rounds=3)
        (counter,) = [array for key, array in arrays(result.arrays).items() if key.endswith(COUNTER)]
        assert (counter.dtype, int(counter)) == (np.int64, 9)


def test_what_two_layers_share_stays_nearly_the_same_under_both_names() -> None:
    start = state_of(network())
    start["tied"] = start["2.weight"].copy()
    _, result = play(small(flower.FedAvg), start)
    assert distance(arrays(result.arrays), start) < 0.15


class Odd(nn.Module):
    """Half precision, one weight under two names, a buffer that is saved, and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(20, 16), nn.Linear(16, 20, bias=False)
        self.out.weight = self.words.weight
        self.register_buffer("places", torch.arange(7))
        self.register_buffer("mask", torch.ones(4), persistent=False)
        self.half()


def test_a_model_of_pytorch_is_loaded_from_what_arrives_as_from_its_own_state_dict() -> None:
    torch.manual_seed(0)
    log, model = list[Any](), Odd()
    _, result = play(small(flower.FedAvg), state_of(model), rounds=2, log=log)
    for found in (result.arrays, record(log[-1][1])):
        other = Odd()
        other.load_state_dict(found.to_torch_state_dict())
        assert other.out.weight is other.words.weight
        assert other.words.weight.dtype == torch.float16
        assert torch.equal(other.get_buffer("places"), torch.arange(7))
        assert list(found) == list(model.state_dict()) == ["places", "words.weight", "out.weight"]


# Messages that are not the model


def test_messages_without_arrays_and_queries_pass_unharmed() -> None:
    app = client_app(state_of(network()))
    grid = grid_of(app)
    asked = RecordDict({"config": ConfigRecord({"what": 1}), "own": record({"a": np.arange(3.0)})})
    (reply,) = grid.send_and_receive([Message(asked, 1, "query")])
    assert dict(reply.content["config"]) == {"what": 1}
    assert np.array_equal(arrays(reply.content["own"])["a"], np.arange(3.0))
    (reply,) = grid.send_and_receive([Message(RecordDict({"config": ConfigRecord({"x": 2})}), 1, "query")])
    assert not reply.has_error()


def test_a_second_record_of_arrays_arrives_as_it_was_sent() -> None:
    class WithControl(flower.FedAvg):
        def configure_train(self, *given: Any) -> Any:
            messages = list(super().configure_train(*given))
            for message in messages:
                message.content["control"] = record(control)
            return messages

    start, log = state_of(network()), list[Any]()
    control = {name: array * 2 for name, array in start.items()}
    play(small(WithControl), start, rounds=2, log=log)
    _, _, message = log[-1]
    found = arrays(message.content["control"])
    assert all(np.array_equal(found[name], control[name]) for name in control)


def test_evaluation_gets_the_model_and_training_on_it_costs_nothing_more() -> None:
    start, log = state_of(network()), list[Any]()
    inner = small(flower.FedAvg, fraction_evaluate=1.0, min_evaluate_nodes=2)
    strategy, result = play(inner, start, rounds=3, log=log)
    last = [got for _, got, message in log if message.metadata.message_type == "evaluate"][-1]
    assert all(np.array_equal(arrays(result.arrays)[name], last[name]) for name in last)
    metrics = result.evaluate_metrics_clientapp[2]
    assert metrics["seen"] == 1.0
    assert strategy.rounds[1].down < 100 * CLIENTS < metrics["ternfed-bytes-down"]


def test_a_mod_without_the_strategy_changes_nothing() -> None:
    start = state_of(network())
    results = [
        small(flower.FedAvg).start(grid_of(client_app(start, **more)), record(start), num_rounds=2).arrays
        for more in ({}, {"mods": []})
    ]
    ours, theirs = map(arrays, results)
    assert all(np.allclose(ours[name], theirs[name], atol=1e-6) for name in start)  # added in another order


# What is told


def test_bytes_and_their_share_of_float32_are_in_the_runs_metrics() -> None:
    start = state_of(network())
    strategy, result = play(small(flower.FedAvg), start, rounds=2)
    metrics = result.train_metrics_clientapp[2]
    size = 4 * sum(array.size for array in start.values()) * CLIENTS
    assert metrics["train_loss"] == pytest.approx(0.5)
    for way in ("down", "up"):
        assert metrics[f"ternfed-bytes-{way}"] == getattr(strategy.rounds[1], way) > 0
        assert metrics[f"ternfed-share-of-float32-{way}"] == pytest.approx(metrics[f"ternfed-bytes-{way}"] / size)


def test_clients_whose_replies_cannot_be_used_are_dropped_with_a_reason(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    start = state_of(network())
    grid, strategy = grid_of(client_app(start)), TernaryStrategy(small(flower.FedAvg))
    honest = grid.send_and_receive

    def send(messages: Any, *, timeout: Any = None) -> Any:
        replies = list(honest(messages))
        if not replies:
            return replies
        damaged, other = replies[:2]
        damaged.content["arrays"] = wrap(unwrapped(damaged)[:-9])
        other.content["arrays"] = wrap(pack({"run": "77", "at": 0, "seed": 1}, unpack(unwrapped(other))[1]))
        failed = Message(Error(2, "no data here"), reply_to=Message(RecordDict(), 3, "train"))
        return [damaged, other, failed, *replies[2:]]

    def unwrapped(reply: Any) -> bytes:
        found = parcel_in(reply.content)
        assert found is not None
        return found[1]

    grid.send_and_receive = send
    result = strategy.start(grid, record(start), num_rounds=1)
    assert result.arrays is not None
    assert len(strategy.dropped) == 3
    assert all(f"round 1: a reply does not count: {reason}" in caplog.text for reason in strategy.dropped)
    assert any("Truncated" in reason or "WrongChecksum" in reason for reason in strategy.dropped)
    assert any("WrongRound" in reason for reason in strategy.dropped)
    assert any("no data here" in reason for reason in strategy.dropped)


def test_a_round_in_which_no_reply_counts_ends_the_run_with_an_error() -> None:
    start = state_of(network())
    broken = client_app({**start, "0.weight": start["0.weight"] * np.nan})  # its targets are not finite
    strategy = TernaryStrategy(small(flower.FedAvg))
    with pytest.raises(NoReplyCounted, match=r"round 1: 3 clients were asked, no reply counts \(.*not finite"):
        strategy.start(grid_of(broken), record(start), num_rounds=2)


def test_clients_without_the_mod_end_the_run_with_a_sentence_that_names_it() -> None:
    start = state_of(network())
    with pytest.raises(NoReplyCounted, match="is ternary_mod the first mod"):
        play(small(flower.FedAvg), start, mods=[])


@pytest.mark.parametrize(
    ("inner", "mode", "words"),
    [(object(), "updates", "strategy of flwr.serverapp"), (flower.FedAvg(), "trits", "'updates' or 'ternary'")],
)
def test_what_cannot_be_is_refused_in_one_sentence(inner: Any, mode: str, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        TernaryStrategy(inner, mode)


# T-FedAvg


@pytest.mark.parametrize("norm", [False, True], ids=["", "batchnorm"])
def test_in_the_mode_ternary_the_inner_layers_are_ternary_whatever_clients_send(norm: bool) -> None:
    start, log = state_of(network(norm)), list[Any]()
    strategy, result = play(small(flower.FedAvg), start, mode="ternary", log=log)
    inner = "3.weight" if norm else "2.weight"
    for state in (arrays(result.arrays), *(got for _, got, _ in log)):
        assert len(np.unique(state[inner])) <= 3
        assert len(np.unique(state["0.weight"])) > 3
    plain = {n: a for n, a in arrays(result.arrays).items() if n != inner}
    assert distance({**start, **plain, inner: target(start)[inner]}, start) < 0.3
    assert strategy.rounds[-1].up < strategy.rounds[-1].plain_up / 10


def test_in_the_mode_ternary_what_trits_leave_out_comes_with_later_broadcasts() -> None:
    """The mean of the broadcasts is much nearer to where clients want a layer than any one of them can be."""
    start, log = state_of(network()), list[Any]()
    play(small(flower.FedAvg), start, mode="ternary", rounds=24, log=log, share=0.3)
    goal = target(start)["2.weight"]
    sent = [got["2.weight"] for _, got, _ in log[::CLIENTS]][4:]
    one = np.mean([np.linalg.norm(each - goal) for each in sent])
    assert np.linalg.norm(np.mean(sent, axis=0) - goal) < 0.5 * one


def test_the_mode_ternary_is_the_servers_own_tfedavg(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same functions: whoever replaces T-FedAvg's replaces the mode's."""
    made = list[Any]()
    honest = tfedavg.algorithm
    monkeypatch.setattr(tfedavg, "algorithm", lambda *given: made.append(given[-1]) or honest(*given))
    play(small(flower.FedAvg), state_of(network()), mode="ternary", rounds=1)
    assert len(made) >= 1 + CLIENTS  # the server's, and each client's
    assert {settings.upload for settings in made} == {Upload.DIFFERENCES}


def test_patterns_choose_what_is_ternary() -> None:
    start = state_of(network())
    strategy = TernaryStrategy(small(flower.FedAvg), "ternary", where=["0.weight"])
    result = strategy.start(grid_of(client_app(start)), record(start), num_rounds=2)
    state = arrays(result.arrays)
    assert len(np.unique(state["0.weight"])) <= 3 < len(np.unique(state["2.weight"]))


def test_a_model_without_inner_layers_says_so() -> None:
    start = {"weight": np.ones((4, 4), np.float32), "bias": np.ones(4, np.float32)}
    with pytest.raises(ValueError, match="no array to make ternary"):
        play(small(flower.FedAvg), start, mode="ternary")
