"""A model that starts from a file of weights (`model.weights`), checked by name and shape before anything is loaded."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from ternfed.algorithms.network import put_into
from ternfed.experiment.settings import ExperimentError, shown
from ternfed.files import load_tensors


def load_weights(model: nn.Module, file: str) -> None:
    """Load every parameter and buffer that a checkpoint of the model holds; one that is shared may have any name."""
    where = f"model.weights = {shown(file)}"
    if not Path(file).is_file():
        raise ExperimentError(f"{where}: there is no such file")
    try:
        tensors, _ = load_tensors(Path(file))
    except (ValueError, OSError) as error:
        raise ExperimentError(f"{where}: is no safetensors file ({error})") from error
    wanted = dict(model.state_dict())
    memory = {name: (tensor.data_ptr(), tuple(tensor.shape), tensor.stride()) for name, tensor in wanted.items()}
    held = {memory[name] for name in tensors if name in memory}
    missing = [name for name in wanted if name not in tensors and memory[name] not in held]
    if missing:
        raise ExperimentError(f"{where}: lacks {_some(missing)} of the model")
    unknown = [name for name in tensors if name not in wanted]
    if unknown:
        raise ExperimentError(f"{where}: holds {_some(unknown)}, which the model does not have")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            theirs, own = (tuple(each.shape) for each in (tensor, wanted[name]))
            raise ExperimentError(f"{where}: {name} has the shape {theirs} there, {own} in the model")
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ExperimentError(f"{where}: {name} holds NaN or infinity")
    put_into(model, tensors)


def _some(names: list[str]) -> str:
    return f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
