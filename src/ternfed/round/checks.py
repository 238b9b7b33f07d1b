"""What can be wrong with a model, its task and its data, each said in one sentence before anybody trains."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call

from ternfed.algorithms.algorithm import Network
from ternfed.data.images import normalise
from ternfed.data.values import DataSet, Samples
from ternfed.experiment.experiment import ExperimentError
from ternfed.experiment.settings import shown
from ternfed.runs.records import RESERVED
from ternfed.task import IGNORED, Task


def check_device(device: str) -> None:
    """Refuse a device that this machine does not have."""
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError, NotImplementedError) as error:
        raise ExperimentError(
            f"device = {shown(device)}: this machine has none; {shown('cpu')} is always there"
        ) from error


def check_task(task: Task, data: DataSet) -> None:
    """Refuse targets that are not the task's or not finite, and a metric whose name a record has for something else."""
    data.check()
    if data.train.labels.dtype != task.targets:
        own, wanted = (str(dtype).removeprefix("torch.") for dtype in (data.train.labels.dtype, task.targets))
        raise ExperimentError(f"{task.name}: needs targets of type {wanted}, but those of {data.name} are {own}")
    for samples in (data.train, data.test):
        if (needed := task.needs(samples.labels)) is not None:
            raise ExperimentError(f"{task.name}: needs {needed} as a target, which {data.name} has not")
    strata = task.strata(data.train.labels)
    if strata is not None and strata.dim() != 1:
        raise ExperimentError(f"{task.name}: needs one class per sample, but {data.name} has {tuple(strata.shape)}")
    if task.metric.measure.name in RESERVED:
        raise ExperimentError(
            f"{task.name}: a record has another number named {task.metric.measure.name}; name the metric otherwise"
        )


def check_fit(network: Network, data: DataSet) -> None:
    """Refuse samples that the model cannot take, and targets that its outputs do not fit."""
    if not network.parameters:
        reason = " (requires_grad is false for all; model.trainable chooses)" if network.frozen else ""
        raise ExperimentError(f"{type(network.model).__name__} has no parameter to train{reason}")
    for samples in (data.train, data.test):
        some = samples.take(_telling(samples))
        inputs = normalise(some.inputs, data.mean, data.std)
        outputs = _outputs(network, inputs, data.name)
        _check_classes(network, data, outputs)
        try:
            network.task.loss(outputs, some.labels)
        except Exception as error:  # whatever a user's own task says
            raise ExperimentError(
                f"the model gives outputs of shape {_shape(outputs)}, which do not fit the targets of {data.name}, "
                f"{_shape(some.labels)}, in {network.task.name}: {_first_line(error)}"
            ) from error


def misfit(network: Network, data: DataSet) -> str | None:
    """Why the model cannot take a sample of this data, or of its shape; None where it can."""
    try:
        _outputs(network, data.one(), data.name)
    except ExperimentError as error:
        return str(error)
    return None


def check_batches(network: Network, data: DataSet, parts: Sequence[Tensor], batch: int) -> None:
    """Refuse a batch of one sample where a BatchNorm cannot train on it."""
    single = next((index for index, part in enumerate(parts) if len(part) % batch == 1 or batch == 1), None)
    if single is None or not network.has_statistics:
        return
    try:
        _call(network, data.one(), training=True)
    except ValueError as error:
        size = len(parts[single])
        raise ExperimentError(
            f"training.batch = {batch}: of the {size} samples of client {single} one is left for a batch of its own, "
            f"which BatchNorm cannot train on ({_first_line(error)}); choose another batch size"
        ) from error


def _telling(samples: Samples) -> Tensor:
    """The samples that show most of what can be wrong: the first, those with the largest and the smallest numbers."""
    found = [0]
    for values in (samples.inputs, samples.labels):
        if not values.is_floating_point():
            counted = values.flatten(1).where(values.flatten(1) != IGNORED, 0) if values.dim() > 1 else values[:, None]
            if counted.numel():
                found += [int(counted.amax(1).argmax()), int(counted.amin(1).argmin())]
    return torch.tensor(list(dict.fromkeys(found)))


def _outputs(network: Network, inputs: Tensor, name: str) -> Tensor:
    try:
        outputs = _call(network, inputs)
    except Exception as error:  # a user's own model may raise anything
        kind = f"{str(inputs.dtype).removeprefix('torch.')} of shape {_shape(inputs[0])}"
        ids = f", ids up to {int(inputs.max())}" if inputs.dtype == torch.int64 else ""
        raise ExperimentError(
            f"the model cannot take the samples of {name}, {kind}{ids}: {_first_line(error)}"
        ) from error
    if not isinstance(outputs, Tensor):
        raise ExperimentError(
            f"the model returns a {type(outputs).__name__}; one tensor is needed, the outputs of its samples"
        )
    return outputs


def _check_classes(network: Network, data: DataSet, outputs: Tensor) -> None:
    """Refuse classes that the model has no output for."""
    if network.task.strata(data.train.labels) is None:
        return
    lowest, highest = map(int, torch.aminmax(torch.cat((data.train.labels, data.test.labels))))
    width = outputs.shape[1] if outputs.dim() > 1 else highest + 1
    if lowest < 0 or highest >= width:
        raise ExperimentError(
            f"the labels of {data.name} run from {lowest} to {highest}, and the model has {width} outputs: "
            f"labels from 0 to {width - 1} are needed"
        )


@torch.no_grad()
def _call(network: Network, inputs: Tensor, *, training: bool = False) -> object:
    """The model called once; neither it nor the random numbers change. A large one is not copied."""
    model = network.model
    modes = [(module, module.training) for module in model.modules()]
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        if training:
            network.in_training(model)
        else:
            model.eval()
        with torch.random.fork_rng(devices=[]):
            return functional_call(model, buffers, (inputs,))
    finally:
        for module, mode in modes:
            module.training = mode


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "()"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
