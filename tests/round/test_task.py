"""A task of one's own goes through the whole chain: training, judging, best round, records, resuming, predictions."""

import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

import ternfed
from own_task import REGRESSION, model, network, outputs_of, sines
from ternfed.cli import terminal
from ternfed.data.sets import from_arrays, load
from ternfed.data.values import DataSet
from ternfed.edge import Inputs, ModelError, export, open_model, predict, summarise, trained, write_predictions
from ternfed.engines import simulate
from ternfed.experiment.experiment import Experiment, ExperimentError
from ternfed.round.federation import Federation, open_federation
from ternfed.round.state import State
from ternfed.runs.folder import Round, RunError, RunFolder, read_run
from ternfed.runs.folder import summarise as summarise_run
from ternfed.task import CLASSIFICATION, TASKS, Measure
from ternfed.training.captured import CapturedTrainer
from ternfed.training.plain import train_one
from ternfed.training.work import Work

SMALL = ("federation.clients=4", "federation.rounds=6", "training.epochs=2", "training.rate=0.1", "training.batch=16")


@pytest.fixture(scope="module")
def data() -> DataSet:
    return sines()


def federation(data: DataSet, *settings: str) -> Federation:
    own = ["data.dataset=own:sines", *SMALL, *settings]
    return open_federation(Experiment.from_toml("", own), data, model=model(), task=REGRESSION)


def played(made: Federation, state: State | None = None) -> tuple[list[State], list[Round]]:
    states, records = zip(*simulate.play(made, state), strict=True)
    return list(states), [replace(record, seconds={}) for record in records]


@pytest.mark.parametrize("algorithm", ["fedavg", "tfedavg"])
class TestARegressionFederates:
    def test_its_score_is_the_error_on_test_data_and_falls(self, data: DataSet, algorithm: str) -> None:
        states, records = played(federation(data, f"algorithm.name={algorithm}", "federation.rounds=10"))
        error = (outputs_of(states[-1].server.weights, data.test.inputs) - data.test.labels).square().mean().item()
        assert records[-1].score == pytest.approx(error, rel=1e-5)
        assert records[-1].score == pytest.approx(records[-1].loss, rel=1e-5)  # that is what it minimises
        variance = data.test.labels.var(correction=0).item()
        assert records[-1].score < min(records[0].score, variance)

    def test_the_best_round_is_that_of_the_lowest_validation_score(self, data: DataSet, algorithm: str) -> None:
        # Within four rounds the error on held-out data goes up again.
        states, records = played(federation(data, f"algorithm.name={algorithm}", "federation.rounds=4"))
        validations = [record.validation for record in records]
        lowest = min(value for value in validations if value is not None)
        assert states[-1].best == lowest
        assert states[-1].best_round == validations.index(lowest) + 1
        summary = summarise_run(records, Experiment.from_toml("", SMALL))
        assert summary["best_round"] == states[-1].best_round
        assert summary["best_mse"] == records[states[-1].best_round - 1].score
        assert (summary["metric"], summary["higher_is_better"], summary["mse"]) == ("mse", False, records[-1].score)
        assert "accuracy" not in summary

    def test_a_run_killed_and_resumed_ends_with_the_same_bytes(
        self, data: DataSet, algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(simulate, "CHECKPOINT_SECONDS", 0.0)
        made = federation(data, f"algorithm.name={algorithm}")
        for name, stop in (("whole", None), ("parts", 3)):
            with RunFolder.create(tmp_path / name, made.experiment) as folder:
                for record in simulate.record(made, folder):
                    if record.round == stop:
                        break
        folder, _, past, saved = RunFolder.resume(tmp_path / "parts", made.experiment)
        assert [record.metric for record in past] == ["mse"] * len(past)
        with folder:
            list(simulate.record(made, folder, saved))
        for name in ("rounds.jsonl", "state.safetensors", "last.safetensors", "best.safetensors", "partition.json"):
            assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
        line = json.loads((tmp_path / "whole" / "rounds.jsonl").read_bytes().splitlines()[0])
        assert list(line)[:2] == ["round", "mse"]
        assert (line["higher_is_better"], line["percent"]) == (False, False)
        assert read_run(tmp_path / "whole").partition == [[len(part)] for part in made.parts]


class TestTheGuard:
    def test_a_quantized_model_with_a_higher_error_is_not_broadcast(self, data: DataSet) -> None:
        """A server threshold that keeps next to nothing, as in the test of the same for classes."""
        ruined = ("algorithm.server_rule=max", "algorithm.server_factor=0.99", "algorithm.plain_epochs=0")
        ruined = (*ruined, "algorithm.upload=trits")
        _, records = played(federation(data, *ruined, "training.epochs=5", "algorithm.tolerance=0.01"))
        assert "II" in {record.strategy for record in records}
        _, tolerant = played(federation(data, *ruined, "training.epochs=5", "algorithm.tolerance=1000"))
        assert {record.strategy for record in tolerant} == {"I"}

    def test_clients_can_judge_by_their_own_errors(self, data: DataSet) -> None:
        judging = ("algorithm.upload=trits", "algorithm.judging=clients")
        made = federation(data, *judging, "algorithm.tolerance=1000", "data.hold_out=0.0")
        assert made.algorithm.up[0].numbers[-1] == "mse"
        assert {record.strategy for record in played(made)[1]} == {"I"}
        # One client at a time: the errors on their samples go up and down.
        alone = ("federation.participation=0.25", "federation.rounds=15")
        strict = federation(data, *judging, "algorithm.tolerance=0", *alone)
        assert {record.strategy for record in played(strict)[1]} == {"I", "II"}


def test_federate_takes_a_task(data: DataSet) -> None:
    net = model()
    records = list(ternfed.federate(net, data, *SMALL, task=REGRESSION))
    with torch.no_grad():
        error = nn.functional.mse_loss(net.eval()(data.test.inputs), data.test.labels).item()
    assert records[-1].score == pytest.approx(error, rel=1e-5)


def test_the_width_of_the_outputs_comes_from_the_targets(data: DataSet) -> None:
    experiment = Experiment.from_toml("", ["data.dataset=own_task:sines", "model.name=own_task:network", *SMALL])
    made = open_federation(experiment, load("own_task:sines"), task=REGRESSION)
    assert made.network.model[-1].out_features == network(1)[-1].out_features == data.classes


@pytest.mark.parametrize("quantized", [False, True])
def test_the_way_of_a_gpu_learns_the_same(data: DataSet, quantized: bool) -> None:
    made = federation(data, f"algorithm.name={'tfedavg' if quantized else 'fedavg'}")
    broadcast = made.algorithm.broadcast(made.open().server)
    works: list[Work] = []
    for index in range(2):
        site = made.site(index)
        local, _ = made.algorithm.start(broadcast, {}, site.client(1))
        works.append(Work.draw(local, site.own, site.training(1), None, seed=0, round=1, client=index))
    training = made.algorithm.training
    for fast, work in zip(CapturedTrainer(made.network, training, made.feed).train(works), works, strict=True):
        plain = train_one(made.network, training, made.feed, work)
        # 20 steps in float32, on weights near 1/2.
        torch.testing.assert_close(fast.local.weights, plain.local.weights, rtol=1e-4, atol=1e-5)
        assert fast.loss == pytest.approx(plain.loss, rel=1e-4)


class TestRefusals:
    @pytest.mark.parametrize(("setting", "name"), [("classes_per_client=2", "classes"), ("alpha=0.5", "dirichlet")])
    def test_a_partition_by_class_without_classes(self, data: DataSet, setting: str, name: str) -> None:
        with pytest.raises(ExperimentError) as refused:
            federation(data, f"data.{setting}")
        allowed = '"iid" or "unbalanced" is allowed'
        assert str(refused.value) == (
            f'data.partition = "{name}": divides by class, and regression has no classes; {allowed}'
        )

    def test_sizes_may_differ_without_classes(self, data: DataSet) -> None:
        sizes = sorted(len(part) for part in federation(data, "data.balance=0.5").parts)
        assert sizes[0] < sizes[-1]

    def test_targets_of_another_type_than_the_tasks(self, data: DataSet) -> None:
        with pytest.raises(
            ExperimentError, match=r"^classification: needs targets of type int64, but those of sines are"
        ):
            open_federation(Experiment.from_toml("", ["data.dataset=own:sines", *SMALL]), data, model=model())
        with pytest.raises(
            ExperimentError, match=r"^regression: needs targets of type float32, but those of digits are"
        ):
            open_federation(Experiment.from_toml("", SMALL), load("digits"), task=REGRESSION)

    def test_more_classes_than_one_per_sample(self, data: DataSet) -> None:
        many = replace(data.train, labels=torch.zeros(len(data.train), 2, dtype=torch.int64))
        with pytest.raises(
            ExperimentError, match=r"^classification: needs one class per sample, but sines has \(900, 2"
        ):
            open_federation(
                Experiment.from_toml("", ["data.dataset=own:sines", *SMALL]), replace(data, train=many), model=model()
            )

    def test_a_metric_with_the_name_of_another_number(self, data: DataSet) -> None:
        named = replace(REGRESSION, metric=replace(REGRESSION.metric, measure=Measure("loss")))
        own = Experiment.from_toml("", ["data.dataset=own:sines", *SMALL])
        with pytest.raises(ExperimentError, match=r"^regression: a record has another number named loss"):
            open_federation(own, data, model=model(), task=named)

    @pytest.mark.parametrize("wrong", [["a", "b"], [1.0, math.nan], [[1.0, math.inf], [0.0, 0.0]]])
    def test_targets_that_are_no_finite_numbers(self, wrong: Sequence[object]) -> None:
        x = torch.zeros(2, 3)
        with pytest.raises(ValueError, match=r"^mine: train_y is .*; finite numbers are needed"):
            from_arrays("mine", x, wrong, x, [0.0, 0.0], task=REGRESSION)

    def test_a_run_resumed_with_another_task(self, data: DataSet, tmp_path: Path) -> None:
        made = federation(data, "algorithm.name=fedavg", "federation.rounds=1")
        folder, _, coming = simulate.record_into(tmp_path / "run", made, "cpu")
        with folder:
            list(coming)
        other = replace(made.network, task=replace(REGRESSION, metric=CLASSIFICATION.metric))
        with pytest.raises(RunError, match=r"its rounds are scored by mse, and those to come by accuracy$"):
            simulate.record_into(tmp_path / "run", replace(made, network=other), "cpu", resume=True)


class TestPredictions:
    @pytest.mark.parametrize("suffix", [".tern", ".safetensors"])
    def test_are_numbers_and_have_an_error(self, data: DataSet, tmp_path: Path, suffix: str) -> None:
        own = trained(model(), Inputs.of(data), score=0.5, task=REGRESSION)
        path = export(own, tmp_path / f"model{suffix}").path
        opened = open_model(path, network=model(), task=REGRESSION)
        assert (opened.facts["mse"], opened.facts["task"]) == (0.5, "regression")
        result = summarise(predict(opened, data.test.inputs.numpy(), data.test.labels.numpy()))
        assert result.predictions.shape == data.test.labels.shape
        wanted = nn.functional.mse_loss(model()(data.test.inputs), data.test.labels).item()
        assert result.score == pytest.approx(wanted, rel=1e-5)
        write_predictions(tmp_path / "out.json", result)
        assert set(json.loads((tmp_path / "out.json").read_text())) == {"mse", "milliseconds", "predictions"}

    def test_are_not_read_as_classes(self, data: DataSet, tmp_path: Path) -> None:
        path = export(trained(model(), Inputs.of(data), task=REGRESSION), tmp_path / "model.tern").path
        with pytest.raises(ModelError, match="its model learned regression, not classification; give its task"):
            open_model(path, network=model())


class TestMeasure:
    def test_goodness_is_higher_for_the_better_of_two_scores_whichever_way_the_metric_goes(self) -> None:
        accuracy, error = CLASSIFICATION.metric.measure, REGRESSION.metric.measure
        assert accuracy.goodness(0.9) > accuracy.goodness(0.1)
        assert error.goodness(0.1) > error.goodness(0.9)
        assert error.goodness(0.1) - error.goodness(0.9) == pytest.approx(0.8)
        assert error.goodness(math.nan) < error.goodness(1e300)

    def test_a_tolerance_is_in_points_of_a_share_and_in_parts_of_any_other_score(self) -> None:
        accuracy, error = CLASSIFICATION.metric.measure, REGRESSION.metric.measure
        assert accuracy.least(accuracy.goodness(0.90), 0.03) == pytest.approx(accuracy.goodness(0.87))
        for size in (1e-3, 1.0, 3000.0):  # whatever the unit of what is predicted
            assert error.least(error.goodness(size), 0.03) == pytest.approx(error.goodness(1.03 * size))

    def test_scores_are_shown_in_percent_or_with_their_name(self, data: DataSet) -> None:
        assert CLASSIFICATION.metric.measure.text(0.9753) == "97.53%"
        assert CLASSIFICATION.metric.measure.heading == "accuracy (%)"
        assert REGRESSION.metric.measure.text(0.01234) == "mse 0.01234"
        table = terminal.summary_table(
            {"a": {"mse": 0.25, "bytes_up": 1, "bytes_down": 1, "bits_per_weight_up": None, "seconds": 1.0}},
            REGRESSION.metric.measure,
        )
        assert [column.header for column in table.columns][:2] == ["run", "mse"]
        assert next(table.columns[1].cells) == "0.25"

    def test_no_heading_is_cut_within_a_word_on_a_narrow_terminal(self) -> None:
        row = {"perplexity": 8.4, "bytes_up": 25_800, "bytes_down": 19_000, "bits_per_weight_up": 1.6, "seconds": 8.3}
        both = {"a-run-with-a-long-name": {**row, "flips_mean": 0.155}, "another-of-them": {**row, "flips_mean": 0.2}}
        console = Console(width=80, file=io.StringIO())
        console.print(terminal.summary_table(both, TASKS["language"]["perplexity"].metric.measure))
        assert isinstance(console.file, io.StringIO)
        shown = console.file.getvalue()
        for word in ("perplexity", "uploaded", "downloaded", "weight", "flips", "seconds"):
            assert word in shown
