"""What was aimed at, and whether it was reached: T-FedAvg against FedAvg and against the paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ternfed.report.accuracy import accuracy_text
from ternfed.report.collect import Group
from ternfed.report.costs import against, sent
from ternfed.report.labels import belonging, rounds_label
from ternfed.report.tables import NONE, Sheet

PAPER = {"cnn": 84.46, "resnet18": 87.87}
"""T-FedAvg's accuracies on CIFAR-10, IID."""

Row = tuple[str, str, str, str, str, str]


def targets(groups: Sequence[Group]) -> Sheet | None:
    """Every aim as a row: what was needed, what came out, by how much it was reached or missed."""
    rows = [*_accuracies(groups), *_bytes(groups)]
    if all(row[-1] == "not run" for row in rows):
        return None
    headings = ("T-FedAvg on", "aim", "FedAvg", "T-FedAvg", "margin", "")
    notes = (
        "Accuracies in percent on test data after the last round, margins in points. Bytes over the whole run, "
        "all layers and headers counted; where the two runs differ in rounds, an exchange is compared.",
    )
    return Sheet("targets", "Aims of this implementation", headings, tuple(rows), texts=2, notes=notes)


def _accuracies(groups: Sequence[Group]) -> Iterator[Row]:
    iid, other = belonging(groups, "iid"), belonging(groups, "non-iid")
    for model, name in (("cnn", "CNN"), ("resnet18", "ResNet18*")):
        full, ternary = _pair(iid, "cifar10", model)
        where = _where(f"CIFAR-10, {name}, IID", full, ternary)
        yield _difference(where, "at least FedAvg − 0.5", full, ternary, -0.5)
        yield _above(where, PAPER[model], ternary)
    for model, name in (("cnn", "CNN"), ("resnet18", "ResNet18*")):
        for classes in (2, 5):
            full, ternary = _pair(other, "cifar10", model, classes)
            where = _where(f"CIFAR-10, {name}, N_c = {classes}", full, ternary)
            yield _difference(where, "above FedAvg", full, ternary, 0.0)
    for activation, name in (("none", "linear MLP"), ("relu", "MLP")):
        for split, some in (("IID", None), ("N_c = 2", 2), ("N_c = 5", 5)):
            full, ternary = _pair(other if some else iid, "mnist", "mlp", some, activation)
            yield _difference(_where(f"MNIST, {name}, {split}", full, ternary), "above FedAvg", full, ternary, 0.0)


def _bytes(groups: Sequence[Group]) -> Iterator[Row]:
    full, ternary = _pair(belonging(groups, "iid"), "cifar10", "resnet18")
    where = _where("CIFAR-10, ResNet18*, IID", full, ternary)
    for place, (way, word, most) in enumerate((("up", "uploads", 30.0), ("down", "downloads", 16.0))):
        aim = f"{word} at most 1/{most:g} of FedAvg's bytes"
        if full is None or ternary is None:
            yield where, aim, NONE, NONE, NONE, "not run"
            continue
        times = against(ternary, full, way)
        amounts = (f"{sent(group)[place] / 8e6:,.2f} MB" for group in (full, ternary))
        verdict = "reached" if times >= most else f"missed: 1/{times:.1f}"
        yield where, aim, *amounts, f"1/{times:.1f}", verdict  # type: ignore[misc]
    bits = None if ternary is None else ternary.bits_up()
    aim = "at most 0.6 bit a ternary weight up"
    if bits is None:
        yield where, aim, NONE, NONE, NONE, "not run"
    else:
        verdict = "reached" if bits <= 0.6 else f"missed by {bits - 0.6:.3f}"
        yield where, aim, NONE, f"{bits:.3f}", f"{0.6 - bits:+.3f}", verdict


def _pair(
    groups: Sequence[Group], data: str, model: str, classes: int | None = None, activation: str | None = None
) -> tuple[Group | None, Group | None]:
    """FedAvg's and T-FedAvg's finished runs of one cell, of the same length if there are; not chosen by accuracy.

    T-FedAvg with its own defaults goes before a preset.
    """
    inside = [
        group
        for group in groups
        if group.setting("data", "dataset") == data
        and group.setting("model", "name") == model
        and group.setting("data", "classes_per_client") == classes
        and (activation is None or (group.setting("model", "activation") or "relu") == activation)
        and group.finished
    ]
    ternary = [group for group in inside if group.algorithm == "tfedavg"]
    ternary = [group for group in ternary if group.preset is None] or ternary
    full = [group for group in inside if group.algorithm == "fedavg"]
    pairs = [(one, other) for one in full for other in ternary if rounds_label(one) == rounds_label(other)]
    if pairs:
        return max(pairs, key=lambda pair: len(pair[1].shown))
    return (full[-1] if full else None), (ternary[-1] if ternary else None)


def _where(text: str, full: Group | None, ternary: Group | None) -> str:
    """A cell, with what is unusual about its two runs."""
    parts = [text]
    if ternary is not None and ternary.preset is not None:
        parts.append(f"{ternary.preset} preset")
    if full is not None and ternary is not None and rounds_label(full) != rounds_label(ternary):
        parts.append(f"{rounds_label(full)} against {rounds_label(ternary)} rounds × epochs")
    return "; ".join(parts)


def _difference(where: str, aim: str, full: Group | None, ternary: Group | None, least: float) -> Row:
    one, other = (None if group is None else group.accuracy() for group in (full, ternary))
    texts = [NONE if group is None else accuracy_text(group) for group in (full, ternary)]
    if one is None or other is None:
        return where, aim, texts[0], texts[1], NONE, "not run"
    apart = other.mean - one.mean
    holds = apart >= least if least else apart > 0
    return where, aim, texts[0], texts[1], f"{apart:+.2f}", "reached" if holds else f"missed by {least - apart:.2f}"


def _above(where: str, paper: float, ternary: Group | None) -> Row:
    aim, value = f"above the paper's {paper}", None if ternary is None else ternary.accuracy()
    if ternary is None or value is None:
        return where, aim, NONE, NONE, NONE, "not run"
    apart = value.mean - paper
    return (
        where,
        aim,
        NONE,
        accuracy_text(ternary),
        f"{apart:+.2f}",
        "reached" if apart > 0 else f"missed by {-apart:.2f}",
    )
