"""What a shell completes: names of algorithms, data sets, networks, rows, trackers, and keys of settings.

None of these loads PyTorch but the keys, because a shell waits for the answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

DATASETS = (
    "digits",
    "mnist",
    "cifar10",
    "shakespeare",
    "flwrlabs/shakespeare",
    "flwrlabs/femnist",
    "text:",
    "arrays:",
    "parquet:",
)
MODELS = ("mlp", "cnn", "resnet18", "charlstm", "chartransformer")
TRACKERS = ("tensorboard", "mlflow", "wandb", "trackio")
PRESETS = ("paper", "frozen")
SOURCES = Path(__file__).parents[1]


def algorithms() -> list[str]:
    """The files of `algorithms/` that hold a function `algorithm`."""
    files = sorted((SOURCES / "algorithms").glob("*.py"))
    return [file.stem for file in files if re.search(r"^def algorithm\(", file.read_text(encoding="utf-8"), re.M)]


def rows() -> list[str]:
    """The rows of the paper's tables."""
    places = (SOURCES.parents[1] / "experiments", SOURCES / "experiments")
    return sorted({file.stem for place in places for file in place.glob("*.toml")} | {"all"})


def keys() -> list[str]:
    """`section.key=` of every setting that does not belong to one algorithm or network."""
    from ternfed.experiment.experiment import Experiment

    table = Experiment.from_toml("").to_table()
    return [f"{section}.{key}=" for section, own in table.items() if isinstance(own, dict) for key in own]


def one_of(names: Iterable[str] | Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """What completes an argument: those of the names that begin as it does."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in (names() if callable(names) else names) if name.startswith(incomplete)]

    return complete
