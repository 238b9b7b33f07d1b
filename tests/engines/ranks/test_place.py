"""Which rank a process is, which device it has, and which clients go to which rank."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternfed.engines.ranks.place import Place, device_of, place_of, shares

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def test_torchruns_variables_tell_the_place() -> None:
    assert place_of(TORCHRUN) == Place(1, 3, 1)
    assert place_of({}) is None


def test_one_rank_alone_is_an_ordinary_process() -> None:
    assert place_of({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"RANK": "3"}, "RANK = 3: 0 to 2 is needed"),
        ({"RANK": "first"}, "whole numbers are needed"),
        ({"MASTER_PORT": None}, "MASTER_PORT: is needed beside RANK"),
    ],
)
def test_variables_that_cannot_be_are_refused(changed: dict[str, str | None], sentence: str) -> None:
    variables = {key: value for key, value in {**TORCHRUN, **changed}.items() if value is not None}
    with pytest.raises(ValueError, match=sentence):
        place_of(variables)


@pytest.mark.parametrize(
    ("device", "local", "gpus", "own"),
    [
        ("cpu", 1, 0, "cpu"),
        ("cuda", 1, 2, "cuda:1"),
        ("cuda", 3, 2, "cuda:1"),
        ("cuda", 0, 1, "cuda"),
        ("cuda:1", 0, 2, "cuda:1"),
    ],
)
def test_each_rank_of_a_machine_has_a_gpu_of_its_own_unless_one_is_named(
    device: str, local: int, gpus: int, own: str
) -> None:
    assert device_of(device, local, gpus) == own


@given(st.lists(st.integers(1, 500), min_size=1, max_size=30), st.integers(1, 6), st.data())
def test_every_client_has_one_rank_and_no_rank_has_much_more_to_do_than_another(
    samples: list[int], ranks: int, data: st.DataObject
) -> None:
    clients = data.draw(st.permutations(range(len(samples))))
    own = shares(clients, samples, ranks, {})
    assert sorted(client for share in own for client in share) == sorted(clients)
    assert all(share == [client for client in clients if client in share] for share in own)
    loads = [sum(samples[client] for client in share) for share in own]
    assert max(loads) - min(loads) <= max(samples)


def test_the_longest_are_placed_first() -> None:
    assert shares([0, 1, 2, 3], [10, 20, 30, 40], 2, {}) == [[0, 3], [1, 2]]


def test_a_client_whose_memory_lies_somewhere_stays_there_and_the_others_make_up_for_it() -> None:
    assert shares([0, 1, 2, 3], [10, 20, 30, 40], 2, {2: 1, 3: 1, 9: 0}) == [[0, 1], [2, 3]]
