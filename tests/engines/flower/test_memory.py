"""A client's lasting state: on its own disk, and a client that starts anew goes on as if it had never stopped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from harness import open_digits, same_bits, small

from ternfed.data.sets import load
from ternfed.engines import simulate
from ternfed.engines.flower.client_round import ClientSetup, RoundRequest, open_site, read_experiment, work
from ternfed.engines.flower.envelope import WrongRound
from ternfed.engines.flower.memory import Kept, Store
from ternfed.experiment.experiment import ExperimentError
from ternfed.round.exchange import Broadcasts, collect
from ternfed.round.federation import Federation, RoundOutcome, conclude
from ternfed.round.state import State
from ternfed.round.traffic import Clock, Traffic
from ternfed.wire import MissingReference

RUN = "0123456789abcdef"


def play_round(
    federation: Federation, state: State, folder: Path, again: bool = False, late: tuple[int, ...] = ()
) -> State:
    """A round in which every client is a new process: nothing but bytes and its folder reaches it.

    The uploads of those who are late do not count.
    """
    algorithm, number = federation.algorithm, state.round + 1
    broadcasts = Broadcasts(algorithm, state.server, number, state.broadcasts, state.holders)
    arrived = algorithm.aggregate.begin()
    for index in federation.chosen(number):
        (data, broadcast), request = broadcasts.for_client(index), RoundRequest(number, broadcasts.held_by(index))
        for _ in range(2 if again else 1):
            site = open_site(federation.experiment, ClientSetup(index, len(federation.parts)), load("digits"))
            upload = work(site, Store(folder / str(index)), RUN, RoundRequest.of(request.group), data)
        if index not in late:
            message = collect(algorithm, upload, broadcast)
            algorithm.aggregate.add(arrived, index, algorithm.meaning(message, federation.site(index).client(number)))
    outcome = RoundOutcome(broadcasts, tuple(index for index in federation.chosen(number) if index not in late))
    return conclude(federation, state, algorithm.aggregate.finish(arrived), Traffic(), Clock(), outcome)[0]


@pytest.mark.parametrize(
    "settings",
    [
        ("algorithm.name=stc",),
        ("algorithm.name=cmfl",),
        ("algorithm.keep_latents=true",),
        ("algorithm.name=fedavg",),
        ("algorithm.name=eden",),
        ('model.trainable=["!linear1"]',),
    ],
    ids=["residual", "last update", "latents", "nothing", "rotated", "a part"],
)
@pytest.mark.parametrize("again", [False, True], ids=["", "with every round played twice"])
def test_clients_that_start_anew_each_round_end_with_the_bits_of_the_simulator(
    tmp_path: Path, settings: tuple[str, ...], again: bool
) -> None:
    federation = open_digits(small(3, 4, *settings))
    state = federation.open()
    for expected, _ in simulate.play(federation):
        state = play_round(federation, state, tmp_path, again)
        assert same_bits(state.server.weights, expected)


def test_a_client_whose_frozen_weights_are_not_the_servers_is_told_so() -> None:
    server, setup = small(3, 4, 'model.trainable=["!linear1"]'), ClientSetup(0, 3)
    digest = server.make_network(load("digits")).digest
    assert digest is not None
    assert open_site(server, setup, load("digits"), digest).network.digest == digest
    with pytest.raises(ExperimentError, match=r"^model\.trainable: the frozen weights of this client \(\w{8}\) are"):
        open_site(server.with_settings(["seed=5"]), setup, load("digits"), digest)


@pytest.mark.parametrize("name", ["tfedavg", "stc", "topk", "signsgd_ef", "fedpaq", "eden", "fedbat", "fedpm"])
def test_clients_that_sit_rounds_out_are_told_by_what_they_still_hold(tmp_path: Path, name: str) -> None:
    federation = open_digits(small(5, 6, f"algorithm.name={name}", "federation.participation=0.4"))
    state, ages = federation.open(), set()
    for expected, _ in simulate.play(federation):
        ages |= {state.round + 1 - state.holders.get(client, state.round + 1) for client in expected.took_part}
        state = play_round(federation, state, tmp_path)
        assert same_bits(state.server.weights, expected)
        assert (state.holders, state.broadcasts) == (expected.holders, expected.broadcasts)
    assert max(ages) > 1


@pytest.mark.parametrize("name", ["tfedavg", "stc"])
def test_a_client_whose_upload_came_too_late_still_has_what_the_server_takes_it_to_hold(
    tmp_path: Path, name: str
) -> None:
    federation = open_digits(small(2, 4, f"algorithm.name={name}"))
    state = play_round(federation, federation.open(), tmp_path)
    state = play_round(federation, state, tmp_path, late=(0,))
    assert Store(tmp_path / "0").load(RUN, 3) is not None
    broadcasts = Broadcasts(federation.algorithm, state.server, 3, state.broadcasts, state.holders)
    assert [broadcasts.held_by(client) for client in (0, 1)] == [1, 2]
    state = play_round(federation, state, tmp_path)
    assert state.took_part == (0, 1)


def test_a_client_without_the_broadcast_it_needs_says_so_and_changes_nothing(tmp_path: Path) -> None:
    federation = open_digits(small(2, 3))
    state = play_round(federation, federation.open(), tmp_path)
    broadcasts = Broadcasts(federation.algorithm, state.server, 2, state.broadcasts, state.holders)
    data, request = broadcasts.for_client(0).data, RoundRequest(2, broadcasts.held_by(0))
    site, empty = federation.site(0), Store(tmp_path / "new")
    with pytest.raises(MissingReference, match="round 1; nothing is held"):
        work(site, empty, RUN, request, data)
    with pytest.raises(MissingReference):
        work(site, Store(tmp_path / "0"), "another", request, data)
    assert not (tmp_path / "new").exists()
    with pytest.raises(MissingReference, match="round 2; that of round 1 is held"):
        work(site, Store(tmp_path / "0"), RUN, RoundRequest(3, 2), data)


def test_a_broadcast_of_another_round_is_refused(tmp_path: Path) -> None:
    federation = open_digits(small(2, 3))
    data = Broadcasts(federation.algorithm, federation.open().server, 1).given(None).data
    with pytest.raises(WrongRound):
        work(federation.site(0), Store(tmp_path), RUN, RoundRequest(2), data)


def test_the_disk_holds_two_rounds_of_one_run(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(1, 6):
        store.save(RUN, Kept(number, {"m": torch.full((3,), float(number))}, None), start=number - 1)
    assert sorted(file.name for file in tmp_path.rglob("*.safetensors")) == ["4.safetensors", "5.safetensors"]
    store.save("another", Kept(1, {}, {"c": torch.zeros(2, dtype=torch.int8)}), start=0)
    assert [file.parent.name for file in tmp_path.rglob("*.safetensors")] == ["another"]
    kept = store.load("another", 2)
    assert kept is not None
    assert kept.lent is not None
    assert kept.lent["c"].dtype == torch.int8


def test_a_file_that_was_cut_short_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(RUN, Kept(1, {"m": torch.ones(3)}, None), start=0)
    store.save(RUN, Kept(2, {"m": torch.ones(3)}, None), start=1)
    file = tmp_path / RUN / "2.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    kept = store.load(RUN, 3)
    assert kept is not None
    assert kept.round == 1


@pytest.mark.parametrize(
    "group",
    [
        "",
        "x",
        "-1",
        "1/2",
        "held",
        "٣",
        "1" * 50,
        "7/held",
        "7/held-",
        "7/held--3",
        "7/held-3/held-2",
        "7/held-7",
        "/held-1",
    ],
)
def test_a_group_that_names_no_round_is_refused(group: str) -> None:
    with pytest.raises(WrongRound):
        RoundRequest.of(group)


@pytest.mark.parametrize(("request_", "group"), [(RoundRequest(7), "7"), (RoundRequest(7, 3), "7/held-3")])
def test_a_group_names_the_round_and_the_broadcast_it_was_coded_given(request_: RoundRequest, group: str) -> None:
    assert request_.group == group
    assert RoundRequest.of(group) == request_


@pytest.mark.parametrize(
    "setting",
    ['[data]\ndataset="{}"', '[model]\nname="{}"', '[algorithm]\nname="{}"', '[federation]\naggregate="{}"'],
)
def test_a_server_cannot_make_a_client_import_what_it_was_not_told_to(setting: str) -> None:
    with pytest.raises(ExperimentError, match="--allow antigravity"):
        read_experiment(setting.format("antigravity:fly"))
    assert "antigravity" not in sys.modules


def test_a_client_of_another_division_of_the_data_is_refused() -> None:
    with pytest.raises(ExperimentError, match="--data-partition 0/3"):
        open_site(small(2, 1), ClientSetup(0, 3), load("digits"))


def test_a_client_does_not_load_what_only_reports_and_data_sets_need() -> None:
    heavy = {"matplotlib", "sklearn", "datasets", "pandas", "pyarrow", "scipy", "onnx", "typer", "flwr"}
    code = f"import sys, ternfed.engines.flower.client; print(*({heavy!r} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []
