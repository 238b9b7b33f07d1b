"""Where Python looks for garbage while a round is played."""

from __future__ import annotations

import gc

import pytest

from ternfed.round.heap import settled


def test_what_is_there_is_left_out_meanwhile_and_looked_at_again_afterwards() -> None:
    assert gc.get_freeze_count() == 0
    with settled():
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_also_where_a_round_fails() -> None:
    with pytest.raises(KeyError), settled():
        raise KeyError
    assert gc.get_freeze_count() == 0


def test_what_the_caller_left_out_stays_out() -> None:
    gc.freeze()
    try:
        with settled(), settled():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
