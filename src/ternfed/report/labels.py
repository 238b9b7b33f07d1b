"""Settings in words: what a table calls data, networks and algorithms, and which groups are compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ternfed.experiment.named import about, find_algorithm
from ternfed.experiment.settings import Table, shown, write
from ternfed.paper.costs import which_ternary
from ternfed.paper.groups import Group

LONGEST = 32
"""Letters of a name in a table or figure."""
LAYERS = {"inner": "inner layers", "first": "first layer too", "all": "all layers"}
"""Which layers are ternary."""


def algorithm_label(name: str) -> str:
    """What a table calls an algorithm."""
    known = about(name)
    return _own(name) if known is None else known.label


def dataset_label(name: str) -> str:
    """What a table calls a data set."""
    known = {"mnist": "MNIST", "cifar10": "CIFAR-10", "digits": "Digits", "shakespeare": "Shakespeare"}
    return known.get(name) or _own(name)


def network_label(name: str, activation: str | None = None) -> str:
    """What a table calls a network."""
    if name == "mlp" and activation == "none":
        return "linear MLP"
    known = {"mlp": "MLP", "cnn": "CNN", "resnet18": "ResNet18*", "charlstm": "LSTM", "chartransformer": "transformer"}
    return known.get(name) or _own(name)


class Comparison(NamedTuple):
    """What the algorithms of one comparison share."""

    data: str
    model: str
    split: str
    clients: str

    def text(self, with_clients: bool = False) -> str:
        who = f", {self.clients.replace(', ', ' clients, ', 1)}" if with_clients else ""
        return f"{self.data}, {self.model}, {self.split}{who}"


def comparison_of(group: Group) -> Comparison:
    return Comparison(data_label(group), model_label(group), split_label(group), clients_label(group))


def data_label(group: Group) -> str:
    """The data set: ternfed's by its label, a user's own by what it calls itself, or else by its function."""
    setting = str(group.setting("data", "dataset"))
    return dataset_label(setting) if group.data_name is None else _clipped(group.data_name)


def model_label(group: Group) -> str:
    """The network, with what makes it another than the paper's."""
    model = group.settings["model"]
    name = network_label(str(model["name"]), model.get("activation"))
    hidden, width = model.get("hidden"), model.get("width")
    if model["name"] == "mlp" and isinstance(hidden, list) and hidden != [30, 20]:
        return f"{name} {_own('-'.join(map(str, hidden)))}"
    if model["name"] == "resnet18":
        wide = f", width {width}" if width not in (None, 64) else ""
        return f"{name}{' with GroupNorm' * (model.get('norm') == 'group')}{wide}"
    return name


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
        case "natural":
            return "natural"
    return _own(str(data["partition"]))


def clients_label(group: Group) -> str:
    if group.central:
        return "–"
    federation = group.settings["federation"]
    return f"{federation['clients']}, λ = {federation['participation']:g}"


def method_label(group: Group) -> str:
    """The algorithm, with the part that it plays, or with its preset."""
    name = algorithm_label(group.algorithm)
    match group.role:
        case "tuned":
            return f"{name}, tuned"
        case "frozen":
            return f"{name}{' as published' * (group.preset == 'paper')}, frozen (control)"
        case "published":
            return (
                f"{name}, rate as published" if group.preset is None else f"{name} as published (preset {group.preset})"
            )
    return name if group.preset is None else f"{name} ({_own(group.preset)} preset)"


def rounds_label(group: Group) -> str:
    """`100 × 5`: rounds and local epochs; how far it is, where no seed is finished."""
    wanted, epochs = group.setting("federation", "rounds"), group.setting("training", "epochs")
    return f"{wanted} × {epochs}" if group.finished else f"{group.length} of {wanted} × {epochs}, unfinished"


def distinguish(groups: Sequence[Group]) -> dict[int, str]:
    """A label for each group of one comparison, by its place: its algorithm, and what sets it apart from its likes."""
    return dict(enumerate(_told_apart([method_label(group) for group in groups], groups)))


def _told_apart(labels: Sequence[str], groups: Sequence[Group]) -> list[str]:
    """The labels of the groups; of those who share one, each with what the others of them have not."""
    told = [*labels]
    for label in dict.fromkeys(labels):
        alike = [place for place, other in enumerate(labels) if other == label]
        flat = {place: dict(_flatten(groups[place].settings)) for place in alike}
        keys = dict.fromkeys(key for values in flat.values() for key in values)
        differing = [key for key in keys if len({shown(values.get(key)) for values in flat.values()}) > 1]
        for place in alike:
            parts = [_part(key, flat[place][key], groups[place]) for key in differing if key in flat[place]]
            told[place] = ", ".join([label, *parts[:2]])
        if len({told[place] for place in alike}) < len(alike):
            for place in alike:
                told[place] = f"{label}, {_own(groups[place].name)}"
    return told


def _part(key: tuple[str, str], value: Any, group: Group) -> str:
    return LAYERS[which_ternary(group.settings)] if key == ("model", "ternary") else f"{key[1]} {_number(value)}"


def point_labels(groups: Sequence[Group]) -> list[str]:
    """What each point of one comparison is called: short, and by rates only where nothing else tells it apart."""
    return _told_apart([setting_label(group, groups) for group in groups], groups)


SHORT = {
    "bits_up": "{} up",
    "bits_down": "{} down",
    "finest_bits": "steps of {} bits",
    "upload": "{} up",
    "difference_bits": "{} up",
    "hold": "held by {}",
    "latent_adam": "latents at {}",
}
"""Settings that stand in the name of a point, in fewer words than they are called by."""
ALWAYS = ("bits_up", "bits_down")
"""Those that stand there whenever they differ, the default too."""
ALONE = "upload"
"""The one that stands there where it is not the default, even if no other point has another."""
OFF = {"settle_at_decay": "layers never rest"}
"""What a setting that is "none" means, in words."""


def setting_label(group: Group, groups: Sequence[Group]) -> str:
    """The algorithm, with its ternary layers and those of its settings that differ among groups of the same algorithm.

    The bits of a weight always stand there, everything else only where it is not the default, or that of its preset.
    """
    alike = [other for other in groups if other.algorithm == group.algorithm]
    parts = [method_label(group)]
    if group.flips() is not None and len({which_ternary(other.settings) for other in alike}) > 1:
        parts.append(LAYERS[which_ternary(group.settings)])
    defaults = _defaults(group)
    for key, value in group.settings["algorithm"].items():
        differs = any(other.setting("algorithm", key) != value for other in alike)
        told = key != "preset" and (differs or (key == ALONE and group.preset is None))
        if told and (key in ALWAYS or value != defaults.get(key)):
            parts.append(_setting(key, value))
    return ", ".join(parts)


def _defaults(group: Group) -> Table:
    """The settings that its algorithm has unless told, or by its preset; of a user's own algorithm nothing is known."""
    if about(group.algorithm) is None:
        return {}
    found = find_algorithm(group.algorithm)
    defaults: Table = write(found.presets.get(str(group.preset)) or found.settings())
    return defaults


def _setting(key: str, value: Any) -> str:
    """A setting of an algorithm in words: `2 up`, `sparsity 0.01`, `differences`."""
    words = key.replace("_", " ")
    if key in SHORT:
        return SHORT[key].format(value)
    if value == "none":
        return OFF.get(key, f"{words} none")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{words} {value:g}"
    return _own(value) if isinstance(value, str) else f"{words} {_own(str(value))}"


def by_comparison(groups: Iterable[Group]) -> dict[Comparison, list[Group]]:
    """Groups to be compared with each other."""
    found: dict[Comparison, list[Group]] = {}
    for group in groups:
        if not group.central:
            found.setdefault(comparison_of(group), []).append(group)
    for group in groups:  # has all data in one place, and so belongs to every federation on the same data
        same = [each for each in found if each[:3] == comparison_of(group)[:3]] if group.central else []
        for comparison in same:
            found[comparison].insert(0, group)
    return found


def _flatten(settings: Table) -> Iterator[tuple[tuple[str, str], Any]]:
    for section, values in settings.items():
        if isinstance(values, Mapping):
            yield from (((section, key), value) for key, value in values.items())


def _own(name: str) -> str:
    """A name of the user's own: of `module:function` the function, and no more than a figure has room for."""
    return _clipped(name.rpartition(":")[2] or name)


def _clipped(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else _own(str(value))
