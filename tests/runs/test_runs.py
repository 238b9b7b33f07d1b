"""A run folder stands a kill at any moment: what is resumed ends with the same bytes as what was never interrupted."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import resource
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

import ternfed.runs.environment
from ternfed.experiment.experiment import Experiment
from ternfed.runs.environment import environment
from ternfed.runs.folder import (
    FILES,
    MODEL,
    Resumed,
    Round,
    RunError,
    RunFolder,
    best_round,
    leaving_nothing,
    read_run,
    summarise,
)

LASTING = ("config.toml", "rounds.jsonl", "state.safetensors", "last.safetensors", "best.safetensors")
"""The same bytes for the same experiment."""

EXPERIMENT = Experiment.from_table({"federation": {"rounds": 12}, "algorithm": {"name": "fedavg"}})


VALIDATION = (0.3, 0.2, 0.6, 0.7, 0.1, 0.4, 0.9, 0.8, 0.5, 0.0)


def record(number: int, **values: Any) -> Round:
    """A made-up round; its validation accuracy rises and falls, so that the best model is not always the last."""
    plain: dict[str, Any] = {
        "score": number / 100, "loss": 1 / number, "train_loss": None, "validation": VALIDATION[(number - 1) % 10],
        "bytes_up": 100 + number, "bytes_down": 200, "bytes_up_fp32": 1000, "bytes_down_fp32": 2000,
        "bits_per_weight_up": 0.5, "clients": 3, "seconds": {"train": random.random()},
    }  # fmt: skip
    return Round(round=number, **{**plain, **values})


def play(path: Path, experiment: Experiment = EXPERIMENT, resumed: Resumed | None = None) -> None:
    """A stand-in for an engine: each state follows from the tensors and facts of the one before."""
    folder = resumed.folder if resumed else RunFolder.create(path, experiment)
    rounds = list(resumed.rounds) if resumed else []
    tensors: Mapping[str, Tensor] = {f"{MODEL}weight": torch.zeros(3, 5), "client/1/residual": torch.zeros(4)}
    facts: Mapping[str, Any] = {"sum": 0}
    if resumed and resumed.saved:
        assert resumed.saved.round == len(rounds)
        tensors, facts = resumed.saved.tensors, resumed.saved.facts
    with folder:
        folder.note_partition([[3, 0], [0, 4]], "made up")
        for number in range(len(rounds) + 1, experiment.federation.rounds + 1):
            generator = torch.Generator().manual_seed(number)
            tensors = {
                name: tensor * 0.9 + torch.rand(tensor.shape, generator=generator) for name, tensor in tensors.items()
            }
            facts = {"sum": facts["sum"] + number}
            rounds.append(record(number))
            folder.append(rounds[-1])
            folder.save_checkpoint(rounds[-1], tensors, facts, is_best=best_round(rounds) is rounds[-1])
        folder.finish(summarise(rounds, experiment))


def content(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in LASTING}


@pytest.fixture(autouse=True, scope="module")
def one_revision() -> Iterator[Callable[[], str | None]]:
    """Asking git three times a folder would be most of the time of these tests."""
    real = ternfed.runs.environment._revision
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ternfed.runs.environment._revision", lambda: "abc")
        yield real


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run never interrupted."""
    path = tmp_path_factory.mktemp("whole") / "run"
    play(path)
    return path


# The folder


def test_a_finished_run_has_all_its_files_and_nothing_else(whole: Path) -> None:
    assert sorted(entry.name for entry in whole.iterdir()) == sorted(FILES)


def test_a_run_tells_which_classes_each_client_held(whole: Path) -> None:
    assert read_run(whole).partition == [[3, 0], [0, 4]]


def test_records_of_before_bits_were_told_by_layer_can_be_read(whole: Path) -> None:
    line = (whole / "rounds.jsonl").read_bytes().splitlines(keepends=True)[0]
    older = json.loads(line)
    del older["layer_bits"]
    assert Round.from_line(json.dumps(older).encode()) == Round.from_line(line)


def test_two_runs_of_one_experiment_are_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    play(tmp_path / "again")
    assert content(tmp_path / "again") == content(whole)


def test_the_configuration_is_the_whole_experiment(whole: Path) -> None:
    assert Experiment.from_file(whole / "config.toml") == EXPERIMENT


def test_the_models_have_the_plain_names_and_the_best_is_the_one_that_judged_best(whole: Path) -> None:
    last, best, state = (load_file(whole / f"{name}.safetensors") for name in ("last", "best", "state"))
    assert list(last) == list(best) == ["weight"]
    assert set(state) == {"server/weights/weight", "client/1/residual"}
    assert torch.equal(last["weight"], state["server/weights/weight"])
    assert not torch.equal(best["weight"], last["weight"])
    assert json.loads((whole / "summary.json").read_bytes())["best_round"] == 7


def test_a_folder_can_be_looked_at_while_its_run_goes_on(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", EXPERIMENT) as folder:
        assert read_run(tmp_path / "run").rounds == []
        folder.append(record(1, seconds={"train": 2.5}))
        with (tmp_path / "run" / "rounds.jsonl").open("ab") as stream:
            stream.write(b'{"round": 2, "accu')
        run = read_run(tmp_path / "run")
    assert run.rounds == [record(1, seconds={"train": 2.5})]
    assert run.settings == EXPERIMENT.to_table()
    assert run.summary is None
    assert run.environment[0]["torch"] == torch.__version__


def test_looking_at_a_run_needs_no_module_of_its_user(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    (path / "config.toml").write_text('[algorithm]\nname = "gone_module:algorithm"\n')
    assert read_run(path).settings["algorithm"] == {"name": "gone_module:algorithm"}
    assert len(read_run(path).rounds) == 12


def test_the_environment_tells_versions_and_no_places_or_names(
    one_revision: Callable[[], str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ternfed.runs.environment._revision", one_revision)
    found = environment()
    assert found["torch"] == torch.__version__
    assert found["device"] == "cpu"
    assert found["threads"] >= 1
    text = json.dumps(found)
    assert str(Path.home()) not in text
    assert str(Path(__file__).parents[2]) not in text
    assert socket.gethostname() not in text


# Before training


def test_a_folder_that_holds_a_run_is_refused_with_the_way_to_resume(whole: Path) -> None:
    before = content(whole)
    with pytest.raises(RunError, match=r"run: is not empty; resume its run by --resume, or name another folder$"):
        RunFolder.create(whole, EXPERIMENT)
    assert content(whole) == before


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunError, match=r"is not empty; name another folder$"):
        RunFolder.create(tmp_path, EXPERIMENT)


def test_overwriting_deletes_the_files_of_the_run_and_no_others(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    (path / "notes.txt").write_text("mine")
    RunFolder.create(path, EXPERIMENT, overwrite=True).close()
    assert {entry.name for entry in path.iterdir()} == {"config.toml", "environment.json", "notes.txt"}


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(RunError, match=r": is no folder to write a run to \(.*\); name another$"):
            RunFolder.create(path, EXPERIMENT)


def test_a_disk_without_room_for_the_checkpoints_is_refused(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(RunError, match=r"its disk has .* MB free and the run needs about .* MB; make room or name"):
        RunFolder.create(tmp_path / "run", EXPERIMENT, checkpoint_bytes=free // 4 + 1)


def with_small_files(path: Path, limit: int) -> None:
    """A disk that fills up: no file may grow beyond the limit."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        play(path)
    except RunError as error:
        (path.parent / "error.txt").write_text(str(error)[:limit])
        os._exit(3)


@pytest.mark.parametrize(("limit", "name"), [(300, "config.toml"), (900, "rounds.jsonl")])
def test_a_disk_that_fills_up_is_one_clear_sentence_and_the_run_goes_on_later(
    whole: Path, tmp_path: Path, limit: int, name: str
) -> None:
    process = multiprocessing.get_context("fork").Process(target=with_small_files, args=(tmp_path / "run", limit))
    process.start()
    process.join(30)
    assert process.exitcode == 3
    sentence = (tmp_path / "error.txt").read_text()
    assert f"run: {name} cannot be written (File too large); see to it and go on by --resume" in sentence
    if name == "rounds.jsonl":
        play(tmp_path / "run", resumed=RunFolder.resume(tmp_path / "run"))
        assert content(tmp_path / "run") == content(whole)


def test_two_processes_cannot_write_to_one_folder(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", EXPERIMENT):
        for attempt in (
            lambda: RunFolder.resume(tmp_path / "run"),
            lambda: RunFolder.create(tmp_path / "run", EXPERIMENT, overwrite=True),
        ):
            with pytest.raises(RunError, match="another process is writing its run there"):
                attempt()
    RunFolder.resume(tmp_path / "run").folder.close()


# Checkpoints

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip


def test_tensors_of_every_kind_come_back_as_they_were(tmp_path: Path) -> None:
    shared = torch.arange(12.0).view(3, 4)
    tensors = {
        **{f"server/memory/{dtype}": torch.tensor([[0, 1], [2, 3]]).to(dtype) for dtype in DTYPES},
        "number": torch.tensor(7, dtype=torch.int64),
        "empty": torch.zeros(0, 4),
        "another empty": torch.zeros(0),
        "turned": shared.T,
        "row": shared[1],
        f"{MODEL}shared": shared,
        "the same again": shared,
    }
    facts = {"holders": [1, 2], "strategy": "I", "ratio": 0.1, "nothing": None, "Ω": "ß"}
    with RunFolder.create(tmp_path / "run", EXPERIMENT) as folder:
        folder.append(record(1))
        folder.save_checkpoint(record(1), tensors, facts, is_best=True)
    resumed = RunFolder.resume(tmp_path / "run")
    resumed.folder.close()
    assert resumed.saved is not None
    assert resumed.saved.facts == facts
    assert set(resumed.saved.tensors) == set(tensors)
    for name, tensor in tensors.items():
        assert resumed.saved.tensors[name].dtype == tensor.dtype
        assert torch.equal(resumed.saved.tensors[name], tensor), name


def test_a_checkpoint_keeps_the_order_of_its_tensors_and_its_models_do_not_depend_on_it(tmp_path: Path) -> None:
    tensors = {f"{MODEL}{k * 7 % 20}": torch.full((3,), float(k)) for k in range(20)}
    for name, parts in (("a", tensors), ("b", dict(reversed(tensors.items())))):
        with RunFolder.create(tmp_path / name, EXPERIMENT) as folder:
            folder.save_checkpoint(record(1), parts, {"z": 1, "a": 2}, is_best=True)
        resumed = RunFolder.resume(tmp_path / name)
        resumed.folder.close()
        assert resumed.saved is not None
        assert list(resumed.saved.tensors) == list(parts)
    for file in ("last.safetensors", "best.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


# Killed


class Killed(BaseException):
    pass


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Stops the process, as far as files go, right before or after the n-th open, fsync or rename."""
    countdown = [-1]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            countdown[0] -= 1
            if countdown[0] == 0:
                raise Killed
            result = real(*arguments, **named)
            countdown[0] -= 1
            if countdown[0] == 0:
                raise Killed
            return result

        return step

    monkeypatch.setattr(Path, "open", counted(Path.open))
    monkeypatch.setattr(Path, "replace", counted(Path.replace))
    monkeypatch.setattr(os, "fsync", counted(os.fsync))

    def set_countdown(steps: int) -> None:
        countdown[0] = steps

    return set_countdown


def test_killed_at_every_single_step_a_run_resumes_to_the_same_bytes(
    tmp_path: Path, kill_at: Callable[[int], None]
) -> None:
    short = EXPERIMENT.with_settings(["federation.rounds=3"])
    play(tmp_path / "whole", short)
    steps = 0
    while True:
        steps += 1
        path = tmp_path / f"killed-{steps}"
        kill_at(steps)
        try:
            play(path, short)
        except Killed:
            kill_at(-1)
        else:
            break
        if not (path / "config.toml").exists():  # nothing had begun: the same command again
            play(path, short)
        else:
            resumed = RunFolder.resume(path)
            if resumed.rounds:
                assert round_of(path / "last.safetensors") == len(resumed.rounds)
                assert round_of(path / "best.safetensors") == best_round(resumed.rounds).round
            play(path, short, resumed)
        assert content(path) == content(tmp_path / "whole"), steps
        assert not list(path.glob("*.part"))
    assert steps > 60  # three rounds of at least four files, each opened, most synced, some renamed


def round_of(file: Path) -> int:
    with safe_open(file, framework="pt") as stream:
        return int(json.loads(stream.metadata()["ternfed"])["round"])


def test_killed_while_resuming_a_run_still_resumes_to_the_same_bytes(
    tmp_path: Path, kill_at: Callable[[int], None]
) -> None:
    for rounds in (6, 7, 8):
        play(tmp_path / str(rounds), EXPERIMENT.with_settings([f"federation.rounds={rounds}"]))
    # The worst that a kill right after the state of a round leaves: no record of it, older models.
    worst = tmp_path / "worst"
    shutil.copytree(tmp_path / "6", worst)
    shutil.copy(tmp_path / "8" / "config.toml", worst)
    shutil.copy(tmp_path / "7" / "state.safetensors", worst)
    finished = False
    for steps in range(1, 100):
        path = tmp_path / f"killed-{steps}"
        shutil.copytree(worst, path)
        kill_at(steps)
        try:
            RunFolder.resume(path).folder.close()
            finished = True
        except Killed:
            pass
        kill_at(-1)
        resumed = RunFolder.resume(path)
        play(path, resumed.experiment, resumed)
        assert content(path) == content(tmp_path / "8"), steps
        if finished:
            break
    assert 15 < steps < 99  # the record, the last and the best model are written anew


def test_a_record_is_made_whole_wherever_it_was_cut_off(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    data = (whole / "rounds.jsonl").read_bytes()
    last_line = len(data.splitlines(keepends=True)[-1])
    for cut in (*range(0, last_line, 4), last_line - 1, last_line):
        (path / "rounds.jsonl").write_bytes(data[: len(data) - cut])
        resumed = RunFolder.resume(path)
        resumed.folder.close()
        assert len(resumed.rounds) == 12
        assert content(path) == content(whole)


def test_records_after_the_checkpoint_are_cut_off(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    for extra in (record(13).to_line(), record(13).to_line() + b'{"round": 14', b"\0" * 100, b"\n\n"):
        with (path / "rounds.jsonl").open("ab") as stream:
            stream.write(extra)
        RunFolder.resume(path).folder.close()
        assert content(path) == content(whole)


def test_a_run_killed_before_its_first_checkpoint_starts_with_its_first_round(whole: Path, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", EXPERIMENT)
    folder.append(record(1))
    folder.close()
    resumed = RunFolder.resume(tmp_path / "run")
    assert (resumed.rounds, resumed.saved) == ([], None)
    play(tmp_path / "run", resumed=resumed)
    assert content(tmp_path / "run") == content(whole)


def test_seconds_come_back_with_the_rounds_that_have_them(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    data = (path / "timing.jsonl").read_bytes()
    (path / "timing.jsonl").write_bytes(data[:-3])
    resumed = RunFolder.resume(path)
    resumed.folder.close()
    assert [bool(each.seconds) for each in resumed.rounds] == [True] * 11 + [False]


def go_on(path: Path) -> None:
    if (path / "config.toml").exists():
        play(path, LONG, RunFolder.resume(path))
    else:
        play(path, LONG)


LONG = EXPERIMENT.with_settings(["federation.rounds=50"])


@pytest.mark.slow
def test_a_process_killed_again_and_again_ends_with_the_same_bytes(tmp_path: Path) -> None:
    play(tmp_path / "whole", LONG)
    path, source = tmp_path / "killed", random.Random(0)
    kills = 0
    while not (path / "summary.json").exists():
        process = multiprocessing.get_context("fork").Process(target=go_on, args=(path,))
        process.start()
        # Each gets a little more time than the one before: the first are killed on any machine, the last one ends.
        process.join(source.uniform(0.0, 0.02) * (1 + kills))
        process.kill()
        process.join()
        kills += process.exitcode == -9
        assert process.exitcode in (-9, 0)
    assert content(path) == content(tmp_path / "whole")
    assert kills >= 3


def test_a_damaged_state_is_one_clear_sentence(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    for data in (
        b"",
        b"\0" * 500,
        (whole / "state.safetensors").read_bytes()[:-1],
        (whole / "last.safetensors").read_bytes(),
    ):
        (path / "state.safetensors").write_bytes(data)
        with pytest.raises(RunError, match=r"state\.safetensors: is damaged \(.*\); start the run again"):
            RunFolder.resume(path)


def test_records_lost_in_the_middle_are_one_clear_sentence(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    lines = (whole / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    damaged = b"".join([*lines[:4], b"???\n", *lines[5:]])
    (path / "rounds.jsonl").write_bytes(damaged)
    with pytest.raises(
        RunError, match=r"rounds\.jsonl can be read up to round 4 only, but the state is that of round 12"
    ):
        RunFolder.resume(path)
    assert (path / "rounds.jsonl").read_bytes() == damaged


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(
            RunError, match=r": holds no run, config\.toml cannot be read \(No such file or directory\)$"
        ):
            RunFolder.resume(path)
    (tmp_path / "config.toml").write_text("[")
    with pytest.raises(RunError, match=r": config\.toml is damaged \("):
        read_run(tmp_path)


# Resumed as another experiment


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("training.rate=0.5", r"^training\.rate = 0\.5: the run in .* has 0\.1, and is resumed only with that$"),
        ("seed=1", r"^seed = 1: the run in .* has 0, "),
        ("data.alpha=0.5", r'^data\.partition = "dirichlet": the run in .* has "iid", '),
        ("algorithm.dense=bfloat16", r'^algorithm\.dense = "bfloat16": the run in .* has "float32", '),
        ("federation.rounds=11", r"^federation\.rounds = 11: the run in .* is past that, after round 12$"),
    ],
)
def test_another_experiment_is_refused_with_the_first_setting_that_differs(
    whole: Path, setting: str, sentence: str
) -> None:
    before = content(whole)
    with pytest.raises(RunError, match=sentence):
        RunFolder.resume(whole, EXPERIMENT.with_settings([setting]))
    assert content(whole) == before


def test_a_finished_run_can_be_made_longer(tmp_path: Path, whole: Path) -> None:
    path, longer = tmp_path / "run", EXPERIMENT.with_settings(["federation.rounds=15"])
    shutil.copytree(whole, path)
    resumed = RunFolder.resume(path, longer)
    assert not (path / "summary.json").exists()
    play(path, longer, resumed)
    play(tmp_path / "at once", longer)
    assert content(path) == content(tmp_path / "at once")


def test_a_run_from_before_a_setting_existed_is_read_with_what_it_did(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", EXPERIMENT).close()
    now = read_run(tmp_path / "run").settings
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace('aggregate = "own"\n', ""))
    assert "aggregate" not in config.read_text()
    assert read_run(tmp_path / "run").settings == now


def test_a_run_from_before_a_setting_existed_goes_on_as_it_began(tmp_path: Path) -> None:
    """STC's broadcasts had steps of 16 bits before that could be set; the default is another."""
    began = Experiment.from_toml("", ["algorithm.name=stc", "algorithm.finest_bits=16"])
    RunFolder.create(tmp_path / "run", began).close()
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("finest_bits = 16\n", ""))
    assert "finest_bits" not in config.read_text()
    resumed = RunFolder.resume(tmp_path / "run")
    resumed.folder.close()
    assert resumed.experiment.algorithm == began.algorithm
    with pytest.raises(RunError, match="finest_bits"):
        RunFolder.resume(tmp_path / "run", Experiment.from_toml("", ["algorithm.name=stc"]))


def test_a_run_from_before_its_network_had_an_option_is_read_with_its_default(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", Experiment.from_toml("", ["model.name=resnet18"])).close()
    now = read_run(tmp_path / "run").settings
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace('norm = "batch"\n', ""))
    assert "norm =" not in config.read_text()
    assert read_run(tmp_path / "run").settings == now


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (["training.schedule=cosine"], "the rates of its cosine schedule depend"),
        (["algorithm.name=tfedavg", "algorithm.full_at=[0.5]"], r"its broadcasts by algorithm\.full_at depend"),
    ],
)
def test_a_run_whose_rounds_depend_on_their_number_cannot_be_made_longer(
    tmp_path: Path, settings: list[str], what: str
) -> None:
    bound = EXPERIMENT.with_settings(settings)
    RunFolder.create(tmp_path / "run", bound).close()
    with pytest.raises(RunError, match=rf"^federation\.rounds = 15: .* has 12, on which {what}"):
        RunFolder.resume(tmp_path / "run", bound.with_settings(["federation.rounds=15"]))


def test_a_resumption_elsewhere_is_noted_and_one_in_the_same_place_is_not(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    RunFolder.resume(path).folder.close()
    assert len(read_run(path).environment) == 1
    monkeypatch.setattr("ternfed.runs.environment._processor", lambda: "Another CPU")
    RunFolder.resume(path).folder.close()
    assert [entry["processor"] == "Another CPU" for entry in read_run(path).environment] == [False, True]


# Records and summaries

numbers = st.floats(allow_nan=False, allow_infinity=False)
records = st.builds(
    Round,
    round=st.integers(1, 10**6), score=st.floats(0, 1), loss=numbers, train_loss=st.none() | numbers,
    validation=st.none() | st.floats(0, 1), bytes_up=st.integers(0, 2**60), bytes_down=st.integers(0, 2**60),
    bytes_up_fp32=st.integers(0, 2**60), bytes_down_fp32=st.integers(0, 2**60),
    bits_per_weight_up=st.none() | st.floats(0, 40), clients=st.integers(0, 10**6), skipped=st.integers(0, 10**6),
    dropped=st.lists(st.text(), max_size=3).map(tuple), strategy=st.none() | st.sampled_from(["I", "II"]),
    changed=st.none() | st.floats(0, 1), zeros=st.none() | st.floats(0, 1), seconds=st.just({}),
    metric=st.sampled_from(["accuracy", "mse", "Kaffee ☕"]), higher_is_better=st.booleans(), percent=st.booleans(),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(one=records)
def test_a_record_comes_back_from_its_line_as_it_was(one: Round) -> None:
    line = one.to_line()
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert Round.from_line(line) == one


def test_the_metric_names_the_score_and_accuracy_needs_no_more_words() -> None:
    accuracy = json.loads(record(1, score=0.5).to_line())
    assert list(accuracy)[:3] == ["round", "accuracy", "loss"]
    assert accuracy["accuracy"] == 0.5
    assert not {"score", "metric", "higher_is_better", "percent"} & set(accuracy)
    error = json.loads(record(1, score=0.5, metric="mse", higher_is_better=False, percent=False).to_line())
    assert list(error)[:3] == ["round", "mse", "loss"]
    assert (error["mse"], error["higher_is_better"], error["percent"]) == (0.5, False, False)


@pytest.mark.parametrize(
    "change",
    [
        {"accuracy": None, "mse": 0.5},  # neither way is said to be better
        {"mse": 0.5},
        {"accuracy": None},
        {"accuracy": None, "seconds": 0.5, "higher_is_better": True, "percent": True},
        {"accuracy": None, "metric": "mse", "higher_is_better": True, "percent": True},
    ],
)
def test_a_line_without_exactly_one_score_is_no_record(change: dict[str, object]) -> None:
    values = {**json.loads(record(1).to_line()), **change}
    kept = {key: value for key, value in values.items() if key not in change or change[key] is not None}
    with pytest.raises(ValueError, match="not the record of a round"):
        Round.from_line(json.dumps(kept).encode())


def test_the_best_round_is_that_of_the_best_score_whichever_way_the_metric_goes() -> None:
    rounds = [record(number, validation=value) for number, value in enumerate((0.3, 0.1, 0.2, math.nan), start=1)]
    assert best_round(rounds).round == 1
    assert best_round([replace(one, metric="mse", higher_is_better=False) for one in rounds]).round == 2


def test_a_number_that_is_not_finite_is_null_in_its_line() -> None:
    one = Round.from_line(record(1, loss=math.inf, train_loss=math.nan).to_line())
    assert math.isnan(one.loss)
    assert one.train_loss is None


def test_the_seconds_are_not_in_the_line() -> None:
    assert record(1, seconds={"train": 1.0}).to_line() == record(1, seconds={"train": 2.0}).to_line()


def test_a_summary_counts_bytes_over_all_rounds_and_takes_the_best_by_validation() -> None:
    rounds = [
        record(
            1, score=0.5, validation=0.6, bits_per_weight_up=1.0, strategy="I", changed=0.25, seconds={"a": 1, "b": 2.0}
        ),
        record(2, score=0.4, validation=0.7, strategy="II", clients=4, skipped=2, dropped=("x",), seconds={"a": 3.5}),
        record(3, score=0.45, validation=0.7, bits_per_weight_up=None, strategy="I", changed=0.0, seconds={}),
    ]
    found = summarise(rounds, EXPERIMENT, "runs/first")
    assert found.pop("settings") == EXPERIMENT.to_table()
    assert found == {
        "accuracy": 0.45, "best_accuracy": 0.4, "best_round": 2, "bytes_up": 306, "bytes_down": 600,
        "compression_up": 3000 / 306, "compression_down": 10.0, "bits_per_weight_up": (3 * 1.0 + 1 * 0.5) / 4,
        "strategy_one": 2, "rounds": 3, "seconds": 6.5, "run": "runs/first", "warnings": [],
        "flips_first": 0.25, "flips_mean": 0.125, "flips_last": 0.0,
        "metric": "accuracy", "higher_is_better": True,
    }  # fmt: skip


def test_without_validation_data_the_best_round_is_the_last() -> None:
    rounds = [record(1, validation=None, score=0.9), record(2, validation=None, score=0.1)]
    assert best_round(rounds) is rounds[1]
    found = summarise(rounds, EXPERIMENT)
    assert (found["best_accuracy"], found["run"], found["strategy_one"]) == (0.1, "digits-fedavg", None)


def test_a_summary_is_json_even_when_training_diverged_or_nothing_travelled() -> None:
    rounds = [record(1, score=math.nan, bytes_up=0, bytes_down=0, bits_per_weight_up=None)]
    found = json.loads(json.dumps(summarise(rounds, EXPERIMENT), allow_nan=False))
    assert (found["accuracy"], found["compression_up"], found["bits_per_weight_up"]) == (None, None, None)


class TestWarningsAtTheEnd:
    COUNTS = ((60, 40), (40, 20))
    """Two clients, two classes: always naming the first is right for 62.5% of the samples."""

    def warnings(self, *rounds: Round, counts: object = COUNTS) -> list[str]:
        found = summarise(rounds, EXPERIMENT, class_counts=counts)["warnings"]  # type: ignore[arg-type]
        assert isinstance(found, list)
        return found

    def test_a_run_that_ends_at_chance_is_told(self) -> None:
        (sentence,) = self.warnings(record(1, score=0.9), record(2, score=0.63))
        assert "ends at chance: 63.0%" in sentence
        assert "62.5%" in sentence
        assert self.warnings(record(1, score=0.7)) == []
        assert self.warnings(record(1, score=0.1), counts=None) == []
        assert self.warnings(record(1, score=0.1, metric="mse", higher_is_better=False, percent=False)) == []

    def test_a_model_without_finite_numbers_is_told(self) -> None:
        (sentence,) = self.warnings(record(1, score=0.9, loss=math.nan))
        assert "training diverged" in sentence

    def test_clients_that_diverged_are_counted(self) -> None:
        reasons = ("client 2: a.weight holds NaN or infinity and cannot be averaged", "client 3: did not answer")
        (sentence,) = self.warnings(record(1, score=0.9, clients=10, dropped=reasons))
        assert sentence.startswith("1 of 10 uploads did not count because training diverged")

    def test_many_uploads_that_did_not_count_are_told_and_few_are_not(self) -> None:
        late = "client 3: did not answer within 600 s"
        assert self.warnings(record(1, score=0.9, clients=10, dropped=(late,))) == []
        (sentence,) = self.warnings(record(1, score=0.9, clients=10, dropped=(late,) * 3))
        assert sentence == f"3 of 10 uploads did not count (the first: {late})"


def test_a_start_that_fails_leaves_no_folder_behind_and_one_that_succeeded_does(tmp_path: Path) -> None:
    new = tmp_path / "runs" / "new"

    def start(path: Path, *, well: bool) -> None:
        with leaving_nothing(path) as started:
            path.mkdir(parents=True, exist_ok=True)
            if well:
                started()
            raise RuntimeError

    for well in (False, True):
        with pytest.raises(RuntimeError):
            start(new, well=well)
        assert new.exists() == well
    assert tmp_path.exists()
    with pytest.raises(RuntimeError):
        start(tmp_path, well=False)  # it was there before
    assert new.exists()
