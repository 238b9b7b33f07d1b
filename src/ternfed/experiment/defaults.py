"""What an experiment's settings are where its file says nothing.

Everything here works on plain tables: what a user gave, before it becomes an experiment. `fill` completes it. The
tables below are the paper's Table I and basic configuration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ternfed.data.sets import is_text
from ternfed.data.text import LENGTH
from ternfed.experiment.sections import DataSettings, TrainingSettings
from ternfed.experiment.settings import ExperimentError, Table, choices, convert, shown, unknown
from ternfed.task import TASKS

COMMON: Mapping[str, Table] = {
    "data": {"dataset": "digits", "partition": "iid", "hold_out": 0.05},
    "task": {"name": "classification"},
    "model": {"name": "mlp", "ternary": "inner"},
    "federation": {"clients": 10, "participation": 1.0, "rounds": 100, "aggregate": "own"},
    "training": {
        "optimizer": "sgd", "rate": 0.01, "weight_decay": 0.0, "epochs": 5, "batch": 64,
        "schedule": "constant", "precision": "float32",
    },
    "algorithm": {"name": "tfedavg"},
    "privacy": {},
}  # fmt: skip
"""What applies unless one of the tables below says otherwise; a later table overrides an earlier one."""

BY_DATASET: Mapping[str, Mapping[str, Table]] = {
    "digits": {
        "data": {"hold_out": 0.07},
        "federation": {"clients": 20, "participation": 0.5, "rounds": 30},
        "training": {"rate": 0.1, "batch": 16},
    },
    "mnist": {"data": {"hold_out": 0.02}, "federation": {"clients": 100, "participation": 0.1}},
    "cifar10": {
        "data": {"hold_out": 0.02},
        "model": {"name": "resnet18"},
        "federation": {"clients": 5},
        "training": {"epochs": 10, "schedule": "exponential"},
    },
    "text": {
        "data": {"partition": "natural", "length": LENGTH},
        "task": {"name": "language"},
        "model": {"name": "charlstm"},
        "training": {"epochs": 1, "batch": 10},
    },
    "shakespeare": {
        "data": {"partition": "natural", "length": LENGTH, "hold_out": 0.02},
        "task": {"name": "language"},
        "model": {"name": "charlstm"},
        "federation": {"clients": 425, "participation": 0.0235},
        "training": {"epochs": 1, "batch": 10},
    },
    "flwrlabs/shakespeare": {
        "data": {"partition": "natural", "hold_out": 0.02},
        "task": {"name": "language"},
        "model": {"name": "charlstm"},
        "federation": {"participation": 0.01},
        "training": {"epochs": 1, "batch": 10},
    },
    "flwrlabs/femnist": {
        "data": {"partition": "natural", "hold_out": 0.01},
        "model": {"name": "cnn"},
        "federation": {"participation": 0.003},
        "training": {"epochs": 1, "batch": 10},
    },
}
"""The paper's basic configuration; `digits` and text have ones of our own. Every hold-out is at least 100 samples.

`text` is every `text:FOLDER`.
"""

BY_MODEL: Mapping[str, Mapping[str, Table]] = {
    "cnn": {
        "model": {"ternary": ["conv2", "conv3", "conv4", "conv5"]},
        "training": {"optimizer": "adam", "rate": 0.001},
    },
    "resnet18": {"training": {"optimizer": "adam", "rate": 0.002}},
    "charlstm": {"training": {"optimizer": "adam", "rate": 0.003}},
    "chartransformer": {"training": {"optimizer": "adam", "rate": 0.001}},
}
"""Table I, except for ResNet18*: at its 0.008 FedAvg does no better than at 0.002, and T-FedAvg collapses.

For text, Adam: on twenty of Shakespeare's roles the LSTM's training loss is 2.70 after six rounds of FedAvg, and with
SGD at 1.0 still 3.18 after eleven.

The CNN's linear layers stay in full precision, as the paper's 2201.84 Mb say they did (models.py).
"""

BY_ALGORITHM: Mapping[str, Mapping[str, Table]] = {
    "centralized": {"training": {"epochs": 1}},
}
"""One epoch per round: a hundred rounds are the hundred epochs of the paper's baseline."""

DEPENDENT: Mapping[tuple[str, str], Mapping[str, Table]] = {
    **{("data", key): words for key, words in choices(DataSettings).items()},
    ("federation", "aggregate"): {"trimmed_mean": {"trim": 0.2}},
    **{("training", key): words for key, words in choices(TrainingSettings).items()},
}
"""Settings that exist only with one value of another setting, and their defaults."""

FURTHER: Mapping[str, tuple[str, ...]] = {
    "data": ("length", "tokenizer"),
    "task": ("metric",),
    "federation": ("audit",),
    "privacy": ("clip", "noise", "delta"),
}
"""Settings whose defaults depend on more than one word."""

KEYS: Mapping[str, tuple[str, ...]] = {
    section: (
        *COMMON[section],
        *(key for (of, _), words in DEPENDENT.items() if of == section for table in words.values() for key in table),
        *FURTHER.get(section, ()),
    )
    for section in ("data", "task", "federation", "training", "privacy")
}
"""Every setting of the sections that are the same for all networks and algorithms."""

TOP = ("name", "seed")


def defaults(dataset: str, model: str | None = None, algorithm: str = "tfedavg") -> dict[str, Table]:
    """The settings of every section for this data set, its usual model or another, and this algorithm."""
    by_dataset = BY_DATASET.get("text" if dataset.startswith("text:") else dataset, {})
    model = model or by_dataset.get("model", COMMON["model"])["name"]
    layers = (COMMON, by_dataset, BY_MODEL.get(model, {}), BY_ALGORITHM.get(algorithm, {}))
    merged = {
        section: {key: value for layer in layers for key, value in layer.get(section, {}).items()} for section in COMMON
    }
    merged["data"]["dataset"], merged["model"]["name"], merged["algorithm"]["name"] = dataset, model, algorithm
    return merged


def fill(table: Mapping[str, Any]) -> Table:
    """The complete table of an experiment: what was given, and the defaults for everything else."""
    given = given_sections(table)
    _imply_partition(given["data"])
    dataset = _name(given, "data", "dataset") or COMMON["data"]["dataset"]
    algorithm = _name(given, "algorithm", "name") or COMMON["algorithm"]["name"]
    base = defaults(dataset, _name(given, "model", "name"), algorithm)
    filled = {section: {**base[section], **given[section]} for section in COMMON}
    _fill_metric(filled["task"], given["task"])
    if not is_text(dataset) and filled["data"].get("length") == "none":
        del filled["data"]["length"]
    own_number = "clients" in {**BY_DATASET.get(dataset, {}).get("federation", {}), **given["federation"]}
    if filled["data"]["partition"] == "natural" and not own_number:
        filled["federation"]["clients"] = 0  # counted in the data
    clients = filled["federation"]["clients"]
    if "participation" not in given["federation"] and isinstance(clients, int) and clients >= 1:
        # A few clients of a data set that usually has many: one of them takes part.
        filled["federation"]["participation"] = max(base["federation"]["participation"], 1 / clients)
    for (section, key), words in DEPENDENT.items():
        _fill_dependent(section, key, words, filled[section], given[section])
    return {"name": table.get("name", default_name(dataset, algorithm)), "seed": table.get("seed", 0), **filled}


def default_name(dataset: str, algorithm: str) -> str:
    """`mnist-tfedavg`; for a `module:function`, the name of the function, for a folder its own."""
    ends = (re.split(r"[:/\\]", name.rstrip("/\\"))[-1] for name in (dataset, algorithm))
    return "-".join(re.sub(r"[^\w.-]", "-", end, flags=re.ASCII).lstrip(".") for end in ends)


def given_sections(table: Mapping[str, Any]) -> dict[str, Table]:
    """A copy of each section that was given, {} for the others; unknown keys are refused in the sections of `KEYS`."""
    everything = [*TOP, *(f"{section}.{key}" for section, keys in KEYS.items() for key in keys)]
    for key, value in table.items():
        if key not in (*COMMON, *TOP):
            raise unknown(key, value, [*TOP, *COMMON], everything)
        if key in COMMON and not isinstance(value, Mapping):
            raise ExperimentError(f"{key} = {shown(value)}: a table of settings is needed, [{key}] in TOML")
        for name in value if key in KEYS else ():
            if name not in KEYS[key]:
                own = [f"{key}.{other}" for other in KEYS[key]]
                raise unknown(f"{key}.{name}", value[name], own, everything)
    return {section: dict(table.get(section, {})) for section in COMMON}


def _name(given: Mapping[str, Table], section: str, key: str) -> str | None:
    value = given[section].get(key)
    return None if value is None else str(convert(value, str, f"{section}.{key}"))


def _imply_partition(data: Table) -> None:
    """`classes_per_client = 2` alone says which partition is meant."""
    implied = {key: choice for choice, table in DEPENDENT["data", "partition"].items() for key in table if key in data}
    if "partition" not in data and implied:
        if len(implied) > 1:
            first, second = list(implied)[:2]
            raise ExperimentError(
                f"data.{second} = {shown(data[second])}: "
                f"belongs to another partition than data.{first}; one of the two is allowed"
            )
        data["partition"] = next(iter(implied.values()))


def _fill_metric(task: Table, given: Mapping[str, Any]) -> None:
    """Each task has a metric of its own, which another task does not keep."""
    if "metric" not in given:
        task["metric"] = next(iter(TASKS.get(str(task["name"]), {"own": None})))


def _fill_dependent(
    section: str, key: str, words: Mapping[str, Table], filled: Table, given: Mapping[str, Any]
) -> None:
    chosen = filled[key]
    for choice, settings in words.items():
        for name, default in settings.items():
            if given.get(name, "none") == "none":
                filled.pop(name, None)
            elif choice != chosen:
                raise ExperimentError(
                    f"{section}.{name} = {shown(given[name])}: "
                    f"has no meaning with {key} = {shown(chosen)}, only with {shown(choice)}"
                )
            if choice == chosen:
                filled.setdefault(name, default)
