"""A state in its file: nothing twice, and every bit comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ternfed.data.sets import load
from ternfed.experiment.experiment import Experiment
from ternfed.files import load_tensors, save_tensors, write_tensors
from ternfed.quantize.grid import LARGEST, Grid
from ternfed.quantize.ternary import Ternary
from ternfed.round.federation import open_federation
from ternfed.round.state import pack
from ternfed.runs.state_file import MODEL, SENT, once, whole
from ternfed.wire.forms import take_apart


def state_of(codes: list[int], exponent: int) -> dict[str, torch.Tensor]:
    """A model of one layer of trits and one on a grid, as a checkpoint has it."""
    ternary = Ternary(torch.tensor([1, 0, -1, 1], dtype=torch.int8), torch.tensor(0.25), torch.tensor(0.5))
    grid = Grid(torch.tensor(codes, dtype=torch.int32), torch.tensor(exponent, dtype=torch.int16))
    sent = {"trits": ternary, "grid": grid}
    return {
        f"{MODEL}plain": torch.randn(3),
        f"{MODEL}trits": ternary.dense(),
        f"{MODEL}grid": grid.dense(),
        "server/memory/latents/trits": torch.randn(4),
        **{f"{SENT}{name}": tensor for name, tensor in take_apart(sent).items()},
    }


@given(codes=st.lists(st.integers(-LARGEST, LARGEST), min_size=1, max_size=5), exponent=st.integers(-20, 4))
def test_what_follows_from_the_rest_is_left_out_and_comes_back_bit_for_bit(codes: list[int], exponent: int) -> None:
    state = state_of(codes, exponent)
    kept = once(state)
    assert {f"{MODEL}trits", f"{MODEL}grid"}.isdisjoint(kept)
    again = whole(kept, list(state))
    assert again.keys() == state.keys()
    assert all(again[name].dtype == t.dtype and torch.equal(again[name], t) for name, t in state.items())


def test_codes_take_as_few_bytes_as_they_need() -> None:
    widths = [
        once(state_of([most], 0))[f"{SENT}grid/codes/grid"].element_size() for most in (127, -129, 40_000, LARGEST)
    ]
    assert widths == [1, 2, 4, 4]


def test_a_model_that_is_not_what_was_sent_is_kept() -> None:
    state = state_of([1], 0)
    state[f"{MODEL}trits"] = state[f"{MODEL}trits"] + 1
    assert torch.equal(once(state)[f"{MODEL}trits"], state[f"{MODEL}trits"])


@pytest.mark.parametrize("name", ["tfedavg", "eden", "fedpaq", "stc"])
def test_a_checkpoint_has_no_more_than_the_broadcast_and_what_does_not_follow(name: str) -> None:
    experiment = Experiment.from_table({"algorithm": {"name": name}, "model": {"hidden": [64, 64]}})
    federation = open_federation(experiment, load("digits"))
    tensors = pack(federation.open())[0]
    kept = once(tensors)
    weights = federation.fp32_bytes
    assert sum(t.nbytes for t in tensors.values()) > 2.1 * weights
    assert sum(t.nbytes for t in kept.values()) < 1.6 * weights  # an exact model, and codes of a byte each


def test_a_file_of_tensors_is_the_bytes_that_are_made_in_memory(tmp_path: Path) -> None:
    tensors = {"b": torch.arange(5), "a": torch.randn(2, 3), "shares": torch.zeros(4)}
    tensors["too"] = tensors["shares"]
    write_tensors(tmp_path / "file", tensors, {"round": 3})
    assert (tmp_path / "file").read_bytes() == save_tensors(tensors, {"round": 3})
    assert load_tensors(tmp_path / "file")[1] == {"round": 3}
    (tmp_path / "other").touch()
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "other").stat().st_mode
    with pytest.raises(OSError, match="No such file or directory"):
        write_tensors(tmp_path / "nowhere" / "file", tensors, {})
