"""A sweep: a file becomes trials, trials become runs, and the best is chosen on validation data alone."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from rich.console import Console
from typer.testing import CliRunner

from ternfed.cli import terminal
from ternfed.cli.app import app
from ternfed.engines import simulate
from ternfed.experiment.experiment import Experiment, ExperimentError
from ternfed.named_function import NotAllowed
from ternfed.runs.folder import read_run
from ternfed.sweep.grid import HOLD_OUT, read_sweep
from ternfed.sweep.standing import best, judged, standing_of
from ternfed.sweep.trial import DataSets

BASE = """
seed = 7

[data]
dataset = "digits"

[model]
hidden = [8, 8]

[federation]
clients = 4
rounds = 4

[training]
epochs = 1

[algorithm]
name = "fedavg"
"""
RATES = f"""{BASE}
[sweep]
seeds = 2
"training.rate" = [0.001, 0.3]
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("TERNFED_DATA", "TERNFED_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)
    Path("rates.toml").write_text(RATES)
    return tmp_path


def written(sweep: str, base: str = BASE) -> Path:
    Path("own.toml").write_text(f"{base}\n[sweep]\n{sweep}\n")
    return Path("own.toml")


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["sweep", *arguments])


def said(result: Result) -> str:
    return " ".join(result.stderr.split())


class TestAFile:
    def test_is_every_combination_with_every_seed(self) -> None:
        sweep = read_sweep(
            written('seeds = 3\n"training.rate" = [0.1, 0.3]\n"algorithm.name" = ["fedavg", "tfedavg"]'), Path("out")
        )
        names = [point.name for point in sweep.points]
        assert names == [
            "rate-0.1_algorithm-fedavg",
            "rate-0.1_algorithm-tfedavg",
            "rate-0.3_algorithm-fedavg",
            "rate-0.3_algorithm-tfedavg",
        ]
        assert [trial.experiment().seed for trial in sweep.points[0].trials] == [7, 8, 9]
        assert sweep.points[3].trials[1].folder == Path("out/rate-0.3_algorithm-tfedavg/seed-8")
        own = sweep.points[3].trials[0].experiment()
        assert (own.training.rate, own.algorithm.name, own.name) == (0.3, "tfedavg", "rate-0.3_algorithm-tfedavg")
        assert [trial.name for trial in sweep.trials][:5] == [
            *(f"{name}/seed-7" for name in names),
            f"{names[0]}/seed-8",
        ]

    @pytest.mark.parametrize("text", ['"training.rate" = [0.1]', "training.rate = [0.1]", "training = {rate = [0.1]}"])
    def test_may_write_a_setting_with_a_dot_or_as_a_table(self, text: str) -> None:
        assert read_sweep(written(text), Path("out")).keys == ("training.rate",)

    def test_holds_out_a_tenth_to_judge_on_unless_it_says_how_much(self) -> None:
        judged_on = read_sweep(Path("rates.toml"), Path("out")).trials[0].experiment().data.hold_out
        assert judged_on == HOLD_OUT
        more = BASE.replace("[model]", "hold_out = 0.2\n\n[model]")
        own = read_sweep(written('"training.rate" = [0.1]', more), Path("out"))
        assert own.trials[0].experiment().data.hold_out == 0.2
        assert own.hold_out == Experiment.from_toml("").data.hold_out

    def test_gives_values_that_make_no_folders_name_numbers(self) -> None:
        sweep = read_sweep(written('"model.ternary" = [["0.*"], ["0.+"]]'), Path("out"))
        assert [point.name for point in sweep.points] == ["point-1", "point-2"]

    def test_is_an_experiment_for_run_too(self) -> None:
        assert Experiment.from_file("rates.toml", ["training.rate=0.3"]).training.rate == 0.3

    @pytest.mark.parametrize(
        ("sweep", "sentence"),
        [
            ("seeds = 2", "sweep: has no setting to try"),
            ("seeds = 0\ntraining.rate = [0.1]", "sweep.seeds = 0: a whole number of at least 1"),
            ("seed = 3\ntraining.rate = [0.1]", "sweep.seed = 3: sweep.seeds says how many"),
            ("sedes = 3\ntraining.rate = [0.1]", "sweep.sedes = 3: no such setting; did you mean sweep.seeds?"),
            ("training.rate = 0.1", r"sweep.training.rate = 0.1: a list of values to try"),
            ("training.rate = []", r"sweep.training.rate = \[\]: a list of values to try"),
            ("training.rate = [0.1, 0.1]", "has a value twice"),
            ("training.rat = [0.1]", "training.rat = 0.1: no such setting; did you mean training.rate?"),
            ('training.rate = ["fast"]', 'training.rate = "fast": a finite number is allowed'),
            ("data.hold_out = [0.1, 0.2]", "all points are judged on the same data"),
            ("seeds = 9000\ntraining.rate = [0.1, 0.2]", "more than 10000 trials"),
        ],
    )
    def test_that_cannot_be_is_one_sentence(self, sweep: str, sentence: str) -> None:
        with pytest.raises(ExperimentError, match=sentence):
            read_sweep(written(sweep), Path("out"))

    def test_without_data_to_judge_on_is_refused(self) -> None:
        nothing = BASE.replace("[model]", "hold_out = 0\n\n[model]")
        with pytest.raises(ExperimentError, match="judged on held-out data, never on test data"):
            read_sweep(written('"training.rate" = [0.1]', nothing), Path("out"))

    def test_names_no_code_that_was_not_allowed(self) -> None:
        with pytest.raises(NotAllowed, match="give --allow own_model"):
            read_sweep(written('"model.name" = ["mlp", "own_model:net"]'), Path("out"))


class TestTheCommand:
    def test_runs_every_trial_and_names_the_best_by_validation(self) -> None:
        result = call("rates.toml", "--json")
        assert result.exit_code == 0, result.stderr
        facts: dict[str, Any] = json.loads(result.stdout)
        assert facts["best"] == "rate-0.3"
        by_name = {point["name"]: point for point in facts["points"]}
        assert [point["seeds_done"] for point in facts["points"]] == [2, 2]
        runs = [read_run(Path("sweeps/rates/rate-0.3", f"seed-{seed}")) for seed in (7, 8)]
        assert by_name["rate-0.3"]["validations"] == [judged(run.rounds) for run in runs]
        assert json.loads(Path("sweeps/rates/sweep.json").read_text())["points"] == facts["points"]
        assert not list(Path("sweeps").rglob("*.safetensors"))
        # The command that it ends with is the best point, with the samples that were held out to choose.
        words = shlex.split(facts["run"])
        assert words[:3] == ["ternfed", "run", "rates.toml"]
        own = Experiment.from_file(words[2], words[4::2])
        assert (own.training.rate, own.data.hold_out) == (0.3, Experiment.from_toml("").data.hold_out)

    def test_the_command_that_it_ends_with_allows_what_was_allowed(self) -> None:
        Path("own_net.py").write_text("from ternfed.models import mlp\n\ndef net():\n    return mlp(inputs=64)\n")
        Path("own.toml").write_text(RATES.replace("hidden = [8, 8]", 'name = "own_net:net"'))
        result = call("own.toml", "--seeds", "1", "--allow", "own_net", "--json")
        assert result.exit_code == 0, result.stderr
        words = shlex.split(json.loads(result.stdout)["run"])
        assert words[:5] == ["ternfed", "run", "own.toml", "--allow", "own_net"]

    def test_computes_nothing_again_and_resumes_what_was_interrupted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        played: list[tuple[str, int]] = []
        play_round = simulate.play_round

        def interrupted(federation: Any, state: Any, *others: Any) -> Any:
            played.append((federation.experiment.name, state.round + 1))
            if len(played) == 7:
                raise KeyboardInterrupt
            return play_round(federation, state, *others)

        monkeypatch.setattr(simulate, "play_round", interrupted)
        monkeypatch.setattr(simulate, "CHECKPOINT_SECONDS", -1.0)
        result = call("rates.toml", "--seeds", "1")
        assert result.exit_code == 1
        assert "interrupted; the same command resumes where it stopped" in said(result)
        listed = json.loads(call("rates.toml", "--seeds", "1", "--list", "--json").stdout)
        assert [(each["seeds_done"], each["seeds_begun"]) for each in listed["points"]] == [(1, 0), (0, 1)]
        assert call("rates.toml", "--seeds", "1").exit_code == 0
        assert played[7:] == [("rate-0.3", 3), ("rate-0.3", 4)]
        before = len(played)
        assert call("rates.toml", "--seeds", "1").exit_code == 0
        assert len(played) == before

    def test_says_what_it_would_do_and_does_nothing(self) -> None:
        result = call("rates.toml", "--dry-run")
        assert result.exit_code == 0
        assert "2 points, 4 trials, of which 4 would run into sweeps/rates" in " ".join(result.stdout.split())
        assert not Path("sweeps").exists()

    def test_lists_points_before_anything_has_run(self) -> None:
        facts = json.loads(call("rates.toml", "--list", "--json").stdout)
        assert facts["best"] is None
        assert not Path("sweeps").exists()

    def test_a_trial_that_fails_stops_no_other(self) -> None:
        result = call(str(written("training.rate = [1e30, 0.3]")), "--json")
        assert result.exit_code == 1
        facts = json.loads(result.stdout)
        assert facts["best"] == "rate-0.3"
        assert list(facts["failed"]) == ["rate-1e30/seed-7"]
        assert "training diverged on every client of round 1" in said(result)

    def test_a_folder_of_other_settings_is_refused(self) -> None:
        assert call("rates.toml", "--seeds", "1", "--set", "federation.rounds=1").exit_code == 0
        result = call("rates.toml", "--seeds", "1")
        assert result.exit_code == 2
        assert "was made with federation.rounds = 1, and 4 is wanted" in said(result)

    def test_jobs_give_the_same_bytes_as_one_after_another(self) -> None:
        for jobs, out in (("1", "one"), ("2", "two")):
            short = ("--set", "federation.rounds=2", "--seeds", "1")
            assert call("rates.toml", *short, "--jobs", jobs, "--out", out).exit_code == 0
        for name in ("rate-0.001", "rate-0.3"):
            one, two = (Path(out, name, "seed-7", "rounds.jsonl").read_bytes() for out in ("one", "two"))
            assert one == two

    def test_a_terminal_shows_the_table_while_it_grows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        screen = Console(stderr=True, force_terminal=True, width=100)
        monkeypatch.setattr(terminal, "err", screen)
        result = call("rates.toml", "--seeds", "1", "--set", "federation.rounds=1")
        assert result.exit_code == 0
        shown = result.stderr
        assert "validation accuracy (%)" in shown
        assert shown.index("0/1") < shown.index("1/1")


class TestTheBest:
    def test_is_never_judged_by_test_data_and_needs_all_of_its_seeds(self) -> None:
        assert call("rates.toml", "--seeds", "1").exit_code == 0
        sweep = read_sweep(Path("rates.toml"), Path("sweeps/rates"))  # two seeds each: none is whole
        assert best(standing_of(sweep)) is None
        whole = read_sweep(Path("rates.toml"), Path("sweeps/rates"), seeds=1)
        before = best(standing_of(whole))
        for trial in whole.trials:  # test scores turned round
            file = trial.folder / "rounds.jsonl"
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            lines = [{**line, "accuracy": 1 - line["accuracy"]} for line in lines]
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        after = best(standing_of(whole))
        assert before is not None
        assert after is not None
        assert (before.point.name, before.mean) == (after.point.name, after.mean)


def test_trials_share_a_data_set_only_where_it_is_read_alike() -> None:
    """Text by another tokenizer is another data set."""
    tokenizers = pytest.importorskip("tokenizers", reason="the extra [text]")
    Path("texts").mkdir()
    for name in ("ann", "bob"):
        Path("texts", f"{name}.txt").write_text(200 * "a b c d ")
    for name, words in (("few", "ab"), ("many", "abcd")):
        known = {word: number for number, word in enumerate(["?", *words])}
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="?"))
        made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        made.save(f"{name}.json")
    sets, texts = DataSets(), ("data.dataset=text:texts", "federation.clients=2", "data.length=5")
    few, many, again = (
        sets.get(Experiment.from_toml("", [*texts, f"data.tokenizer={name}.json", f"seed={seed}"]))
        for name, seed in (("few", 0), ("many", 0), ("few", 1))
    )
    assert (few.vocabulary, many.vocabulary) == (3, 5)
    assert again is few
