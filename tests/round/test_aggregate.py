"""The server's average: weighted by samples, and the same whatever the order of arrival."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ternfed.quantize.ternary import NonFiniteError, Ternary
from ternfed.round.aggregate import Average
from ternfed.wire import Message


def message(value: float, samples: int, codes: list[int] | None = None) -> Message:
    ternary = Ternary(torch.tensor(codes or [1, 0, -1], dtype=torch.int8), torch.tensor(value), torch.tensor(2 * value))
    tensors = {"dense": torch.full((3,), value), "ternary": ternary, "counter": torch.tensor(samples)}
    return Message(tensors, {"samples": float(samples), "loss": value})


def test_weights_are_the_clients_samples() -> None:
    average = Average()
    average.add(message(1.0, 1))
    average.add(message(2.0, 3))
    uploads = average.uploads()
    assert uploads.average["dense"].tolist() == [1.75] * 3
    assert uploads.average["ternary"].tolist() == [1.75, 0.0, -3.5]
    assert uploads.average["counter"].item() == 2  # (1·1 + 3·3) // 4: counters stay whole numbers
    assert uploads.numbers["loss"] == 1.75
    assert uploads.count == 2


@given(st.lists(st.tuples(st.floats(0, 8, width=32), st.integers(1, 10_000)), min_size=2, max_size=8), st.randoms())
@settings(deadline=None)
def test_the_order_of_arrival_changes_no_bit(clients: list[tuple[float, int]], random: "st.Random") -> None:  # type: ignore[name-defined]
    def total(order: list[tuple[float, int]]) -> Average:
        average = Average()
        for value, samples in order:
            average.add(message(value, samples))
        return average

    shuffled = list(clients)
    random.shuffle(shuffled)
    first, second = total(clients).uploads().average, total(shuffled).uploads().average
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_is_as_near_the_exact_mean_as_float32_allows() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(50, generator=generator)
    average = Average()
    for value in values.tolist():
        average.add(Message({"w": torch.tensor([value])}, {"samples": 7.0}))
    exact = values.double().mean().float()
    # Each term is rounded to 2⁻³¹/7 of itself: under half a unit in the last place of a float32 near 0.1.
    assert average.uploads().average["w"].item() == pytest.approx(exact.item(), abs=2**-27)


def test_a_notice_counts_as_skipped_and_moves_nothing() -> None:
    average = Average()
    average.add(message(1.0, 5))
    average.add(Message({}, {"samples": 100.0}))
    uploads = average.uploads()
    assert (uploads.count, uploads.skipped) == (1, 1)
    assert uploads.average["dense"].tolist() == [1.0] * 3


def test_nothing_at_all_is_an_empty_average() -> None:
    assert Average().uploads().average == {}


def test_a_message_that_is_not_finite_is_refused_whole() -> None:
    average = Average()
    average.add(message(1.0, 1))
    with pytest.raises(NonFiniteError, match="dense"):
        average.add(message(float("nan"), 1))
    assert average.uploads().average["dense"].tolist() == [1.0] * 3
