"""`federate` with models that are no image classifiers: any layer, shared tensors, any dtype, a part, a checkpoint."""

import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import ternfed
from ternfed.data.sets import from_arrays
from ternfed.data.values import DataSet
from ternfed.engines import simulate
from ternfed.engines.simulate import play
from ternfed.experiment.experiment import Experiment, ExperimentError
from ternfed.experiment.named import find_algorithm
from ternfed.round.federation import Federation, open_federation
from ternfed.round.state import pack
from ternfed.runs.folder import RunError, RunFolder, Saved

WORDS, LENGTH = 12, 6
SMALL = ("federation.clients=4", "training.epochs=2", "training.batch=16", "training.rate=0.1", "data.hold_out=0.1")
ALGORITHMS = (
    "fedavg", "tfedavg", "cmfl", "stc", "topk", "signsgd_ef", "fedprox", "fedopt", "fedpaq", "eden", "fedbat", "fedpm",
)  # fmt: skip


class Reader(nn.Module):
    """Token ids ─▶ one of them; the head is declared first, and may share its weights with the embedding."""

    def __init__(self, body: str = "lstm", tied: bool = False) -> None:
        super().__init__()
        self.head = nn.Linear(16, WORDS, bias=False)
        self.embed = nn.Embedding(WORDS, 16)
        self.body = (
            nn.LSTM(16, 16, num_layers=2, batch_first=True)
            if body == "lstm"
            else nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        )
        self.register_buffer("mask", torch.ones(LENGTH, dtype=torch.bool), persistent=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        out = self.body(self.embed(tokens))
        states = out[0] if isinstance(out, tuple) else out
        logits: Tensor = self.head((states * self.mask[:, None]).mean(1))
        return logits


def reader(body: str = "lstm", tied: bool = False) -> Reader:
    torch.manual_seed(0)
    return Reader(body, tied)


@pytest.fixture(scope="module")
def sentences() -> DataSet:
    """Half of a sentence is one word: which?"""
    source = torch.Generator().manual_seed(0)
    tokens = torch.randint(WORDS, (480, LENGTH), generator=source)
    labels = torch.randint(WORDS, (480,), generator=source)
    tokens[:, ::2] = labels[:, None]
    return from_arrays("sentences", tokens[:400], labels[:400], tokens[400:], labels[400:])


@pytest.fixture(scope="module")
def rows() -> DataSet:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(300, 6, generator=source)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    return from_arrays("rows", x[:240], y[:240], x[240:], y[240:])


def chain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))


class TestAnyLayer:
    @pytest.mark.parametrize("upload", ["trits", "differences"])
    @pytest.mark.parametrize("body", ["lstm", "transformer"])
    def test_recurrent_layers_and_attention_learn_and_end_ternary(
        self, sentences: DataSet, body: str, upload: str
    ) -> None:
        model, adam = reader(body), ("training.optimizer=adam", "training.rate=0.01")
        options = ("federation.rounds=6", f"algorithm.upload={upload}", "training.epochs=5")
        records = list(ternfed.federate(model, sentences, *SMALL, *adam, *options))
        assert records[-1].score > 0.5 > 3 * records[0].score or records[-1].score > 0.8
        ternary = [name for name, tensor in model.named_parameters() if tensor.dim() > 1 and len(tensor.unique()) <= 3]
        assert ternary == [n for n, p in model.named_parameters() if n.startswith("body.") and p.dim() > 1]

    def test_the_head_that_is_declared_first_stays_float(self, sentences: DataSet) -> None:
        made = open_federation(Experiment.from_toml("", SMALL), sentences, model=reader())
        assert made.network.ternary == tuple(f"body.weight_{part}_l{i}" for i in (0, 1) for part in ("ih", "hh"))

    def test_which_weights_are_ternary_is_obeyed_and_said_once(
        self, sentences: DataSet, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO, "ternfed"):
            patterns = 'model.ternary=["body.*_l1", "embed"]'
            for _ in ternfed.federate(reader(), sentences, *SMALL, patterns, "federation.rounds=2"):
                pass
        (said,) = [record.getMessage() for record in caplog.records]
        assert said == "ternary: embed.weight, body.weight_ih_l1, body.weight_hh_l1 (47.3% of 4,736 weights)"

    @pytest.mark.parametrize("setting", ["model.name=cnn", "model.hidden=[3]", "data.dataset=mnist"])
    def test_settings_that_the_arguments_decide_are_refused(self, rows: DataSet, setting: str) -> None:
        with pytest.raises(ExperimentError, match="has no meaning here, where the model and the data are given"):
            next(ternfed.federate(chain(), rows, setting))

    def test_arguments_of_another_kind_are_one_sentence_each(self, rows: DataSet) -> None:
        with pytest.raises(ExperimentError, match=r"^model: is a NoneType; a torch\.nn\.Module is needed"):
            next(ternfed.federate(None, rows))  # type: ignore[arg-type]
        with pytest.raises(ExperimentError, match=r"^\{'training.rate': 1\}: settings are text"):
            next(ternfed.federate(chain(), rows, {"training.rate": 1}))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="is a int; a data set, or what each client has, is needed"):
            next(ternfed.federate(chain(), 7, test=(rows.test.inputs, rows.test.labels)))  # type: ignore[arg-type]

    def test_models_that_cannot_be_federated_as_they_are_say_why(self, rows: DataSet) -> None:
        prepared, turning = chain(), chain()
        ternfed.ternarize_(prepared)
        turning[2].turn = nn.Parameter(torch.ones(3, dtype=torch.complex64))
        with pytest.raises(ExperimentError, match=r"^the model is prepared by ternarize_ already"):
            next(ternfed.federate(prepared, rows))
        with pytest.raises(ExperimentError, match=r"^2\.turn is complex64, which cannot travel"):
            next(ternfed.federate(turning, rows))

    @pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "tfedavg"])
    def test_only_ternary_algorithms_need_a_ternary_layer(self, rows: DataSet, algorithm: str) -> None:
        options = ("federation.rounds=1", f"algorithm.name={algorithm}")
        assert [record.round for record in ternfed.federate(nn.Linear(6, 3), rows, *SMALL, *options)] == [1]
        with pytest.raises(ExperimentError, match="has no layer that can be ternary"):
            next(ternfed.federate(nn.Linear(6, 3), rows, *SMALL))


class TestSharedTensors:
    @pytest.mark.parametrize("algorithm", ["fedavg", "tfedavg"])
    def test_a_tied_embedding_is_sent_once_and_stays_tied(self, sentences: DataSet, algorithm: str) -> None:
        model, options = reader(tied=True), (f"algorithm.name={algorithm}", "federation.rounds=2")
        before = model.embed.weight.detach().clone()
        made = open_federation(Experiment.from_toml("", [*SMALL, *options]), sentences, model=model)
        assert [slot.name for slot in made.algorithm.up[0].slots if slot.shape == (WORDS, 16)] == ["head.weight"]
        records = list(ternfed.federate(model, sentences, *SMALL, *options))
        assert model.head.weight is model.embed.weight
        assert not torch.equal(model.embed.weight, before)
        right = (model.eval()(sentences.test.inputs).argmax(1) == sentences.test.labels).float().mean().item()
        assert right == pytest.approx(records[-1].score, abs=1e-6)

    def test_a_tied_embedding_can_be_ternary(self, sentences: DataSet) -> None:
        model = reader(tied=True)
        list(ternfed.federate(model, sentences, *SMALL, 'model.ternary=["embed"]', "federation.rounds=1"))
        assert len(model.head.weight.unique()) <= 3

    def test_a_module_that_is_used_twice(self, rows: DataSet) -> None:
        layer = nn.Linear(16, 16)
        model = nn.Sequential(nn.Linear(6, 16), layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(16, 3))
        list(ternfed.federate(model, rows, *SMALL, "federation.rounds=1"))
        assert model[1] is model[3]
        assert len(layer.weight.unique()) <= 3


class TestTypes:
    @pytest.mark.parametrize("algorithm", ["fedavg", "tfedavg"])
    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
    def test_other_floats_are_cast_and_cast_back(self, rows: DataSet, dtype: torch.dtype, algorithm: str) -> None:
        model, options = chain().to(dtype), (f"algorithm.name={algorithm}", "federation.rounds=2")
        started = model[0].weight.detach().clone()
        list(ternfed.federate(model, rows, *SMALL, *options))
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}
        assert not torch.equal(model[0].weight, started)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_a_device_that_is_not_there_is_one_sentence(self, rows: DataSet) -> None:
        with pytest.raises(ExperimentError, match=r'^device = "cuda": this machine has none; "cpu" is always there$'):
            next(ternfed.federate(chain(), rows, *SMALL, device="cuda"))

    def test_labels_without_an_output_are_one_sentence(self, rows: DataSet) -> None:
        shifted = from_arrays("rows", rows.train.inputs, rows.train.labels + 1, rows.test.inputs, rows.test.labels + 1)
        sentence = r"^the labels of rows run from 1 to 3, and the model has 3 outputs: labels from 0 to 2 are needed$"
        with pytest.raises(ExperimentError, match=sentence):
            next(ternfed.federate(chain(), shifted, *SMALL))

    def test_a_model_in_evaluation_mode_is_trained_all_the_same_and_stays_in_it(self, rows: DataSet) -> None:
        model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)).eval()
        list(ternfed.federate(model, rows, *SMALL, "algorithm.name=fedavg", "federation.rounds=1"))
        assert model[1].running_mean.any()
        assert not model.training


class TestPart:
    """`model.trainable`: the rest is frozen."""

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_the_rest_stays_bit_equal_and_never_travels(self, rows: DataSet, algorithm: str) -> None:
        model = nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16, bias=False), nn.BatchNorm1d(16),
            nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3),
        )  # fmt: skip
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        options = (f"algorithm.name={algorithm}", 'model.trainable=["3", "4", "6", "8.bias"]', "federation.rounds=2")
        if hasattr(find_algorithm(algorithm).settings, "finest_bits"):  # two rounds move a norm's weights by less
            options += ("algorithm.finest_bits=24",)
        made = open_federation(Experiment.from_toml("", [*SMALL, *options]), rows, model=model)
        parts = ("3.weight", "4.weight", "4.bias", "6.weight", "6.bias", "8.bias")
        travelling = {*parts, "4.running_mean", "4.running_var"}
        for state, record in play(made):
            assert set(state.server.weights) == {*travelling, "4.num_batches_tracked"}
            assert record.bytes_up_fp32 == 4 * record.clients * sum(before[name].numel() for name in travelling)
        for schema in (*made.algorithm.down, *made.algorithm.up):
            assert {slot.name.partition("/")[0] for slot in schema.slots} <= travelling
        list(ternfed.federate(model, rows, *SMALL, *options))
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, before[name]) == (name not in travelling), name

    def test_only_trained_weights_are_ternary(self, rows: DataSet) -> None:
        made = open_federation(Experiment.from_toml("", [*SMALL, 'model.trainable=["!0"]']), rows, model=chain())
        assert made.network.ternary == ("2.weight",)
        with pytest.raises(ExperimentError, match="has no layer that can be ternary"):
            open_federation(Experiment.from_toml("", [*SMALL, 'model.trainable=["4"]']), rows, model=chain())

    def test_a_head_that_is_trained_alone_learns(self, rows: DataSet) -> None:
        model = chain()
        options = ("algorithm.name=fedavg", "federation.rounds=8", 'model.trainable=["4"]')
        records = list(ternfed.federate(model, rows, *SMALL, *options))
        assert records[-1].loss < records[0].loss

    def test_what_needs_no_gradient_is_frozen_unless_patterns_say_otherwise(self, rows: DataSet) -> None:
        """As PyTorch's optimizers, `peft` and tables of positions have it."""
        model = chain()
        model[0].requires_grad_(False)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        made = open_federation(Experiment.from_toml("", SMALL), rows, model=model)
        assert made.network.frozen == ("0.weight", "0.bias")
        assert not {"0.weight", "0.bias"} & {slot.name for slot in made.algorithm.up[0].slots}
        list(ternfed.federate(model, rows, *SMALL, "federation.rounds=1"))
        assert torch.equal(model[0].weight, before["0.weight"])
        assert not torch.equal(model[2].weight, before["2.weight"])
        chosen = open_federation(Experiment.from_toml("", [*SMALL, 'model.trainable=["!4"]']), rows, model=model)
        assert chosen.network.frozen == ("4.weight", "4.bias")
        with pytest.raises(ExperimentError, match=r"Sequential has no parameter to train \(requires_grad is false"):
            next(ternfed.federate(model.requires_grad_(False), rows, *SMALL, "algorithm.name=fedavg"))

    @pytest.mark.parametrize("key", ["ternary", "trainable"])
    def test_a_pattern_that_matches_nothing_is_one_sentence(self, rows: DataSet, key: str) -> None:
        with pytest.raises(ExperimentError, match=rf'^model\.{key} = "head": matches no layer and no parameter; there'):
            next(ternfed.federate(chain(), rows, *SMALL, f'model.{key}=["head"]'))

    def test_two_sides_know_by_a_digest_that_they_have_the_same(self, rows: DataSet) -> None:
        def digest(seed: int, *settings: str) -> str | None:
            experiment = Experiment.from_toml("", [*SMALL, f"seed={seed}", *settings])
            return experiment.make_network(rows).digest

        part = 'model.trainable=["linear3"]'
        assert digest(1) is None
        assert digest(1, part) == digest(1, part) != digest(2, part)


class TestCheckpoint:
    def test_the_model_starts_from_the_file(self, rows: DataSet, tmp_path: Path) -> None:
        file, other = str(tmp_path / "start.safetensors"), chain()
        for parameter in other.parameters():
            parameter.data.mul_(0.5)
        save_file(other.state_dict(), file)
        model = chain()
        options = ("algorithm.name=fedavg", "federation.rounds=1", f"model.weights={file}", 'model.trainable=["4"]')
        list(ternfed.federate(model, rows, *SMALL, *options))
        assert torch.equal(model[0].weight, other[0].weight)
        assert not torch.equal(model[4].weight, other[4].weight)

    def test_a_shared_tensor_may_stand_under_one_of_its_names(self, sentences: DataSet, tmp_path: Path) -> None:
        file, start = str(tmp_path / "start.safetensors"), reader(tied=True)
        tensors = {name: tensor.clone() + 1 for name, tensor in start.state_dict().items() if name != "head.weight"}
        save_file(tensors, file)
        experiment = Experiment.from_toml("", [*SMALL, f"model.weights={file}"])
        made = open_federation(experiment, sentences, model=reader(tied=True))
        assert torch.equal(made.network.weights()["head.weight"], tensors["embed.weight"])
        assert Experiment.from_toml(experiment.to_toml()) == experiment

    def test_a_run_is_not_resumed_with_other_frozen_weights(self, rows: DataSet, tmp_path: Path) -> None:
        def made(seed: int) -> Federation:
            torch.manual_seed(seed)
            model = nn.Sequential(nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3))
            return open_federation(Experiment.from_toml("", [*SMALL, 'model.trainable=["!0"]']), rows, model=model)

        (state, record), *_ = play(made(0))
        before = Saved(record.round, *pack(state, made(0).network.digest))
        with RunFolder.create(tmp_path / "run", made(0).experiment) as folder:
            assert next(simulate.record(made(0), folder, before)).round == 2
            with pytest.raises(RunError, match=r"does not fit \(the frozen weights were others"):
                next(simulate.record(made(1), folder, before))

    def test_what_does_not_fit_is_one_sentence(self, rows: DataSet, tmp_path: Path) -> None:
        file = tmp_path / "start.safetensors"

        def sentence() -> str:
            with pytest.raises(ExperimentError) as raised:
                next(ternfed.federate(chain(), rows, *SMALL, f"model.weights={file}"))
            return str(raised.value).partition(": ")[2]

        good = chain().state_dict()
        assert sentence() == "there is no such file"
        file.write_bytes(b"nothing of the kind")
        assert sentence().startswith("is no safetensors file")
        save_file({name: tensor for name, tensor in good.items() if name != "2.bias"}, file)
        assert sentence() == "lacks 2.bias of the model"
        save_file({**good, "9.bias": torch.zeros(2)}, file)
        assert sentence() == "holds 9.bias, which the model does not have"
        save_file({**good, "2.bias": torch.zeros(3)}, file)
        assert sentence() == "2.bias has the shape (3,) there, (16,) in the model"
        save_file({**good, "2.bias": torch.full((16,), torch.nan)}, file)
        assert sentence() == "2.bias holds NaN or infinity"
