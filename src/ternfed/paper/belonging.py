"""Which groups of runs belong to which table or figure of the paper."""

from __future__ import annotations

from collections.abc import Sequence

from ternfed.experiment.defaults import BY_DATASET
from ternfed.experiment.settings import Table
from ternfed.paper.groups import Group
from ternfed.paper.numbers import CENTRALIZED
from ternfed.paper.rows import CHOOSING

DATASETS, MODELS = (set(names) for names in zip(*CENTRALIZED, strict=True))
"""The paper's."""

MAIN = ("centralized", "communication", "iid", "non-iid", "convergence", "convergence-nc5", "shakespeare")
"""What a row shows that is more than a point of a sweep."""


def belonging(groups: Sequence[Group], name: str) -> list[Group]:
    """The groups of a table or figure of the paper: those whose row says so; without rows, those that look like it."""
    named = [group for group in groups if group.shows(name)]
    return named or [group for group in groups if group.row is None and _looks_like(group, name, groups)]


def apart(groups: Sequence[Group]) -> set[int]:
    """`id` of each group that is nothing but a point of a sweep, of the search, of the ablation or of the frontier."""
    sweeps = [
        group for name in ("participation", "balance", "frontier", *CHOOSING) for group in belonging(groups, name)
    ]
    return {id(group) for group in sweeps if not (group.shows(*MAIN) or (group.row is None and usual(group)))}


def compared(groups: Sequence[Group]) -> list[Group]:
    """Those whose curves are drawn side by side."""
    points = apart(groups)
    return [group for group in groups if id(group) not in points]


def _looks_like(group: Group, name: str, groups: Sequence[Group]) -> bool:
    if name in ("participation", "balance"):
        section, key = ("federation", "participation") if name == "participation" else ("data", "balance")
        return group.setting(section, key) is not None and _is_swept(group, section, key, groups)
    dataset, partition = group.setting("data", "dataset"), group.setting("data", "partition")
    if dataset not in DATASETS or group.setting("model", "name") not in MODELS:
        return False
    iid = partition == "iid" and (group.central or usual(group))
    match name:
        case "centralized":
            return group.central
        case "iid":
            return iid
        case "communication":
            return iid and not group.central
        case "non-iid":
            return partition == "classes" and usual(group)
    return False


def usual(group: Group) -> bool:
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
