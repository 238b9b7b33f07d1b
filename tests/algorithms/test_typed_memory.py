"""What algorithms remember: typed values, which become named tensors and come back."""

from dataclasses import dataclass, field, fields

import pytest
import torch
from torch import Tensor

from ternfed.algorithms import cmfl, fedopt, fedpaq, stc, tfedavg
from ternfed.algorithms.algorithm import Nothing, Weights
from ternfed.algorithms.memory import memory_of, tensors_of


@dataclass(frozen=True, eq=False)
class Both:
    """A memory with a group and a single tensor."""

    group: Weights = field(default_factory=dict)
    one: Tensor | None = None


def test_a_group_has_its_names_under_its_field_and_a_single_tensor_is_its_field() -> None:
    memory = Both({"a.weight": torch.ones(2), "b/c": torch.zeros(1)}, torch.tensor(3.0))
    named = tensors_of(memory)
    assert set(named) == {"group/a.weight", "group/b/c", "one"}
    again = memory_of(Both, named)
    assert isinstance(again, Both)
    assert again.one is memory.one
    assert again.group == memory.group


@pytest.mark.parametrize(
    "kind",
    [Nothing, Both, tfedavg.ServerMemory, tfedavg.ClientMemory, stc.ServerMemory, stc.ClientMemory,
     cmfl.ClientMemory, fedopt.ServerMemory, fedpaq.ServerMemory],
)  # fmt: skip
def test_every_memory_begins_empty_and_an_empty_one_needs_no_tensor(kind: type) -> None:
    assert tensors_of(kind()) == {}
    again = memory_of(kind, {})
    assert all(getattr(again, each.name) in (None, {}) for each in fields(kind))


@pytest.mark.parametrize("name", ["other", "group", "one/x", "other/x", ""])
def test_a_tensor_without_a_place_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"Both has no place for {name}"):
        memory_of(Both, {name: torch.ones(1)})


def test_memories_are_compared_as_objects() -> None:
    """`==` of tensors is a tensor, so that of two values which hold some must not look inside."""
    assert Both(one=torch.ones(2)) != Both(one=torch.ones(2))
