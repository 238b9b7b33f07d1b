"""The models of many lists at once are those that each list would choose by itself."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ternfed.wire.models_many import best_of_each
from ternfed.wire.numbers import histogram, weights

LISTS = st.lists(st.lists(st.integers(-130, 130), max_size=40), min_size=1, max_size=6)


@given(LISTS, st.sampled_from([1, 1, 130, 20_000]))
@settings(max_examples=150, deadline=None)
def test_every_list_gets_the_model_that_it_would_choose(lists: list[list[int]], times: int) -> None:
    """`times` makes counts that need two or three bytes."""
    arrays = [np.repeat(np.array(numbers, np.int32), times) for numbers in lists]
    reach = max((abs(number) for numbers in lists for number in numbers), default=0)
    table = np.stack([np.bincount(numbers + reach, minlength=2 * reach + 1) for numbers in arrays])
    for numbers, ready in zip(arrays, best_of_each(table), strict=True):
        model = histogram([numbers]).best()
        assert (ready.fine, ready.low, ready.coarse) == (model.fine, model.low, model.is_coarse)
        assert ready.written == model.write()
        if len(model.counts) > 1:
            assert np.array_equal(ready.weights, weights(model.counts))
