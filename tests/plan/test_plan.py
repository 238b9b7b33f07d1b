"""A plan: layers, costs, memory and file sizes from real messages, of small models and of large ones."""

from __future__ import annotations

from dataclasses import astuple
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ternfed.algorithms.algorithm import Network
from ternfed.data.sets import TRAINING_SAMPLES, load, without_samples
from ternfed.edge import Inputs, export, trained
from ternfed.experiment.experiment import Experiment
from ternfed.experiment.named import built_in_algorithms
from ternfed.plan.costs import rehearse
from ternfed.plan.plan import Link, Plan, make_plan
from ternfed.plan.sample import sampled
from ternfed.quantize.ternary import twn
from ternfed.round.federation import open_federation
from ternfed.wire import form_for


def experiment(*settings: str) -> Experiment:
    return Experiment.from_toml("", ["data.dataset=cifar10", *settings])


def network(*settings: str) -> Network:
    data = without_samples("cifar10")
    assert data is not None
    return experiment(*settings).make_network(data)


@cache
def plan(*settings: str) -> Plan:
    return make_plan(experiment(*settings))


class TestLayers:
    def test_ternary_layers_travel_as_trits_in_both_directions(self) -> None:
        layers = {layer.name: layer for layer in plan("model.name=resnet18").layers}
        for name in network("model.name=resnet18").ternary:
            assert (layers[name].up, layers[name].down) == ("ternary", "ternary")
            assert 0 < layers[name].bits_up < 1.6

    def test_what_is_not_ternary_is_on_a_grid_of_a_few_bits(self) -> None:
        layers = {layer.name: layer for layer in plan("model.name=resnet18").layers}
        stem = layers["stem.weight"]
        assert (stem.shape, stem.numbers, stem.up, stem.down) == ((64, 3, 3, 3), 1728, "grid", "grid")
        assert 1 < stem.bits_up < 3
        assert 1 < stem.bits_down < 4

    def test_counters_and_an_untransmitted_first_layer_are_not_sent(self) -> None:
        layers = {layer.name: layer for layer in plan("model.name=resnet18", "algorithm.send_first=false").layers}
        for name in ("norm.num_batches_tracked", "stem.weight"):
            assert (layers[name].up, layers[name].down) == (None, None)

    def test_a_tensor_that_is_sent_in_parts_is_one_layer(self) -> None:
        layers = {layer.name: layer for layer in plan("model.name=resnet18", "algorithm.name=eden").layers}
        assert layers["stage1.0.conv1.weight"].up == "grid"
        assert layers["stage1.0.conv1.weight"].bits_up == pytest.approx(1, abs=0.01)

    def test_fedavg_sends_floats(self) -> None:
        made = plan("model.name=mlp", "algorithm.name=fedavg")
        assert {(layer.up, layer.bits_up) for layer in made.layers} == {("float32", 32)}


class TestSamplesPerClient:
    """By which T-FedAvg chooses between trits and differences, for a network with BatchNorm."""

    @staticmethod
    def way(made: Plan) -> str | None:
        return next(layer.up for layer in made.layers if layer.name == "stage1.0.conv1.weight")

    @pytest.mark.parametrize(("clients", "way"), [(4, "ternary"), (40, "grid")])
    def test_a_plan_and_its_run_send_the_same(self, clients: int, way: str) -> None:
        steps = ("training.batch=10", "training.epochs=10", f"federation.clients={clients}")
        settings = ("data.dataset=digits", "model.name=resnet18", *steps)
        made, own = plan(*settings), Experiment.from_toml("", settings)
        federation = open_federation(own, own.load_data())
        assert made.samples == sum(federation.registered) // clients
        assert self.way(made) == way
        kinds = {slot.name: form_for(slot.kind).name for slot in federation.algorithm.up[0].slots}
        assert {layer.name: layer.up for layer in made.layers if layer.up is not None} == kinds

    def test_they_can_be_said(self) -> None:
        own = experiment("model.name=resnet18")
        assert [self.way(make_plan(own, samples=count)) for count in (50, 5000)] == ["grid", "ternary"]
        assert plan("model.name=resnet18").samples == 50_000 * 98 // 100 // 5

    def test_without_them_many_are_assumed(self) -> None:
        made = plan("data.dataset=flwrlabs/femnist", "model.name=resnet18", "federation.clients=10")
        assert made.samples is None
        assert self.way(made) == "ternary"

    def test_the_numbers_of_data_sets_that_are_not_read(self, real_data: Path) -> None:
        for name in ("digits", "mnist", "shakespeare"):
            assert len(load(name, real_data).train) == TRAINING_SAMPLES[name]


class HeadFirst(nn.Module):
    """Registered in another order than it is used in."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.first, self.inner = nn.Linear(8, 10), nn.Linear(64, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.inner(self.first(x.flatten(1))))
        return out


def test_first_and_last_are_by_use_though_no_data_is_read() -> None:
    made = plan("data.dataset=digits", "model.name=test_plan:HeadFirst")
    assert [layer.name for layer in made.layers if layer.down == "ternary"] == ["inner.weight"]


def test_a_model_that_cannot_take_the_data_is_planned_all_the_same_and_it_is_said() -> None:
    misfit = plan("data.dataset=mnist", "model.name=test_plan:HeadFirst").misfit
    assert misfit is not None
    assert "the model cannot take the samples of mnist, float32 of shape 1×28×28" in misfit
    assert plan("data.dataset=digits", "model.name=test_plan:HeadFirst").misfit is None
    assert plan("data.dataset=shakespeare", "model.name=charlstm", "model.width=16").misfit is None


class TestCosts:
    @pytest.mark.parametrize("name", [name for name in built_in_algorithms() if name != "centralized"])
    def test_a_typical_round_lies_between_the_extremes(self, name: str) -> None:
        made = make_plan(Experiment.from_toml("", [f"algorithm.name={name}"])).traffic
        assert made.up.best < made.up.typical < made.up.worst
        assert made.down.best < made.down.typical < made.down.worst

    def test_the_worst_of_fedavg_is_every_byte_of_every_number(self) -> None:
        made = plan("model.name=mlp", "algorithm.name=fedavg")
        assert 4 * made.numbers < made.traffic.up.worst < 4 * made.numbers + 100

    def test_a_broadcast_in_full_precision_counts_where_it_can_come_to_that(self) -> None:
        trits = ("algorithm.upload=trits", "model.name=resnet18", "algorithm.full_at_decay=none")
        off = plan(*trits, "algorithm.judging=off").traffic.down.worst
        for setting in ("algorithm.judging=server", "algorithm.judging=clients"):
            assert plan(*trits, setting).traffic.down.worst > 2 * off

    def test_more_flips_cost_more(self) -> None:
        few, many = (make_plan(experiment("model.name=cnn"), flips=flips).traffic for flips in (0.01, 0.3))
        assert few.up.typical < many.up.typical / 2
        assert few.down.typical < many.down.typical / 2
        assert few.up.worst == many.up.worst

    def test_seconds_and_totals_follow_from_the_bytes(self) -> None:
        made = make_plan(experiment("model.name=mlp", "federation.rounds=7"), Link(up=8, down=16))
        traffic = made.traffic
        assert traffic.seconds_up.typical == pytest.approx(traffic.up.typical / 1e6)
        assert traffic.seconds_down.worst == pytest.approx(traffic.down.worst / 2e6)
        assert astuple(traffic.total_up) == tuple(7 * count for count in astuple(traffic.up))
        assert traffic.total_down.best == traffic.first_down + 6 * traffic.down.best

    def test_a_client_that_seldom_takes_part_downloads_more(self) -> None:
        always, seldom = (
            plan("model.name=mlp", "algorithm.name=topk", "federation.clients=20", f"federation.participation={share}")
            for share in (1.0, 0.1)
        )
        assert (always.missed, seldom.missed) == (1, 10)
        assert plan("model.name=mlp", "federation.clients=50", "federation.participation=0.02").missed == 10
        assert seldom.traffic.down.typical > 1.5 * always.traffic.down.typical


class TestLargeModels:
    def test_a_sample_stands_for_the_whole(self) -> None:
        whole, part = (
            rehearse(network("model.name=cnn"), experiment("model.name=cnn").make_algorithm, 5, most_numbers=most)
            for most in (2_000_000, 150_000)
        )
        assert part.sample.share < 0.2
        for ours, theirs in zip(astuple(part.costs.up), astuple(whole.costs.up), strict=True):
            assert ours == pytest.approx(theirs, rel=0.1, abs=200)
        assert part.costs.down.worst == pytest.approx(whole.costs.down.worst, rel=0.1)
        assert part.costs.first_down == pytest.approx(whole.costs.first_down, rel=0.05)

    def test_a_sample_copies_a_few_rows_and_leaves_the_model_alone(self) -> None:
        model = nn.Sequential(nn.Embedding(5000, 100), nn.Linear(100, 300), nn.Linear(300, 100), nn.Linear(100, 5000))
        model[3].weight = model[0].weight
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        sample = sampled(Network(model), most=100_000)
        small = sample.network.model
        assert isinstance(small, nn.Sequential)
        assert small[3].weight is small[0].weight
        assert sum(parameter.numel() for parameter in small.parameters()) < 120_000
        assert sample.times["0.weight"] == pytest.approx(5000 / len(small[0].weight))
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())

    def test_a_download_over_several_rounds_is_judged_by_fewer_rows(self) -> None:
        made = plan("model.name=resnet18", "federation.clients=20", "federation.participation=0.1")
        assert made.share == 1
        assert made.share_down < 0.25
        assert plan("model.name=resnet18").share_down == 1


class TestMemory:
    def test_a_median_keeps_every_upload_and_a_mean_none(self) -> None:
        def aggregation(rule: str, clients: int) -> int:
            return plan(
                "model.name=mlp", f"federation.aggregate={rule}", f"federation.clients={clients}"
            ).server.aggregation

        assert aggregation("mean", 50) == aggregation("mean", 5)
        assert aggregation("median", 50) == pytest.approx(10 * aggregation("median", 5), rel=0.05)

    def test_adam_remembers_two_tensors_for_each(self) -> None:
        sgd, adam = (
            plan("model.name=mlp", "algorithm.name=fedavg", f"training.optimizer={name}").client.training
            for name in ("sgd", "adam")
        )
        assert adam - sgd == 2 * 4 * plan("model.name=mlp").numbers

    def test_references_are_kept_for_those_who_do_not_always_take_part(self) -> None:
        some, all_ = (
            plan("model.name=mlp", "federation.clients=20", f"federation.participation={share}").server.references
            for share in (0.5, 1.0)
        )
        assert some == 20 * all_
        assert plan("model.name=mlp", "algorithm.name=fedavg").server.references == 0


def test_exported_sizes_are_those_of_real_files(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    own = network("model.name=cnn")
    with torch.no_grad():
        for name in own.ternary:
            weight = own.model.get_parameter(name)
            weight.copy_(twn(weight).dense())
    model = trained(own.model, Inputs((3, 32, 32)), classes=10)
    sizes = plan("model.name=cnn").exported
    assert sizes.onnx == pytest.approx(export(model, tmp_path / "model.onnx").bytes, rel=0.1)
    assert sizes.tern == pytest.approx(export(model, tmp_path / "model.tern").bytes, rel=0.05)
    assert sizes.float32 == pytest.approx(export(model, tmp_path / "model.safetensors").bytes, rel=0.02)


def test_what_is_frozen_is_told_and_costs_one_copy_and_no_bytes() -> None:
    digits = ("data.dataset=digits", "model.name=mlp", "model.hidden=[64, 64]")
    whole = plan(*digits)
    part = plan(*digits, 'model.trainable=["linear2", "linear3"]', 'model.ternary=["linear2"]')
    assert [layer.name for layer in part.layers if layer.frozen] == ["linear1.weight"]
    first = next(layer for layer in part.layers if layer.frozen)
    assert (first.up, first.down) == (None, None)
    assert part.frozen == 64 * 64
    assert part.numbers == whole.numbers
    assert part.server.frozen == part.client.frozen == 4 * part.frozen
    assert part.exported.float32 == whole.exported.float32
    assert whole.exported.float32 > part.exported.tern > 4 * part.frozen
    assert part.traffic.up.typical < whole.traffic.up.typical
