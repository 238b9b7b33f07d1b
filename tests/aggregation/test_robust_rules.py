"""Trimmed mean and median: coordinate by coordinate, the same whatever the order of arrival, and hard to lie to."""

import random
import statistics

import pytest
import torch
from aggregation_samples import WHOLE, aggregated, rounds_of_uploads, same_bits, upload
from hypothesis import given, settings
from hypothesis import strategies as st

from ternfed.aggregation import median, trimmed_mean
from ternfed.aggregation.aggregation import NotSummable
from ternfed.quantize.ternary import NonFiniteError, Ternary
from ternfed.wire import Message

MEDIAN = median.aggregation()
RULES = [MEDIAN, trimmed_mean.aggregation(0.2), trimmed_mean.aggregation(0.0)]


def of(*values: float, dtype: torch.dtype = torch.float32) -> list[tuple[int, Message]]:
    """One upload per value."""
    return list(
        enumerate(Message({"w": torch.tensor([v], dtype=dtype)}, {"samples": 1.0, "loss": float(v)}) for v in values)
    )


@pytest.mark.parametrize("rule", RULES)
@given(messages=rounds_of_uploads(), shuffler=st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=50)
def test_the_order_of_arrival_changes_no_bit(rule, messages: list[Message], shuffler: random.Random) -> None:  # type: ignore[no-untyped-def]
    arrivals = list(enumerate(messages))
    shuffled = list(arrivals)
    shuffler.shuffle(shuffled)
    assert same_bits(aggregated(rule, arrivals), aggregated(rule, shuffled))


@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=9))
@settings(deadline=None)
def test_the_median_is_that_of_the_textbook(values: list[float]) -> None:
    uploads = aggregated(MEDIAN, of(*values))
    assert uploads.average["w"].item() == torch.tensor(statistics.median(values), dtype=torch.float64).float().item()
    assert uploads.numbers["loss"] == pytest.approx(statistics.median(values), abs=1e-30)


@given(rounds_of_uploads())
@settings(deadline=None, max_examples=50)
def test_the_median_of_whole_numbers_is_rounded_down_in_their_own_dtype(messages: list[Message]) -> None:
    average = aggregated(MEDIAN, enumerate(messages)).average
    for dtype in WHOLE:
        rows = [[int(n) for n in m.tensors[str(dtype)].tolist()] for m in messages]  # type: ignore[union-attr]
        columns = list(zip(*rows, strict=True))
        expected = [(statistics.median_low(c) + statistics.median_high(c)) // 2 for c in columns]
        assert average[str(dtype)].dtype is dtype
        assert average[str(dtype)].tolist() == expected


@pytest.mark.parametrize(
    ("trim", "values", "expected"),
    [
        (0.2, [1, 2, 3, 4, 1000], 3.0),
        (0.2, [1, 2, 3, 1000], 251.5),  # a fifth of four is less than one: nothing is cut
        (0.25, [-1000, 1, 3, 1000], 2.0),
        (0.4, [1, 2, 3, 4, 1000], 3.0),
        (0.0, [1, 2, 3, 6], 3.0),
        (0.29, [*range(100)], 49.5),
    ],
)
def test_a_share_is_cut_off_at_each_end(trim: float, values: list[float], expected: float) -> None:
    uploads = aggregated(trimmed_mean.aggregation(trim), of(*values))
    assert uploads.average["w"].item() == pytest.approx(expected)
    assert uploads.numbers["loss"] == pytest.approx(expected)


def test_what_is_cut_off_of_a_hundred_is_not_decided_by_the_last_bit_of_a_product() -> None:
    assert 0.29 * 100 < 29
    values = [0.0] * 71 + [1.0] * 29
    assert aggregated(trimmed_mean.aggregation(0.29), of(*values)).average["w"].item() == 0.0


def test_samples_are_not_weights() -> None:
    uploads = aggregated(MEDIAN, [(0, upload(1.0, 1)), (1, upload(2.0, 1)), (2, upload(9.0, 10_000_000))])
    assert uploads.average["dense"].tolist() == [2.0] * 3
    assert uploads.average["ternary"].tolist() == [2.0, 0.0, -4.0]


def test_of_ternary_layers_each_weight_is_taken_by_itself() -> None:
    messages = [upload(1.0, 1, codes) for codes in ([1, 1, 0], [1, 0, 0], [-1, 0, 1])]
    assert aggregated(MEDIAN, enumerate(messages)).average["ternary"].tolist() == [1.0, 0.0, 0.0]


def test_tensors_larger_than_what_is_sorted_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(5, 4, 25, generator=torch.Generator().manual_seed(0))
    uploads = list(enumerate(Message({"w": value}, {"samples": 1.0}) for value in values))
    whole = aggregated(MEDIAN, uploads)
    monkeypatch.setattr(trimmed_mean, "AT_ONCE", 7)
    assert same_bits(whole, aggregated(MEDIAN, uploads))
    assert torch.equal(whole.average["w"], values.median(dim=0).values)


@pytest.mark.parametrize("rule", RULES)
def test_notices_and_refused_messages_leave_no_trace(rule) -> None:  # type: ignore[no-untyped-def]
    state = rule.begin()
    rule.add(state, 0, upload(1.0, 1))
    rule.add(state, 1, Message({}, {"samples": 1.0}))
    with pytest.raises(NonFiniteError, match="dense"):
        rule.add(state, 2, upload(float("nan"), 1))
    with pytest.raises(NotSummable, match="client 0"):
        rule.add(state, 0, upload(3.0, 1))
    uploads = rule.finish(state)
    assert (uploads.count, uploads.skipped) == (1, 1)
    assert uploads.average["dense"].tolist() == [1.0] * 3
    assert aggregated(rule, []).average == {}


@pytest.mark.parametrize("trim", [0.5, -0.1, float("nan")])
def test_an_impossible_share_is_refused(trim: float) -> None:
    with pytest.raises(ValueError, match="trim = "):
        trimmed_mean.aggregation(trim)


def test_uploads_are_held_as_they_came() -> None:
    """Trits stay trits until the end of the round: four times less memory than their dense values."""
    state = MEDIAN.begin()
    MEDIAN.add(state, 0, upload(1.0, 1))
    assert isinstance(state.messages[0].tensors["ternary"], Ternary)
