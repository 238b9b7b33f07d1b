"""The tasks by name: their scores are scikit-learn's, whatever the batches; loss and score count what they should."""

import json
import math
from pathlib import Path

import pytest
import torch
from sklearn import metrics
from torch import Tensor, nn

import ternfed
from ternfed.data.sets import from_arrays, load
from ternfed.data.values import DataSet
from ternfed.engines.simulate import federate, record_into
from ternfed.experiment.experiment import Experiment, ExperimentError
from ternfed.round.federation import open_federation
from ternfed.task import CLASSIFICATION, IGNORED, TASKS, Measure, Metric, Task

OWN = ("test_tasks",)
"""The module that files made here may name: this one."""


def score(task: Task, outputs: Tensor, targets: Tensor, batch: int = 7) -> float:
    """Over batches, as an evaluation adds them up."""
    parts = zip(outputs.split(batch), targets.split(batch), strict=True)
    sums = torch.stack([task.metric.add(*part).double() for part in parts]).sum(0)
    return task.metric.finish(sums, len(targets))


@pytest.fixture
def draws() -> torch.Generator:
    return torch.Generator().manual_seed(3)


class TestScores:
    @pytest.mark.parametrize(
        ("metric", "theirs"),
        [("mse", metrics.mean_squared_error), ("mae", metrics.mean_absolute_error), ("r2", metrics.r2_score)],
    )
    @pytest.mark.parametrize("width", [1, 3])
    def test_regression(self, metric: str, theirs: object, width: int, draws: torch.Generator) -> None:
        targets = 40 + 3 * torch.randn(50, width, generator=draws)
        outputs = targets + torch.randn(50, width, generator=draws)
        assert callable(theirs)
        ours = score(TASKS["regression"][metric], outputs, targets)
        assert ours == pytest.approx(theirs(targets.numpy(), outputs.numpy()), rel=1e-5)

    def test_outputs_of_one_column_meet_targets_of_none(self, draws: torch.Generator) -> None:
        """Subtracted as they are, (N, 1) and (N) would make a table."""
        outputs, targets = torch.randn(50, 1, generator=draws), torch.randn(50, generator=draws)
        for task in TASKS["regression"].values():
            assert score(task, outputs, targets) == pytest.approx(score(task, outputs, targets.unsqueeze(1)))
            assert task.loss(outputs, targets) == pytest.approx(float((outputs[:, 0] - targets).square().mean()))

    def test_multilabel(self, draws: torch.Generator) -> None:
        outputs = torch.randn(50, 4, generator=draws)
        targets = (torch.rand(50, 4, generator=draws) < 0.3).float()
        said, wanted = (outputs > 0).numpy(), targets.numpy()
        f1, accuracy = TASKS["multilabel"].values()
        assert score(f1, outputs, targets) == pytest.approx(metrics.f1_score(wanted, said, average="micro"))
        assert score(accuracy, outputs, targets) == pytest.approx((said == wanted).mean())
        nothing = torch.full((5, 4), -1.0)
        assert score(f1, nothing, torch.zeros(5, 4)) == 0.0  # neither labels nor predictions: no division by zero

    def test_language(self, draws: torch.Generator) -> None:
        outputs, targets = torch.randn(20, 6, 9, generator=draws), torch.randint(9, (20, 6), generator=draws)
        targets[::3, 4:] = IGNORED
        counts = targets != IGNORED
        accuracy, perplexity = TASKS["language"].values()
        assert score(accuracy, outputs, targets) == pytest.approx(
            metrics.accuracy_score(targets[counts].numpy(), outputs.argmax(-1)[counts].numpy())
        )
        entropy = nn.functional.cross_entropy(outputs[counts].double(), targets[counts]).item()
        assert score(perplexity, outputs, targets) == pytest.approx(math.exp(entropy), rel=1e-6)
        assert accuracy.loss(outputs, targets).item() == pytest.approx(entropy, rel=1e-5)
        assert accuracy.count(targets) == int(counts.sum())

    def test_segmentation(self, draws: torch.Generator) -> None:
        outputs, targets = torch.randn(9, 4, 5, 5, generator=draws), torch.randint(3, (9, 5, 5), generator=draws)
        targets[0] = IGNORED
        outputs[:, 3] = -100.0  # a class that neither occurs nor is predicted does not count
        counts = targets != IGNORED
        iou, accuracy = TASKS["segmentation"].values()
        said, wanted = outputs.argmax(1)[counts].numpy(), targets[counts].numpy()
        assert score(iou, outputs, targets) == pytest.approx(metrics.jaccard_score(wanted, said, average="macro"))
        assert score(accuracy, outputs, targets) == pytest.approx((said == wanted).mean())

    def test_only_shares_are_shown_in_percent_and_errors_are_better_when_low(self) -> None:
        shown = {
            (name, metric): (task.metric.measure.percent, task.metric.measure.higher_is_better)
            for name, metrics in TASKS.items()
            for metric, task in metrics.items()
        }
        low = {("regression", "mse"), ("regression", "mae"), ("language", "perplexity")}
        assert {key for key, (_, higher) in shown.items() if not higher} == low
        assert {key for key, (percent, _) in shown.items() if not percent} == {*low, ("regression", "r2")}
        assert TASKS["language"]["perplexity"].metric.measure.text(7.25) == "perplexity 7.25"


# Real data: each task is learned


def diabetes() -> DataSet:
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    x, y = x / x.std(0), (y - y.mean()) / y.std()
    return from_arrays("diabetes", x[90:], y[90:], x[:90], y[:90], task=TASKS["regression"]["mse"])


def digits_for(task: Task) -> DataSet:
    """Of each digit: is it even, is it above four, has it a loop; or which of its pixels are ink."""
    digits = load("digits")
    facts = torch.tensor([[d % 2 == 0, d > 4, d in (0, 6, 8, 9)] for d in range(10)]).float()
    parts: list[Tensor] = []
    for samples in (digits.train, digits.test):
        ink = (samples.inputs[:, 0] > 0.5).long()
        parts += [samples.inputs, ink if task.dense else facts[samples.labels]]
    return from_arrays("digits", *parts, task=task)


FEW = ("federation.clients=4", "federation.rounds=4", "training.batch=16", "training.rate=0.1", "algorithm.name=fedavg")


def chain(inputs: int, outputs: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, 32), nn.Linear(32, outputs))


class TestEachTaskLearnsFromRealData:
    @pytest.mark.parametrize(("metric", "reached"), [("mse", 0.8), ("mae", 0.8), ("r2", 0.3)])
    def test_diabetes(self, metric: str, reached: float) -> None:
        settings = ("task.name=regression", f"task.metric={metric}", "training.rate=0.02")
        record = list(federate(chain(10, 1), diabetes(), *FEW, *settings))[-1]
        assert record.metric == metric
        assert record.measure.goodness(record.score) > record.measure.goodness(reached)

    def test_three_facts_about_a_digit(self) -> None:
        data = digits_for(TASKS["multilabel"]["f1"])
        assert data.classes == 3
        record = list(federate(chain(64, 3), data, *FEW, "task.name=multilabel"))[-1]
        assert record.metric == "f1"
        assert record.score > 0.9

    def test_labels_that_are_neither_there_nor_not(self) -> None:
        data = digits_for(TASKS["multilabel"]["f1"])
        data.train.labels[5, 1] = 2.0
        with pytest.raises(ExperimentError, match="multilabel: needs 0 or 1 for each label as a target"):
            next(iter(federate(chain(64, 3), data, *FEW, "task.name=multilabel")))

    def test_the_ink_of_a_digit(self) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.ReLU(), nn.Conv2d(8, 2, 3, padding=1)
        )
        data = digits_for(TASKS["segmentation"]["iou"])
        record = list(federate(model, data, *FEW, "task.name=segmentation"))[-1]
        assert record.metric == "iou"
        assert record.score > 0.8
        assert 0 < record.loss < 0.4


def test_a_run_says_what_was_learned_and_its_export_predicts_it(tmp_path: Path) -> None:
    settings = ["data.dataset=test_tasks:diabetes", "task.name=regression", "task.metric=mae", "model.hidden=[16,16]"]
    experiment = Experiment.from_toml("", [*settings, *FEW, "training.rate=0.02", "algorithm.name=tfedavg"])
    federation = open_federation(experiment, experiment.load_data())
    folder, _, coming = record_into(tmp_path / "run", federation, "cpu")
    with folder:
        records = list(coming)
    line = json.loads((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()[-1])
    assert line["mae"] == records[-1].score
    assert Experiment.from_file(tmp_path / "run" / "config.toml", allow=OWN) == experiment

    from ternfed.edge import export_from, open_model, predict, samples_for, summarise

    (tmp_path / "out").mkdir()
    written = export_from(tmp_path / "run", tmp_path / "out" / "model.tern", which="last", allow=OWN)
    opened = open_model(written.path, allow=OWN)
    result = summarise(predict(opened, *samples_for(opened.facts, task=opened.task, allow=OWN)))
    assert result.score == pytest.approx(records[-1].score, rel=1e-5)


# One's own, in ten lines


def huber() -> Task:
    """Errors that do not trust outliers, judged by the share of predictions that are nearly right."""
    near = Metric(
        Measure("near", percent=True),
        add=lambda outputs, targets: ((outputs[:, 0] - targets).abs() < 0.5).sum(),
        finish=lambda right, samples: float(right) / samples,
    )
    loss = nn.SmoothL1Loss()
    return Task("huber", lambda outputs, targets: loss(outputs[:, 0], targets), near, predict=lambda outputs: outputs)


def no_task() -> str:
    return "a task"


class TestOnesOwn:
    def test_is_named_as_module_and_function(self) -> None:
        settings = ["data.dataset=test_tasks:diabetes", "task.name=test_tasks:huber", *FEW, "training.rate=0.02"]
        experiment = Experiment.from_toml("", settings)
        assert experiment.task.metric == "own"
        federation = open_federation(experiment, experiment.load_data())
        from ternfed.engines.simulate import play

        records = [record for _, record in play(federation)]
        assert records[-1].metric == "near"
        assert records[-1].score > 0.3

    def test_federate_takes_it_as_a_value_too(self) -> None:
        assert next(iter(ternfed.federate(chain(10, 1), diabetes(), *FEW, task=huber()))).metric == "near"

    def test_that_is_none_is_refused(self) -> None:
        with pytest.raises(ExperimentError, match=r"test_tasks:no_task.*: returned str; a Task is needed"):
            Experiment.from_toml("", ["task.name=test_tasks:no_task"]).make_task()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["task.name=clustering"], '"regression", "language", "segmentation" or module:function is allowed'),
        (["task.metric=mse"], 'task.metric = "mse": "accuracy" is allowed with "classification"'),
        (["task.name=regression", "task.metric=accuracy"], '"mse", "mae" or "r2" is allowed with "regression"'),
        (["task.name=mine:task", "task.metric=mse"], "has no meaning with mine:task, which brings its own"),
        (["task.kind=regression"], "task.kind"),
    ],
)
def test_what_no_task_has_is_refused(settings: list[str], sentence: str) -> None:
    with pytest.raises(ExperimentError) as refused:
        Experiment.from_toml("", settings)
    assert sentence in str(refused.value)


def test_another_task_has_another_metric() -> None:
    first = Experiment.from_toml("", ["task.name=regression", "task.metric=r2"])
    assert first.with_settings(["task.name=language"]).task.metric == "accuracy"
    assert first.with_settings(["seed=1"]).task.metric == "r2"
    assert Experiment.from_toml("").make_task() is CLASSIFICATION
