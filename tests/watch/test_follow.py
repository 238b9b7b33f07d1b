"""Run folders followed while they grow: the state of each, what is new, how long it will take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from run_folders import known_run
from ternfed.experiment.experiment import Experiment
from ternfed.runs.folder import RunFolder, being_written
from ternfed.runs.live import LiveFile, Moment, read_moment
from ternfed.runs.records import Round
from ternfed.runs.several import differing, names_of, run_folders
from ternfed.watch.follow import Board, Follower
from ternfed.watch.metrics import metrics_text
from ternfed.watch.state import Told

SETTINGS = ["data.dataset=digits", "federation.clients=5", "federation.rounds=4"]
EXPERIMENT = Experiment.from_toml("", SETTINGS)


def record(number: int, seconds: float = 2.0, **values: object) -> Round:
    usual: dict[str, object] = {
        "score": 0.5, "loss": 1.0, "train_loss": None, "validation": None, "bytes_up": 1000, "bytes_down": 2000,
        "bytes_up_fp32": 10_000, "bytes_down_fp32": 10_000, "bits_per_weight_up": None, "clients": 5,
        "seconds": {"train": seconds},
    }  # fmt: skip
    return Round(round=number, **{**usual, **values})  # type: ignore[arg-type]


class TestTheStateOfARun:
    def test_follows_it_from_its_folder_to_its_summary(self, tmp_path: Path) -> None:
        path = tmp_path / "run"
        follower = Follower(path)
        assert follower.look() is None
        with RunFolder.create(path, EXPERIMENT) as folder:
            assert _state(follower) == "starting"
            LiveFile(path).tell(Moment(1, "waiting", 0.0, {0: "away"}))
            assert _state(follower) == "waiting"
            LiveFile(path).tell(Moment(1, "train", 0.0, {0: "training"}))
            folder.append(record(1))
            assert _state(follower) == "running"
        assert _state(follower) == "stopped"
        with RunFolder.resume(path).folder as folder:
            for number in (1, 2, 3, 4):
                folder.append(record(number))
            folder.finish({"warnings": ["it is no good"]})
        seen = follower.look()
        assert seen is not None
        assert (seen.state, seen.warnings, seen.live) == ("finished", ("it is no good",), None)
        assert read_moment(path) is None

    def test_a_killed_run_is_stopped_whatever_its_live_file_says(self, tmp_path: Path) -> None:
        known_run(tmp_path / "run", SETTINGS, [{}])
        LiveFile(tmp_path / "run").tell(Moment(2, "train", 0.0))
        seen = Follower(tmp_path / "run").look()
        assert seen is not None
        assert (seen.state, seen.live) == ("stopped", None)

    def test_looking_at_the_lock_does_not_keep_a_run_from_starting(self, tmp_path: Path) -> None:
        assert not being_written(tmp_path / "nowhere")
        with RunFolder.create(tmp_path / "run", EXPERIMENT):
            assert being_written(tmp_path / "run")
        assert not being_written(tmp_path / "run")

    def test_a_folder_that_anybody_made_breaks_nothing(self, tmp_path: Path) -> None:
        path = known_run(tmp_path / "run", SETTINGS, [{}, {}])
        for name, text in (("live.json", "[1]"), ("summary.json", "7"), ("timing.jsonl", '{"round": []}\nno\n')):
            (path / name).write_text(text)
        (path / "network").mkdir()
        (path / "network/bytes.jsonl").write_text('{"clients": {"x": 1, "1": {"payload_up": 5}}}\nno\n')
        seen = Follower(path).look()
        assert seen is not None
        assert len(seen.rounds) == 2
        (path / "config.toml").write_text("no toml [")
        assert Follower(path).look() is None


class TestWhatIsNew:
    def test_is_sent_once(self, tmp_path: Path) -> None:
        path, told = tmp_path / "run", Told()
        follower = Follower(path)
        with RunFolder.create(path, EXPERIMENT) as folder:
            folder.append(record(1))
            first = told.news(_look(follower), 0.0)
            assert first is not None
            assert [row[0] for row in first["runs"][0]["rounds"]] == [1]
            assert told.news(_look(follower), 0.0) is None
            folder.append(record(2))
            folder.append(record(3))
            news = told.news(_look(follower), 0.0)
        assert news is not None
        assert news["runs"][0]["from"] == 1
        assert [row[0] for row in news["runs"][0]["rounds"]] == [2, 3]

    def test_a_run_that_begins_anew_is_sent_from_its_first_round(self, tmp_path: Path) -> None:
        path, told = tmp_path / "run", Told()
        follower = Follower(path)
        known_run(path, SETTINGS, [{}, {}])
        told.news(_look(follower), 0.0)
        with RunFolder.create(path, EXPERIMENT, overwrite=True) as folder:
            folder.append(record(1, score=0.9))
        news = told.news(_look(follower), 0.0)
        assert news is not None
        assert (news["runs"][0]["from"], [row[1] for row in news["runs"][0]["rounds"]]) == (0, [0.9])

    def test_half_a_line_waits_for_its_other_half(self, tmp_path: Path) -> None:
        path = known_run(tmp_path / "run", SETTINGS, [{}])
        follower, line = Follower(path), record(2).to_line()
        with (path / "rounds.jsonl").open("ab") as stream:
            stream.write(line[:30])
            stream.flush()
            assert len(_look(follower)[0].rounds) == 1
            stream.write(line[30:])
        assert len(_look(follower)[0].rounds) == 2

    def test_is_json_even_where_training_diverged(self, tmp_path: Path) -> None:
        path = known_run(tmp_path / "run", SETTINGS, [{"score": float("nan"), "loss": float("inf")}])
        news = Told().news(_look(Follower(path)), 0.0)
        assert json.loads(json.dumps(news, allow_nan=False))["runs"][0]["rounds"][0][1] is None


def test_who_looks_late_sees_how_long_every_round_took(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunFolder.create(path, EXPERIMENT) as folder:
        for number in range(1, 61):
            folder.append(record(number, seconds=2.0))
    (seen,) = _look(Follower(path))
    assert [sum(each.seconds.values()) for each in seen.rounds] == [2.0] * 60


def test_the_time_left_is_that_of_the_recent_rounds_less_what_this_one_took(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunFolder.create(path, EXPERIMENT) as folder:
        folder.append(record(1, seconds=2.0))
        LiveFile(path).tell(Moment(2, "train", 100.0))
        (seen,) = _look(Follower(path))
        assert seen.seconds_left(100.5) == pytest.approx(3 * 2.0 - 0.5)
        assert seen.seconds_left(500.0) == pytest.approx(2 * 2.0)


class TestSeveralRuns:
    def test_are_found_at_any_depth_and_later_too(self, tmp_path: Path) -> None:
        known_run(tmp_path / "a", SETTINGS, [{}])
        board = Board([tmp_path])
        board.find()
        assert [seen.folder.name for seen in board.look()] == ["a"]
        known_run(tmp_path / "deep/er/b", SETTINGS, [{}])
        board.find()
        assert [seen.folder.name for seen in board.look()] == ["a", "b"]
        assert len(list(run_folders(tmp_path))) == 2

    def test_have_names_as_short_as_tells_them_apart(self) -> None:
        assert names_of([Path("x/a"), Path("x/b")]) == ["a", "b"]
        assert names_of([Path("x/seed-0"), Path("y/seed-0")]) == ["x/seed-0", "y/seed-0"]
        assert names_of([]) == []

    def test_differ_in_settings_and_an_algorithms_own_count_only_beside_its_like(self) -> None:
        tables = [Experiment.from_toml("", [f"algorithm.name={name}"]).to_table() for name in ("tfedavg", "fedavg")]
        assert differing(tables) == ["algorithm.name"]
        tables.append(Experiment.from_toml("", ["algorithm.name=tfedavg", "algorithm.factor=0.6", "seed=1"]).to_table())
        assert differing(tables) == ["algorithm.name", "seed", "algorithm.factor"]
        assert differing(tables[:1]) == []


def test_prometheus_gets_every_number_with_its_run(tmp_path: Path) -> None:
    path = tmp_path / 'a"b\\c'
    with RunFolder.create(path, EXPERIMENT) as folder:
        folder.append(record(1, dropped=("client 1: was not there",)))
        LiveFile(path).tell(Moment(2, "train", 0.0, {0: "training", 1: "away"}, refused=3))
        text = metrics_text(_look(Follower(path)))
    run = r'run="a\"b\\c"'
    for line in (
        f"ternfed_rounds_total{{{run}}} 1.0",
        f'ternfed_bytes_total{{{run},direction="up"}} 1000.0',
        f'ternfed_phase_seconds_total{{{run},phase="train"}} 2.0',
        f'ternfed_clients{{{run},state="training"}} 1.0',
        f'ternfed_clients{{{run},state="away"}} 1.0',
        f"ternfed_refused_total{{{run}}} 3.0",
        f"ternfed_dropped_uploads_total{{{run}}} 1.0",
    ):
        assert line in text.splitlines()


def test_prometheus_own_reader_understands_it(tmp_path: Path) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    known_run(tmp_path / "run", SETTINGS, [{"changed": 0.1}])
    families = {
        found.name: found
        for found in parser.text_string_to_metric_families(metrics_text(_look(Follower(tmp_path / "run"))))
    }
    assert families["ternfed_rounds"].type == "counter"
    assert families["ternfed_flipped_share"].samples[0].value == 0.1


def _look(follower: Follower) -> list:  # type: ignore[type-arg]
    seen = follower.look()
    return [] if seen is None else [seen]


def _state(follower: Follower) -> str:
    (seen,) = _look(follower)
    return str(seen.state)
