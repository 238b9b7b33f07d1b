"""The weighted mean: exact, and so the same whatever the order of arrival."""

import random
from fractions import Fraction

import pytest
import torch
from aggregation_samples import FLOATS, WHOLE, aggregated, rounds_of_uploads, same_bits, upload
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ternfed.aggregation import mean
from ternfed.aggregation.aggregation import MOST_SAMPLES, NotSummable
from ternfed.quantize.ternary import NonFiniteError, Ternary
from ternfed.wire import Message

MEAN = mean.aggregation()
STEP = 2**30


def terms(messages: list[Message], name: str) -> list[list[int]]:
    """Whole numbers of grid steps, by Python's own arithmetic: one list per client."""

    def of(message: Message) -> list[int]:
        value, samples = message.tensors[name], int(message.numbers["samples"])
        dense = value.dense() if isinstance(value, Ternary) else value
        if dense.is_floating_point():
            return [round(number * (samples * float(STEP))) for number in dense.double().tolist()]
        return [int(number) * samples for number in dense.tolist()]

    return [of(message) for message in messages]


def test_weights_are_the_clients_samples() -> None:
    uploads = aggregated(MEAN, [(0, upload(1.0, 1)), (1, upload(2.0, 3))])
    assert uploads.average["dense"].tolist() == [1.75] * 3
    assert uploads.average["ternary"].tolist() == [1.75, 0.0, -3.5]
    assert uploads.average["counter"].item() == 2  # (1·1 + 3·3) // 4: counters stay whole numbers
    assert uploads.numbers["loss"] == 1.75
    assert uploads.count == 2


@given(rounds_of_uploads(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=150)
def test_the_order_of_arrival_changes_no_bit(messages: list[Message], shuffler: random.Random) -> None:
    arrivals = list(enumerate(messages))
    shuffled = list(arrivals)
    shuffler.shuffle(shuffled)
    assert same_bits(aggregated(MEAN, arrivals), aggregated(MEAN, shuffled))


@given(rounds_of_uploads())
@settings(deadline=None, max_examples=150)
def test_is_the_exact_mean_of_every_dtype_and_size(messages: list[Message]) -> None:
    average = aggregated(MEAN, enumerate(messages)).average
    weight = sum(int(message.numbers["samples"]) for message in messages)
    for dtype in WHOLE:
        exact = [sum(column) // weight for column in zip(*terms(messages, str(dtype)), strict=True)]
        assert average[str(dtype)].dtype is dtype
        assert average[str(dtype)].tolist() == exact
    for name in (*map(str, FLOATS), "ternary"):
        assert average[name].dtype is torch.float32
        for got, column in zip(average[name], zip(*terms(messages, name), strict=True), strict=True):
            exact_mean = Fraction(sum(column), weight * STEP)
            assert abs(Fraction(got.item()) - exact_mean) <= unit_in_the_last_place(got) * Fraction(501, 1000)


def unit_in_the_last_place(number: Tensor) -> Fraction:
    up = torch.nextafter(number.abs(), torch.tensor(torch.inf))
    below = torch.nextafter(number.abs(), torch.tensor(0.0))
    if up.isinf():
        return Fraction(number.abs().item()) - Fraction(below.item())
    return Fraction(up.item()) - Fraction(number.abs().item())


@given(st.lists(st.tuples(st.floats(-2, 2, width=32), st.integers(1, 1000)), min_size=1, max_size=20))
@settings(deadline=None)
def test_of_ordinary_sizes_is_one_float64_division(clients: list[tuple[float, int]]) -> None:
    """The results of earlier runs stay what they were."""
    uploads = aggregated(
        MEAN, [(i, Message({"w": torch.tensor([v])}, {"samples": float(n)})) for i, (v, n) in enumerate(clients)]
    )
    total = sum(float(round(value * samples * STEP)) for value, samples in clients)
    expected = torch.tensor([total / (sum(n for _, n in clients) * STEP)], dtype=torch.float64).float()
    assert torch.equal(uploads.average["w"], expected)


@pytest.mark.parametrize("value", [100.0, -100.0, 3e38, 0.1])
def test_a_thousand_clients_at_the_bounds_of_what_a_server_accepts(value: float) -> None:
    """Weights of 100 and 10⁷ samples each: 2²³ is passed by the first upload."""
    message = Message({"w": torch.tensor([value, -value])}, {"samples": 1e7})
    odd = Message({"w": torch.tensor([0.5, 2.0**-30])}, {"samples": 1.0})
    arrivals = [(0, odd), *((client, message) for client in range(1, 1001))]
    first, last = aggregated(MEAN, arrivals), aggregated(MEAN, reversed(arrivals))
    assert same_bits(first, last)
    grid = round(torch.tensor(value).item() * 1e7 * STEP)
    weight = 1000 * 10**7 + 1
    exact = Fraction(1000 * grid + STEP // 2, weight * STEP)
    assert first.average["w"][0].item() == torch.tensor(float(exact), dtype=torch.float64).float().item()


def test_a_small_upload_is_not_lost_beside_large_ones_that_cancel() -> None:
    large = [Message({"w": torch.tensor([sign * 1e30])}, {"samples": 1e7}) for sign in (1, -1)]
    small = Message({"w": torch.tensor([0.25])}, {"samples": 1.0})
    for order in ((0, 1, 2), (2, 0, 1), (0, 2, 1)):
        messages = [*large, small]
        average = aggregated(MEAN, [(i, messages[i]) for i in order]).average["w"]
        assert average.item() == torch.tensor(0.25 / 20_000_001).item()


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        (torch.int8, [127, 127], 127),
        (torch.uint8, [200, 255], 227),
        (torch.int32, [2**31 - 1, 2**31 - 3], 2**31 - 2),
        (torch.int64, [2**63 - 1, 2**63 - 1], 2**63 - 1),
        (torch.int64, [-(2**63), 2**63 - 1], -1),
        (torch.bool, [True, False], False),
        (torch.bool, [True, True], True),
    ],
)
def test_integers_do_not_wrap_around(dtype: torch.dtype, values: list[int], expected: int) -> None:
    messages = [Message({"n": torch.tensor(value, dtype=dtype)}, {"samples": 1e7}) for value in values]
    average = aggregated(MEAN, enumerate(messages)).average["n"]
    assert average.dtype is dtype
    assert average.shape == ()
    assert average.item() == expected


def test_the_mean_of_the_numbers_does_not_depend_on_the_order_either() -> None:
    arrivals = list(enumerate(upload(value, 3) for value in (0.1, 0.7, 1e16, 0.3, -1e16)))
    losses = {aggregated(MEAN, arrivals[at:] + arrivals[:at]).numbers["loss"] for at in range(5)}
    assert len(losses) == 1


def test_a_notice_counts_as_skipped_and_moves_nothing() -> None:
    uploads = aggregated(MEAN, [(0, upload(1.0, 5)), (1, Message({}, {"samples": 100.0}))])
    assert (uploads.count, uploads.skipped) == (1, 1)
    assert uploads.average["dense"].tolist() == [1.0] * 3


def test_nothing_at_all_is_an_empty_average() -> None:
    assert aggregated(MEAN, []).average == {}


def test_a_tensor_without_elements_stays_one() -> None:
    empty = Message({"none": torch.zeros(0, 4), "counts": torch.zeros(0, dtype=torch.int64)}, {"samples": 2.0})
    average = aggregated(MEAN, [(0, empty), (1, empty)]).average
    assert (average["none"].shape, average["counts"].shape) == ((0, 4), (0,))


BEYOND = {"samples": 1.0, "loss": 0.0}


@pytest.mark.parametrize(
    ("message", "error", "words"),
    [
        (upload(float("nan"), 1), NonFiniteError, "dense holds NaN or infinity"),
        (upload(float("inf"), 1), NonFiniteError, "dense holds NaN or infinity"),
        (Message({"dense": torch.tensor(1e39, dtype=torch.float64)}, BEYOND), NotSummable, "dense holds 1e[+]39"),
        (Message({"dense": torch.ones(3)}, {"samples": 2.5}), NotSummable, "samples = 2.5"),
        (Message({"dense": torch.ones(3)}, {"samples": -1.0}), NotSummable, "samples = -1"),
        (Message({"dense": torch.ones(3)}, {"samples": float(2 * MOST_SAMPLES)}), NotSummable, "samples = "),
        (Message({"dense": torch.ones(3)}, {"samples": float("nan")}), NotSummable, "samples = nan"),
    ],
)
def test_a_message_that_cannot_be_averaged_is_refused_whole(
    message: Message, error: type[Exception], words: str
) -> None:
    state = MEAN.begin()
    MEAN.add(state, 0, upload(1.0, 1))
    with pytest.raises(error, match=words):
        MEAN.add(state, 1, message)
    uploads = MEAN.finish(state)
    assert uploads.average["dense"].tolist() == [1.0] * 3
    assert uploads.count == 1


def test_a_client_counts_once() -> None:
    with pytest.raises(NotSummable, match="client 3 has sent"):
        aggregated(MEAN, [(3, upload(1.0, 1)), (3, upload(2.0, 1))])
