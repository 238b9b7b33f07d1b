"""A trained model with everything needed to use it: from a user's module, from a run folder, from a model file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ternfed.algorithms.algorithm import Network
from ternfed.data.values import DataSet, Samples
from ternfed.edge.facts import checked, inputs_of, score_of
from ternfed.edge.inputs import Inputs, ModelError, call
from ternfed.experiment.experiment import Experiment
from ternfed.experiment.named import find_task
from ternfed.experiment.sections import TaskSettings
from ternfed.experiment.settings import read
from ternfed.files import facts_of, load_tensors, shown_name
from ternfed.named_function import check_code
from ternfed.quantize.choice import NoTernaryLayersError, can_be_ternary
from ternfed.quantize.layers import freeze, ternary_weights
from ternfed.quantize.ternary import Ternary, recognise
from ternfed.runs.folder import RunError, read_run
from ternfed.task import CLASSIFICATION, Task
from ternfed.wire import dense, load_tern


@dataclass(frozen=True)
class Trained:
    """A network whose weights are final. What is exported is exactly this."""

    network: nn.Module
    """Plain (no parametrizations), in evaluation mode; its ternary weights hold scale × code."""
    ternary: Mapping[str, Ternary]
    """The weights that are exactly scale × code, by name."""
    inputs: Inputs
    classes: int
    kept_float: Mapping[str, str] = field(default_factory=dict)
    """Weights that were meant to be ternary and are not, and why."""
    settings: Mapping[str, Any] | None = None
    """The table of the experiment that trained it; a network made from it has this network's shape."""
    score: float | None = None
    """On test data, by the task's metric, as the run measured it."""
    round: int | None = None
    task: Task = CLASSIFICATION

    @property
    def weights(self) -> dict[str, Tensor]:
        """All tensors of the network by name, as floats; a parameter with two names is there once."""
        named = {**dict(self.network.named_parameters()), **dict(self.network.named_buffers())}
        return {name: tensor.detach() for name, tensor in named.items()}

    def facts(self) -> dict[str, Any]:
        """What a file says about the model it holds, as JSON has it."""
        other = {} if self.task is CLASSIFICATION else {"task": self.task.name}
        return {
            self.task.metric.measure.name: self.score,
            "classes": self.classes,
            "digest": digest(self.weights),
            "float": dict(self.kept_float),
            "inputs": {key: value for key, value in asdict(self.inputs).items() if value is not None},
            "round": self.round,
            "settings": self.settings,
            "ternary": list(self.ternary),
            **other,
        }


def digest(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 over name, type, shape and values (little-endian, -0 as 0) of every tensor, in the order of the names."""
    state = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        plain = tensor.detach().cpu().contiguous()
        head = [name, str(plain.dtype).removeprefix("torch."), list(plain.shape)]
        state.update(json.dumps(head, separators=(",", ":")).encode())
        if plain.dtype != torch.bool:
            plain = plain + torch.zeros((), dtype=plain.dtype)
        state.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return f"sha256:{state.hexdigest()}"


def trained(
    model: nn.Module,
    inputs: Inputs,
    *,
    classes: int | None = None,
    expected: tuple[str, ...] = (),
    settings: Mapping[str, Any] | None = None,
    score: float | None = None,
    round: int | None = None,
    task: Task = CLASSIFICATION,
) -> Trained:
    """A copy of a user's model, prepared by `ternarize_` or plain, its ternary weights recognised.

    `expected` names weights that should be ternary. One that is not stays float and is listed with the reason: it is
    never quantized here, for that would be another model than the one that was measured.
    """
    try:
        expected = expected or tuple(ternary_weights(model))
        network = freeze(model)
    except NoTernaryLayersError:
        network = deepcopy(model)
    network = network.cpu().eval().requires_grad_(False)
    found: dict[str, Ternary] = {}
    kept: dict[str, str] = {}
    for name, weight in _candidates(network).items():
        ternary = recognise(weight)
        if ternary is not None:
            found[name] = ternary
            weight.copy_(ternary.dense())  # a zero has one sign in all formats
        elif name in expected:
            kept[name] = f"holds {len(torch.unique(weight))} different values, not scale × code"
    if classes is None:
        classes = _outputs(network, inputs)
    return Trained(network, found, inputs, classes, kept, settings, score, round, task)


def from_run(
    folder: str | Path,
    *,
    which: Literal["best", "last"] = "best",
    data_folder: Path | None = None,
    allow: Collection[str] = (),
) -> Trained:
    """The model of a run folder: the one that judged best on held-out data, or that of the last round.

    Code that the folder names (`module:function`) runs only where `allow` names its module.
    """
    path = Path(folder)
    run = read_run(path)
    check_code(run.settings, allow, str(path))
    experiment = Experiment.from_table(run.settings)
    data = experiment.load_data(data_folder)
    network = experiment.make_network(data)
    weights, inside = _read_safetensors(path / f"{which}.safetensors")
    _check_frozen(network, path)
    _load_weights(network.model, weights, str(path), network.frozen)
    number = inside.get("round")
    record = next((each for each in run.rounds if each.round == number), None)
    result = trained(
        network.model, Inputs.of(data), classes=data.classes, expected=network.ternary,
        settings=experiment.to_table(), score=None if record is None else record.score, round=number,
        task=network.task,
    )  # fmt: skip
    if record is not None and record.is_full_precision:
        reason = f"round {number} went by Strategy II, whose model is in full precision"
        return _with_kept(result, dict.fromkeys(result.kept_float, reason))
    return result


def from_file(
    path: str | Path, network: nn.Module | None = None, task: Task | None = None, allow: Collection[str] = ()
) -> Trained:
    """The model of a `.tern` or `.safetensors` file that `export` wrote; its weights are held to their digest.

    The network and the task are made from the settings in the file; a model that was exported without settings needs
    its network given, and one that learned a task of the user's own needs that. Code that the settings name runs only
    where `allow` names its module.
    """
    path = Path(path)
    weights, facts = read_weights(path)
    checked(facts, path)
    task = task_of(path, facts, task, allow)
    inputs = inputs_of(facts, path)
    if network is None:
        network = _network(path, facts, inputs, weights, allow)
    _load_weights(network, weights, str(path))
    result = trained(
        network, inputs, classes=facts["classes"], settings=facts["settings"],
        score=score_of(facts, task.metric.measure.name, path), round=facts["round"], task=task,
    )  # fmt: skip
    if digest(result.weights) != facts["digest"]:
        raise ModelError(f"{path}: its weights do not have the digest it states; the file was changed")
    return _with_kept(result, facts["float"])


def task_of(path: Path, facts: Mapping[str, Any], given: Task | None = None, allow: Collection[str] = ()) -> Task:
    """The task that a model learned: the one given, or that of its settings; never another than it learned."""
    named = (facts.get("settings") or {}).get("task")
    task = given
    if task is None and named is not None:
        check_code({"task": named}, allow, str(path))
        own = read(TaskSettings, named, "task") if isinstance(named, dict) and len(named) == 2 else None
        if own is None:
            raise ModelError(f"{path}: its settings name no task with its metric; give its task")
        task = find_task(own.name, own.metric)
    task = task or CLASSIFICATION
    learned = facts.get("task", CLASSIFICATION.name)
    if learned != task.name:
        raise ModelError(f"{path}: its model learned {shown_name(learned)}, not {task.name}; give its task")
    return task


def open_trained(
    source: str | Path,
    *,
    which: Literal["best", "last"] = "best",
    data_folder: Path | None = None,
    allow: Collection[str] = (),
) -> Trained:
    """The model of a run folder, a `.tern` or a `.safetensors` file."""
    path = Path(source)
    if path.is_dir():
        return from_run(path, which=which, data_folder=data_folder, allow=allow)
    if path.suffix in (".tern", ".safetensors"):
        return from_file(path, allow=allow)
    raise ModelError(f"{path}: a run folder, a .tern or a .safetensors file can be exported")


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The dense tensors and the facts of a `.tern` or `.safetensors` file."""
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if not path.is_file():
        raise ModelError(f"{path}: there is no such file")
    tensors, metadata = load_tern(path)
    return {name: dense(value) for name, value in tensors.items()}, facts_of(metadata)


def _candidates(network: nn.Module) -> dict[str, Tensor]:
    """Every weight that may be ternary, by name; one that several layers share by its first name."""
    return {name: network.get_parameter(name).data for name in can_be_ternary(network)}


def _outputs(network: nn.Module, inputs: Inputs) -> int:
    result = call(network, inputs, 2)
    if not isinstance(result, Tensor) or result.dim() != 2 or len(result) != 2:
        kind = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise ModelError(
            f"{type(network).__name__} returns {kind} for 2 samples; one row of logits per sample is needed"
        )
    return result.shape[1]


def _check_frozen(network: Network, path: Path) -> None:
    """Refuse other weights than those that a run left as they were: they are not in its folder."""
    if network.digest is None:
        return
    _, inside = _read_safetensors(path / "state.safetensors")
    if inside.get("facts", {}).get("frozen") != network.digest:
        raise ModelError(f"{path}: the weights that it did not train were others; has the file model.weights changed?")


def _load_weights(network: nn.Module, weights: Mapping[str, Tensor], where: str, has: tuple[str, ...] = ()) -> None:
    """Load all weights but those that the network has already."""
    try:
        missing, unexpected = network.load_state_dict(dict(weights), strict=False)
    except RuntimeError as error:
        raise ModelError(
            f"{where}: its weights do not fit the network ({str(error).splitlines()[-1].strip()})"
        ) from error
    # A parameter with two names is saved under one.
    own = {*dict(network.named_parameters()), *dict(network.named_buffers())} - set(has)
    wrong = [*(name for name in missing if name in own), *unexpected]
    if wrong:
        raise ModelError(f"{where}: its weights are not those of the network: {', '.join(sorted(wrong)[:3])}")


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not path.is_file():
        raise RunError(f"{path}: there is no such file; has the run reached its first checkpoint?")
    try:
        return load_tensors(path)
    except (ValueError, OSError) as error:
        raise ModelError(f"{path}: is no safetensors file ({error})") from error


def _network(
    path: Path, facts: Mapping[str, Any], inputs: Inputs, weights: Mapping[str, Tensor], allow: Collection[str]
) -> nn.Module:
    if facts["settings"] is None:
        raise ModelError(f"{path}: holds weights without settings to make the network from; give the network")
    dtype = {"uint8": torch.uint8, "int64": torch.int64}.get(inputs.dtype, torch.float32)
    sample = Samples(torch.zeros(1, *inputs.shape, dtype=dtype), torch.zeros(1, dtype=torch.int64))
    shape_only = DataSet(
        "the file", sample, sample, facts["classes"], inputs.mean, inputs.std, vocabulary=inputs.vocabulary
    )
    check_code(facts["settings"], allow, str(path))
    experiment = Experiment.from_table(facts["settings"])
    # Settings are a few bytes that may ask for any amount of memory; the weights of the file really are there.
    asked, held = experiment.network_size(shape_only), sum(tensor.numel() for tensor in weights.values())
    if asked is not None and asked > held:
        raise ModelError(f"{path}: its settings make a network of {asked:,} numbers, and the file holds {held:,}")
    started = replace(experiment.model, weights=None)  # the file itself has them
    return replace(experiment, model=started).make_network(shape_only).model


def _with_kept(result: Trained, kept: Mapping[str, str]) -> Trained:
    return replace(result, kept_float=dict(kept))
