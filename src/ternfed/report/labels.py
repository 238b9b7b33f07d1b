"""Settings in words: what a table calls data, networks and algorithms, and which groups belong to which table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ternfed.experiment.defaults import BY_DATASET
from ternfed.experiment.settings import Table, shown
from ternfed.paper.rows import CHOOSING
from ternfed.report.collect import Group

DATASETS = {"mnist": "MNIST", "cifar10": "CIFAR-10", "digits": "Digits"}
ALGORITHMS = {
    "centralized": "Centralized", "fedavg": "FedAvg", "cmfl": "CMFL", "stc": "STC", "tfedavg": "T-FedAvg",
}  # fmt: skip
LONGEST = 32
"""Letters of a name in a table or figure."""
PAPER_DATA = ("mnist", "cifar10")
PAPER_MODELS = ("mlp", "cnn", "resnet18")


MAIN = ("centralized", "communication", "iid", "non-iid", "convergence", "convergence-nc5")
"""What a row shows that is more than a point of a sweep."""


class Comparison(NamedTuple):
    """What the algorithms of one comparison share."""

    data: str
    model: str
    split: str
    clients: str

    def text(self) -> str:
        return f"{self.data}, {self.model}, {self.split}"


def comparison_of(group: Group) -> Comparison:
    return Comparison(data_label(group), model_label(group), split_label(group), clients_label(group))


def data_label(group: Group) -> str:
    name = str(group.setting("data", "dataset"))
    return DATASETS.get(name) or _own(name)


def model_label(group: Group) -> str:
    """The network, with what makes it another than the paper's."""
    model = group.settings["model"]
    match model["name"]:
        case "mlp":
            name = "linear MLP" if model.get("activation") == "none" else "MLP"
            hidden = model.get("hidden")
            plain = isinstance(hidden, list) and hidden != [30, 20]
            return f"{name} {_own('-'.join(map(str, hidden)))}" if plain else name
        case "cnn":
            return "CNN"
        case "resnet18":
            width = model.get("width")
            return "ResNet18*" if width in (None, 64) else f"ResNet18*, width {width}"
    return _own(str(model["name"]))


def split_label(group: Group) -> str:
    data = group.settings["data"]
    match data["partition"]:
        case "iid":
            return "IID"
        case "classes":
            return f"N_c = {data.get('classes_per_client')}"
        case "unbalanced":
            return f"β = {_number(data.get('balance'))}"
        case "dirichlet":
            return f"Dirichlet α = {_number(data.get('alpha'))}"
    return _own(str(data["partition"]))


def clients_label(group: Group) -> str:
    if group.central:
        return "–"
    federation = group.settings["federation"]
    return f"{federation['clients']}, λ = {federation['participation']:g}"


def algorithm_label(group: Group) -> str:
    name = ALGORITHMS.get(group.algorithm) or _own(group.algorithm)
    return name if group.preset is None else f"{name} ({_own(group.preset)} preset)"


def rounds_label(group: Group) -> str:
    """`100 × 5`: rounds and local epochs; how far it is, where no seed is finished."""
    wanted, epochs = group.setting("federation", "rounds"), group.setting("training", "epochs")
    return f"{wanted} × {epochs}" if group.finished else f"{group.length} of {wanted} × {epochs}, unfinished"


def distinguish(groups: Sequence[Group]) -> dict[int, str]:
    """A label for each group of one comparison, by its place: its algorithm, and what sets it apart from its likes."""
    labels: dict[int, str] = {}
    for name in dict.fromkeys(map(algorithm_label, groups)):
        alike = [place for place, group in enumerate(groups) if algorithm_label(group) == name]
        flat = {place: dict(_flatten(groups[place].settings)) for place in alike}
        keys = dict.fromkeys(key for values in flat.values() for key in values)
        differing = [key for key in keys if len({shown(values.get(key)) for values in flat.values()}) > 1]
        for place in alike:
            parts = [f"{key[1]} {_number(flat[place][key])}" for key in differing if key in flat[place]]
            apart = ", ".join(parts[:2])
            labels[place] = f"{name}, {apart}" if apart else name
        if len({labels[place] for place in alike}) < len(alike):
            labels |= {place: f"{name}, {_own(groups[place].name)}" for place in alike}
    return labels


def by_comparison(groups: Iterable[Group]) -> dict[Comparison, list[Group]]:
    """Groups to be compared with each other."""
    cells: dict[Comparison, list[Group]] = {}
    for group in groups:
        if not group.central:
            cells.setdefault(comparison_of(group), []).append(group)
    for group in groups:  # has all data in one place, and so belongs to every federation on the same data
        same = [cell for cell in cells if cell[:3] == comparison_of(group)[:3]] if group.central else []
        for cell in same:
            cells[cell].insert(0, group)
    return cells


def belonging(groups: Sequence[Group], name: str) -> list[Group]:
    """The groups of a table or figure of the paper: those whose row says so; without rows, those that look like it."""
    named = [group for group in groups if group.shows(name)]
    return named or [group for group in groups if group.row is None and _looks_like(group, name, groups)]


def apart(groups: Sequence[Group]) -> set[int]:
    """`id` of each group that is nothing but a point of a sweep, of the search or of the ablation."""
    sweeps = [group for name in ("participation", "balance", *CHOOSING) for group in belonging(groups, name)]
    return {id(group) for group in sweeps if not (group.shows(*MAIN) or (group.row is None and _usual(group)))}


def compared(groups: Sequence[Group]) -> list[Group]:
    """Those whose curves are drawn side by side."""
    points = apart(groups)
    return [group for group in groups if id(group) not in points]


def _looks_like(group: Group, name: str, groups: Sequence[Group]) -> bool:
    data, of_paper = group.settings["data"], group.setting("model", "name") in PAPER_MODELS
    if name in ("participation", "balance"):
        section, key = ("federation", "participation") if name == "participation" else ("data", "balance")
        return group.setting(section, key) is not None and _is_swept(group, section, key, groups)
    if data["dataset"] not in PAPER_DATA or not of_paper:
        return False
    iid = data["partition"] == "iid" and (group.central or _usual(group))
    match name:
        case "centralized":
            return group.central
        case "iid":
            return iid
        case "communication":
            return iid and not group.central
        case "non-iid":
            return data["partition"] == "classes" and _usual(group)
    return False


def _usual(group: Group) -> bool:
    """Whether as many clients take part as usual with this data, and all hold as much."""
    usual = BY_DATASET.get(group.setting("data", "dataset"), {}).get("federation", {}).get("participation", 1.0)
    return group.setting("federation", "participation") == usual and group.setting("data", "balance") is None


def _is_swept(group: Group, section: str, key: str, groups: Sequence[Group]) -> bool:
    """Whether another group differs in this setting alone."""
    own = _without(group.settings, section, key)
    return any(
        other.setting(section, key) not in (None, group.setting(section, key))
        and _without(other.settings, section, key) == own
        for other in groups
    )


def _without(settings: Table, section: str, key: str) -> Table:
    return {**settings, section: {name: value for name, value in settings[section].items() if name != key}}


def _flatten(settings: Table) -> Iterator[tuple[tuple[str, str], Any]]:
    for section, values in settings.items():
        if isinstance(values, Mapping):
            yield from (((section, key), value) for key, value in values.items())


def _own(name: str) -> str:
    """A name of the user's own: of `module:function` the function, and no more than a figure has room for."""
    name = name.rpartition(":")[2] or name
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else _own(str(value))
