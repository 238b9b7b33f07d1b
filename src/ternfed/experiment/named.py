"""Networks, tasks, algorithms and aggregation rules by name: the built-in ones, and a user's own as `module:function`.

A name X is short for `ternfed.models:X`, `ternfed.algorithms.X:algorithm` and `ternfed.aggregation.X:aggregation`.
Which settings there are follows from the function itself: a network's options are its arguments, an algorithm's the
dataclass of its argument `settings`.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from math import prod
from types import ModuleType
from typing import Any, NamedTuple, get_type_hints

import torch
from torch import nn

from ternfed import aggregation, algorithms
from ternfed.aggregation.aggregation import Aggregation
from ternfed.algorithms.algorithm import About, Algorithm, Network
from ternfed.data.values import DataSet
from ternfed.draws import seed_of
from ternfed.experiment.checkpoint import load_weights
from ternfed.experiment.settings import (
    ExperimentError,
    Table,
    convert,
    either,
    either_or_own,
    find_function,
    shown,
    suggestion,
    unknown,
    write,
)
from ternfed.quantize.choice import Choice, NoMatch, NoTernaryLayersError, untrained, without_gradient
from ternfed.quantize.layers import is_prepared
from ternfed.task import TASKS, Task

NETWORKS = ("mlp", "cnn", "resnet18", "charlstm", "chartransformer")

OF_ANY_NETWORK = ("name", "ternary", "trainable", "weights")
"""What can be said of every network; the other settings of a model are its own options."""

FROM_DATA = ("shape", "inputs", "channels", "channels_in", "size", "classes", "vocabulary")
"""Arguments of a network's function that the data set decides."""


class FoundAlgorithm(NamedTuple):
    """What `module:function` holds."""

    function: Callable[..., Algorithm]
    """(network, training, settings) ─▶ Algorithm"""
    settings: type[Any]
    """The dataclass of its settings."""
    presets: Mapping[str, Any]
    """PRESETS of its module: named values of that dataclass."""
    about: About
    """ABOUT of its module; without one, only its name is known."""


def find_algorithm(name: str) -> FoundAlgorithm:
    """The algorithm of that name; ExperimentError if there is none, or if what has that name is not one."""
    key = "algorithm.name"
    if ":" not in name and name not in built_in_algorithms():
        near = suggestion(name, built_in_algorithms())
        known = f"{either_or_own(built_in_algorithms())} is allowed"
        raise ExperimentError(f"{key} = {shown(name)}: {known}{near}")
    function = find_function(key, name if ":" in name else f"{algorithms.__name__}.{name}:algorithm")
    try:
        settings = get_type_hints(function).get("settings")
    except (NameError, TypeError) as error:
        raise ExperimentError(f"{key} = {shown(name)}: its annotations cannot be read ({error})") from error
    if not (isinstance(settings, type) and is_dataclass(settings)):
        raise ExperimentError(f"{key} = {shown(name)}: needs an argument settings, annotated with a dataclass")
    taken = {"name", "preset"} & set(settings.__dataclass_fields__)
    if taken:
        raise ExperimentError(
            f"{key} = {shown(name)}: its settings need another name for {' and '.join(sorted(taken))}"
        )
    module = inspect.getmodule(function)
    about = getattr(module, "ABOUT", About(name.rpartition(":")[2]))
    return FoundAlgorithm(function, settings, getattr(module, "PRESETS", {}), about)


def about(name: str) -> About | None:
    """What a built-in algorithm says about itself; None for any other. Never imports a user's module."""
    return find_algorithm(name).about if name in built_in_algorithms() else None


def with_later(table: Table) -> Table:
    """A table saved beside a run's results, with the settings that came after it: so runs of all ages compare.

    A new setting gets what was done before there was one: its default, unless the algorithm says otherwise. Never
    imports a user's module.
    """
    later: Table = {section: {} for section in table if isinstance(table[section], dict)}
    later["federation"] = {"aggregate": "own"}
    own = table.get("algorithm")
    if isinstance(own, dict) and own.get("name") in built_in_algorithms():
        found = find_algorithm(own["name"])
        base = found.presets.get(str(own.get("preset"))) or found.settings()
        later["algorithm"] = {**write(base), **found.about.before}
    network = table.get("model")
    if isinstance(network, dict) and network.get("name") in NETWORKS:
        own_options = _options(_network_function(network["name"])).items()
        later["model"] = {key: list(value) if isinstance(value, tuple) else value for key, value in own_options}
    later["task"] = {} if "task" in table else {"name": "classification", "metric": "accuracy"}
    # What a damaged file has in place of a section stays as it is, for its reader to refuse.
    known = (each for each in later if isinstance(table.get(each), dict) or (each == "task" and each not in table))
    return {**table, **{section: {**later[section], **table.get(section, {})} for section in known}}


@cache
def built_in_algorithms() -> tuple[str, ...]:
    """The files of `algorithms/` that hold a function `algorithm`."""
    return _files_with(algorithms, "algorithm")


def find_aggregation(name: str, trim: float | None = None) -> Aggregation[Any]:
    """The aggregation rule of that name; ExperimentError where there is none, or it is not made as one."""
    key = "federation.aggregate"
    check_aggregation(name)
    function = find_function(key, name if ":" in name else f"{aggregation.__name__}.{name}:aggregation")
    try:
        found = function() if trim is None else function(trim)
    except (TypeError, ValueError) as error:
        raise ExperimentError(f"{key} = {shown(name)}: {error}") from error
    if not isinstance(found, Aggregation):
        raise ExperimentError(f"{key} = {shown(name)}: returned {type(found).__name__}; an Aggregation is needed")
    return found


def check_aggregation(name: str) -> None:
    """Refuse a name that no aggregation rule can have, without importing a user's module."""
    known = ("own", *built_in_aggregations())
    if ":" not in name and name not in known:
        allowed = f"{either_or_own(known)} is allowed{suggestion(name, known)}"
        raise ExperimentError(f"federation.aggregate = {shown(name)}: {allowed}")


@cache
def built_in_aggregations() -> tuple[str, ...]:
    """The files of `aggregation/` that hold a function `aggregation`."""
    return _files_with(aggregation, "aggregation")


def find_task(name: str, metric: str) -> Task:
    """The task of that name, judged by that metric; ExperimentError where there is none."""
    check_task(name, metric)
    if name in TASKS:
        return TASKS[name][metric]
    made = find_function("task.name", name, Task)()
    if not isinstance(made, Task):
        raise ExperimentError(f"task.name = {shown(name)}: returned {type(made).__name__}; a Task is needed")
    return made


def check_task(name: str, metric: str) -> None:
    """Refuse a name that no task can have, or a metric that is not one of it, without importing a user's module."""
    if ":" in name:
        if metric != "own":
            raise ExperimentError(f"task.metric = {shown(metric)}: has no meaning with {name}, which brings its own")
        return
    if name not in TASKS:
        known = f"{either_or_own(TASKS)} is allowed{suggestion(name, TASKS)}"
        raise ExperimentError(f"task.name = {shown(name)}: {known}")
    if metric not in TASKS[name]:
        known = f"{either(TASKS[name])} is allowed with {shown(name)}{suggestion(metric, TASKS[name])}"
        raise ExperimentError(f"task.metric = {shown(metric)}: {known}")


def _files_with(package: ModuleType, function: str) -> tuple[str, ...]:
    names = (module.name for module in pkgutil.iter_modules(package.__path__))
    return tuple(name for name in names if hasattr(import_module(f"{package.__name__}.{name}"), function))


def network_options(name: str, given: Mapping[str, Any]) -> Table:
    """The options of a network: those given, and its function's defaults for the others."""
    function = _network_function(name)
    hints = get_type_hints(function)
    options = _options(function)
    for key, value in given.items():
        if key not in options:
            raise unknown(f"model.{key}", value, [f"model.{option}" for option in (*OF_ANY_NETWORK, *options)])
    taken = [key for key in OF_ANY_NETWORK if key in options]
    if taken:
        raise ExperimentError(f"model.name = {shown(name)}: needs another name for its argument {taken[0]}")
    values = {**options, **given}
    missing = [key for key, value in values.items() if value is inspect.Parameter.empty]
    if missing:
        raise ExperimentError(f"model.{missing[0]}: is needed, {name} has no default for it")
    return {key: convert(value, hints.get(key, Any), f"model.{key}") for key, value in values.items()}


CATCH_ALL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
"""`*args` and `**kwargs` of a user's function: they name no setting."""


def _options(function: Callable[..., nn.Module]) -> Table:
    """The options of a network's function with their defaults; `empty` where it has none."""
    return {
        parameter.name: parameter.default
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in FROM_DATA and parameter.kind not in CATCH_ALL
    }


def make_network(
    name: str,
    ternary: Choice,
    options: Mapping[str, Any],
    data: DataSet,
    seed: int,
    trainable: Sequence[str] | None = None,
    weights: str | None = None,
) -> Network:
    """The network for this data set, its first weights drawn from the seed or read from a file, its parts chosen."""
    function = _network_function(name)
    facts = _facts(name, data)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_of(seed, "weights"))
        try:
            model = function(**facts, **options)
        except (ValueError, TypeError) as error:
            raise ExperimentError(f"model.name = {shown(name)}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ExperimentError(
            f"model.name = {shown(name)}: returned {type(model).__name__}; a torch.nn.Module is needed"
        )
    return network_of(model, ternary, data, trainable, weights)


def network_size(name: str, options: Mapping[str, Any], data: DataSet) -> int | None:
    """How many numbers a built-in network would have, without making them; None for a user's own."""
    if ":" in name:
        return None
    with torch.device("meta"):
        try:
            model = _network_function(name)(**_facts(name, data), **options)
        except (ValueError, TypeError, RuntimeError) as error:
            raise ExperimentError(f"model.name = {shown(name)}: {error}") from error
    return sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))


def network_of(
    model: nn.Module,
    ternary: Choice,
    data: DataSet,
    trainable: Sequence[str] | None = None,
    weights: str | None = None,
) -> Network:
    """The network of a model, which it takes over: in float32, which all algorithms compute in, its parts chosen.

    Without patterns for what is trained, parameters that need no gradient (`requires_grad`) are frozen.
    """
    _check_own(model)
    model.float()
    if weights is not None:
        load_weights(model, weights)
    key = "model.trainable"
    try:
        frozen = without_gradient(model) if trainable is None else untrained(model, trainable)
        key = "model.ternary"
        return Network.of(model, ternary, frozen=frozen, sample=data.one())
    except NoMatch as error:
        raise ExperimentError(f"{key} = {shown(error.pattern)}: {error.reason}") from error
    except NoTernaryLayersError as error:
        raise ExperimentError(f"{key} = {shown(ternary)}: {error}") from error


def _check_own(model: nn.Module) -> None:
    """Refuse what no message can hold, and a model whose layers are ternary by other means."""
    if is_prepared(model):
        raise ExperimentError("the model is prepared by ternarize_ already; a federation needs the plain one")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_complex():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ExperimentError(f"{name} is {kind}, which cannot travel; keep its real and imaginary part apart")


def _network_function(name: str) -> Callable[..., nn.Module]:
    if ":" not in name and name not in NETWORKS:
        known = f"{either_or_own(NETWORKS)} is allowed{suggestion(name, NETWORKS)}"
        raise ExperimentError(f"model.name = {shown(name)}: {known}")
    return find_function("model.name", name if ":" in name else f"ternfed.models:{name}", nn.Module)


def _facts(name: str, data: DataSet) -> Table:
    """What a network's function may ask about the data."""
    shape = tuple(data.train.inputs.shape[1:])
    facts = {"shape": shape, "inputs": prod(shape), "classes": data.classes}
    if len(shape) == 3:
        facts |= {"channels": shape[0], "channels_in": shape[0], "size": shape[2]}
    if data.vocabulary is not None:
        facts |= {"vocabulary": data.vocabulary}
    wanted = inspect.signature(_network_function(name)).parameters
    if "vocabulary" in wanted and (data.vocabulary is None or (name in NETWORKS and len(shape) != 1)):
        kind = str(data.train.inputs.dtype).removeprefix("torch.")
        raise ExperimentError(
            f"model.name = {shown(name)}: takes sequences of whole numbers, but a sample of {data.name} is {kind} of "
            f"the shape {shape}"
        )
    if name in NETWORKS and data.vocabulary is not None and "vocabulary" not in wanted:
        raise ExperimentError(
            f"model.name = {shown(name)}: takes numbers, but the samples of {data.name} are whole numbers, which stand "
            "for tokens; make them floats where they are measurements"
        )
    if len(shape) != 3 and any(key in wanted for key in ("channels", "channels_in", "size")):
        raise ExperimentError(
            f"model.name = {shown(name)}: takes images, but a sample of {data.name} has the shape {shape}"
        )
    if "size" in wanted and shape[1] != shape[2]:
        raise ExperimentError(
            f"model.name = {shown(name)}: takes square images, but {data.name} has {shape[1]}×{shape[2]}"
        )
    return {key: value for key, value in facts.items() if key in wanted}
