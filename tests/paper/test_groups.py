"""Run folders become groups: what belongs together, what is left out, and what is refused."""

from __future__ import annotations

import json
import math
import shutil
import statistics
from pathlib import Path

import pytest

from run_folders import known_run, real_run, row
from ternfed.paper.groups import Group, collect
from ternfed.paper.rows import find_rows
from ternfed.runs.folder import RunError

BASE = ("data.dataset=mnist", "algorithm.name=fedavg", "federation.rounds=2")


def only(path: Path) -> Group:
    (group,) = collect([path]).groups
    return group


def test_runs_that_differ_in_their_seed_alone_are_one_group_with_mean_and_std(tmp_path: Path) -> None:
    last = (0.91, 0.93, 0.98)
    for seed, accuracy in enumerate(last):
        known_run(tmp_path / f"a/seed-{seed}", [*BASE, f"seed={seed}"], [{}, {"score": accuracy}])
    known_run(tmp_path / "another", [*BASE, "training.rate=0.5"], [{}, {}])
    groups = collect([tmp_path]).groups
    assert sorted(len(group.runs) for group in groups) == [1, 3]
    value = max(groups, key=lambda group: len(group.runs)).accuracy()
    assert value is not None
    assert value.text() == f"{100 * statistics.mean(last):.2f} ± {100 * statistics.stdev(last):.2f}" == "94.00 ± 3.61"


def test_one_seed_has_no_std(tmp_path: Path) -> None:
    value = only(known_run(tmp_path / "one", BASE, [{}, {"score": 0.5}])).accuracy()
    assert value is not None
    assert (value.std, value.text()) == (None, "50.00")


def test_runs_are_found_at_any_depth_and_a_folder_named_twice_counts_once(tmp_path: Path) -> None:
    known_run(tmp_path / "a/b/c/deep", BASE, [{}, {}])
    collected = collect([tmp_path, tmp_path / "a", tmp_path / "a/b/c/deep"])
    assert [len(group.runs) for group in collected.groups] == [1]
    assert collected.copies == 0


def test_a_copy_of_a_run_is_no_second_seed(tmp_path: Path) -> None:
    shutil.copytree(known_run(tmp_path / "a", BASE, [{}, {}]), tmp_path / "b")
    collected = collect([tmp_path])
    assert [len(group.runs) for group in collected.groups] == [1]
    assert collected.copies == 1


def test_a_run_belongs_to_the_row_that_has_its_name(tmp_path: Path) -> None:
    known_run(tmp_path / "a", [*BASE, "name=mine"], [{}, {}])
    known_run(tmp_path / "b", [*BASE, "name=other"], [{}, {}])
    rows = {"mine": row("mine", "iid", paper=90.0)}
    assert {group.name: group.row for group in collect([tmp_path], rows).groups} == {
        "mine": rows["mine"],
        "other": None,
    }


def test_numbers_come_from_the_finished_seeds(tmp_path: Path) -> None:
    known_run(tmp_path / "a", [*BASE, "seed=0"], [{}, {"score": 0.9}])
    known_run(tmp_path / "b", [*BASE, "seed=1"], [{"score": 0.1}])
    group = only(tmp_path)
    value = group.accuracy()
    assert value is not None
    assert (group.finished, len(group.runs), value.count, value.mean) == (True, 2, 1, pytest.approx(90))


def test_without_a_finished_seed_they_come_from_the_last_round_that_all_reached(tmp_path: Path) -> None:
    long = ["data.dataset=mnist", "algorithm.name=fedavg", "federation.rounds=9"]
    known_run(tmp_path / "a", [*long, "seed=0"], [{"score": 0.2}, {"score": 0.4}, {"score": 0.9}])
    known_run(tmp_path / "b", [*long, "seed=1"], [{"score": 0.2}, {"score": 0.6}])
    known_run(tmp_path / "c", [*long, "seed=2"], [])
    group = only(tmp_path)
    value = group.accuracy()
    assert value is not None
    assert (group.finished, group.length, value.count, value.mean) == (False, 2, 2, pytest.approx(50))
    assert group.exchanges() == 10


def test_a_run_that_has_not_begun_has_no_numbers(tmp_path: Path) -> None:
    group = only(known_run(tmp_path / "a", BASE, []))
    assert (group.length, group.accuracy(), group.strategy_one(), group.compression("up")) == (0, None, None, None)


def test_a_run_that_diverged_says_so(tmp_path: Path) -> None:
    value = only(known_run(tmp_path / "a", BASE, [{}, {"score": math.nan}])).accuracy()
    assert value is not None
    assert value.text() == "not finite"


def test_bits_and_strategies_are_weighted_by_uploads_and_rounds(tmp_path: Path) -> None:
    settings = ["data.dataset=mnist", "federation.rounds=2"]
    rounds = [
        {"bits_per_weight_up": 1.0, "strategy": "I", "clients": 5},
        {"bits_per_weight_up": 0.2, "strategy": "II", "clients": 5, "dropped": ("a", "b"), "skipped": 2},
    ]
    group = only(known_run(tmp_path / "a", settings, rounds))
    assert group.bits_up() == pytest.approx((5 * 1.0 + 1 * 0.2) / 6)
    assert group.strategy_one() == 0.5
    assert group.skipped() == pytest.approx(0.2)
    assert group.compression("down") == pytest.approx(5.0)


def test_folders_of_older_versions_lack_only_what_they_lack(tmp_path: Path) -> None:
    path = real_run(tmp_path / "old")
    for name in ("partition.json", "timing.jsonl", "environment.json", "summary.json"):
        (path / name).unlink()
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    text = "".join(json.dumps({k: v for k, v in line.items() if k != "layer_bits"}) + "\n" for line in lines)
    (path / "rounds.jsonl").write_text(text)
    group = only(path)
    assert group.finished
    assert (group.runs[0].partition, group.runs[0].environment, group.runs[0].rounds[0].layer_bits) == (None, (), None)
    assert group.accuracy() is not None


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run"):
        collect([tmp_path])


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such folder"):
        collect([tmp_path / "nowhere"])


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("rounds = 2", 'rounds = "<b>"', "federation.rounds"),
        ('dataset = "mnist"', "dataset = 7", "data.dataset"),
        ("participation = 0.1", "participation = true", "federation.participation"),
        ("seed = 0", "", "seed"),
        ("[training]", "[practice]", "training.epochs"),
    ],
)
def test_a_config_that_is_no_runs_is_refused_by_its_key(tmp_path: Path, old: str, new: str, key: str) -> None:
    file = known_run(tmp_path / "a", BASE, [{}, {}]) / "config.toml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(RunError, match=rf"config\.toml is not that of a run, its {key} is"):
        collect([tmp_path])


def test_elapsed_times_are_read_with_the_machine_and_the_papers(tmp_path: Path) -> None:
    values = {"model": "cnn", "device": "cuda", "repetitions": 3, "seconds": {"fedavg": 2.0, "tfedavg": 3.0}}
    (tmp_path / "elapsed-cnn").mkdir()
    file = tmp_path / "elapsed-cnn" / "elapsed.json"
    file.write_text(json.dumps({**values, "environment": {"device": "NVIDIA H200"}}))
    (one,) = collect([tmp_path], find_rows()).elapsed
    assert one.paper == {"fedavg": 7.92, "cmfl": 12.48, "tfedavg": 8.97}
    assert (one.model, one.machine, one.repetitions, one.seconds["tfedavg"]) == ("cnn", "NVIDIA H200", 3, 3.0)


def test_damaged_times_are_refused(tmp_path: Path) -> None:
    (tmp_path / "elapsed.json").write_text('{"model": "cnn"}')
    with pytest.raises(RunError, match="is damaged"):
        collect([tmp_path])
