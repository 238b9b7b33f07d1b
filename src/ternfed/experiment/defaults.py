"""What an experiment's settings are where its file says nothing, and how later settings replace earlier ones.

Everything here works on plain tables: what a user gave, before it is made whole (`fill`) and checked
(`experiment.py`). The paper's Table I and basic configuration are the tables below.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from ternfed.experiment.settings import ExperimentError, Table, convert, shown, unknown

COMMON: Mapping[str, Table] = {
    "data": {"dataset": "digits", "partition": "iid", "hold_out": 0.05},
    "model": {"name": "mlp", "ternary": "inner"},
    "federation": {"clients": 10, "participation": 1.0, "rounds": 100, "aggregate": "own"},
    "training": {
        "optimizer": "sgd", "rate": 0.01, "weight_decay": 0.0, "epochs": 5, "batch": 64,
        "schedule": "constant", "precision": "float32",
    },
    "algorithm": {"name": "tfedavg"},
}  # fmt: skip
"""What holds where none of the tables below says otherwise; a later table goes before an earlier one."""

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
}
"""The paper's basic configuration; `digits` is a small one of our own. Every hold-out is at least 100 samples."""

BY_MODEL: Mapping[str, Mapping[str, Table]] = {
    "cnn": {
        "model": {"ternary": ["conv2", "conv3", "conv4", "conv5"]},
        "training": {"optimizer": "adam", "rate": 0.001},
    },
    "resnet18": {"training": {"optimizer": "adam", "rate": 0.002}},
}
"""Table I, but for ResNet18*: at its 0.008 FedAvg is no better than at 0.002, and T-FedAvg collapses.

The CNN's linear layers stay in full precision, as the paper's 2201.84 Mb say they did (models.py).
"""

BY_ALGORITHM: Mapping[str, Mapping[str, Table]] = {
    "centralized": {"training": {"epochs": 1}},
}
"""One epoch a round: a hundred rounds are the hundred epochs of the paper's baseline."""

DEPENDENT: Mapping[tuple[str, str], Mapping[str, Table]] = {
    ("data", "partition"): {
        "classes": {"classes_per_client": 2}, "unbalanced": {"balance": 0.5}, "dirichlet": {"alpha": 0.5},
    },
    ("federation", "aggregate"): {"trimmed_mean": {"trim": 0.2}},
    ("training", "schedule"): {"exponential": {"decay": 0.95, "decay_every": 5}},
    ("training", "optimizer"): {"sgd": {"momentum": 0.0}},
}  # fmt: skip
"""Settings that exist only with one value of another setting, and their defaults."""

LATER: Mapping[str, Table] = {"federation": {"aggregate": "own"}}
"""Settings that the first runs did not have, and what they did."""

KEYS: Mapping[str, tuple[str, ...]] = {
    section: (
        *COMMON[section],
        *(
            key
            for (of, _), choices in DEPENDENT.items()
            if of == section
            for table in choices.values()
            for key in table
        ),
    )
    for section in ("data", "federation", "training")
}
"""Every setting of the sections that are the same for all networks and algorithms."""

TOP = ("name", "seed")


def defaults(dataset: str, model: str | None = None, algorithm: str = "tfedavg") -> dict[str, Table]:
    """The settings of every section for this data set, its usual model or another, and this algorithm."""
    by_dataset = BY_DATASET.get(dataset, {})
    model = model or by_dataset.get("model", COMMON["model"])["name"]
    layers = (COMMON, by_dataset, BY_MODEL.get(model, {}), BY_ALGORITHM.get(algorithm, {}))
    merged = {
        section: {key: value for layer in layers for key, value in layer.get(section, {}).items()} for section in COMMON
    }
    merged["data"]["dataset"], merged["model"]["name"], merged["algorithm"]["name"] = dataset, model, algorithm
    return merged


def fill(table: Mapping[str, Any]) -> Table:
    """The whole table of an experiment: what was given, and the defaults of everything else."""
    given = _sections(table)
    _imply_partition(given["data"])
    dataset = _name(given, "data", "dataset") or COMMON["data"]["dataset"]
    algorithm = _name(given, "algorithm", "name") or COMMON["algorithm"]["name"]
    base = defaults(dataset, _name(given, "model", "name"), algorithm)
    filled = {section: {**base[section], **given[section]} for section in COMMON}
    clients = filled["federation"]["clients"]
    if "participation" not in given["federation"] and isinstance(clients, int) and clients >= 1:
        # A few clients of a data set that usually has many: one of them takes part.
        filled["federation"]["participation"] = max(base["federation"]["participation"], 1 / clients)
    for (section, key), choices in DEPENDENT.items():
        _fill_dependent(section, key, choices, filled[section], given[section])
    return {"name": table.get("name", default_name(dataset, algorithm)), "seed": table.get("seed", 0), **filled}


def with_later(table: Table) -> Table:
    """A table saved beside a run's results, with the settings that came after it: so runs of all ages compare."""
    known = {section: own for section, own in LATER.items() if isinstance(table.get(section), dict)}
    return {**table, **{section: {**own, **table[section]} for section, own in known.items()}}


def default_name(dataset: str, algorithm: str) -> str:
    """`mnist-tfedavg`; of an own `module:function`, the function."""
    return "-".join(name.rpartition(":")[2] for name in (dataset, algorithm))


def override(table: Mapping[str, Any], settings: Iterable[str]) -> Table:
    """The table with `key=value` settings in it. Values are TOML; a bare word is text.

    The later goes before the earlier as a whole: another algorithm or preset drops the settings of the one before,
    another model its options, another partition, schedule or optimizer what belonged to the old one.
    """
    new = _parse_settings(settings)
    result = {key: dict(value) if isinstance(value, Mapping) else value for key, value in table.items()}
    old = _sections({key: value for key, value in result.items() if key in COMMON})
    if _was_default_name(table):
        result.pop("name", None)
    new_data = new.get("data", {})
    if "partition" not in new_data and any(key in new_data for key in _belonging("data", "partition")):
        old["data"].pop("partition", None)  # to be implied by the later setting
        _drop(old["data"], _belonging("data", "partition"))
    for section, key in DEPENDENT:
        if _changes(old, new, section, key):
            _drop(old[section], _belonging(section, key))
    if _changes(old, new, "model", "name"):
        old["model"].clear()
    if _changes(old, new, "algorithm", "name"):
        old["algorithm"].clear()
    elif _changes(old, new, "algorithm", "preset"):
        _drop(old["algorithm"], [key for key in old["algorithm"] if key != "name"])
    for section, values in old.items():
        if values or section in new:
            result[section] = {**values, **new.get(section, {})}
    return {**result, **{key: value for key, value in new.items() if key not in COMMON}}


def _sections(table: Mapping[str, Any]) -> dict[str, Table]:
    """A copy of each section that was given, {} for the others; unknown keys of the common sections are refused."""
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


def _fill_dependent(
    section: str, key: str, choices: Mapping[str, Table], filled: Table, given: Mapping[str, Any]
) -> None:
    chosen = filled[key]
    for choice, settings in choices.items():
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


def _belonging(section: str, key: str) -> list[str]:
    return [name for table in DEPENDENT[section, key].values() for name in table]


def _changes(old: Mapping[str, Table], new: Mapping[str, Any], section: str, key: str) -> bool:
    before = old[section].get(key, COMMON[section].get(key) if section == "algorithm" else None)
    return key in new.get(section, {}) and new[section][key] != before


def _drop(table: Table, keys: Iterable[str]) -> None:
    for key in keys:
        table.pop(key, None)


def _was_default_name(table: Mapping[str, Any]) -> bool:
    try:
        names = table["data"]["dataset"], table["algorithm"]["name"]
        return bool(table["name"] == default_name(*names))
    except (KeyError, TypeError, AttributeError):
        return False


def _parse_settings(settings: Iterable[str]) -> Table:
    new: Table = {}
    for setting in settings:
        key, equals, text = (part.strip() for part in setting.partition("="))
        section, _, name = key.rpartition(".")
        if not (equals and name):
            raise ExperimentError(f"{shown(setting)}: key=value is needed, federation.rounds=5 for example")
        if section == "":
            new[name] = _parse_value(text)
        else:
            new.setdefault(section, {})[name] = _parse_value(text)
    _sections({key: value for key, value in new.items() if key not in ("model", "algorithm")})
    return new


def _parse_value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = parsed["value"]
    return value if len(parsed) == 1 and isinstance(value, bool | int | float | str | list) else text
