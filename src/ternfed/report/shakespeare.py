"""The table of Shakespeare's roles: the next character, each network by each algorithm, beside tuned FedAvg."""

from __future__ import annotations

from collections.abc import Sequence

from ternfed.paper.belonging import belonging
from ternfed.paper.costs import sends_float32, sent, times_smaller
from ternfed.paper.groups import Group, difference
from ternfed.report.accuracy import SEED_BY_SEED, accuracy_text, score_heading, seeds_text
from ternfed.report.labels import model_label, point_labels, rounds_label
from ternfed.report.tables import NONE, Sheet

POINTS, UP, DOWN = 0.5, 25.0, 20.0
"""What is aimed at: T-FedAvg at most so many points behind tuned FedAvg, with at most 1/25 and 1/20 of its bytes."""


def shakespeare(groups: Sequence[Group]) -> Sheet | None:
    """One row for each network and algorithm; None without runs."""
    own = [group for group in belonging(groups, "shakespeare") if group.length]
    if not own:
        return None
    headings = (
        "network", "algorithm", "rounds × epochs", score_heading(own), "− FedAvg", "seeds", "up, of FedAvg's",
        "down, of FedAvg's", "total (MB)", "asked",
    )  # fmt: skip
    notes = (
        "The next of 75 characters in what 425 roles say, 10 roles per round; test accuracy in percent after the last "
        "round, over the last tenth of each role's lines. Rates were chosen on validation data: by runs of 30 rounds "
        "(docs/frontier.md has them), and for the LSTM between two rates by whole runs, which both stand here. With "
        "the transformer all have FedAvg's. "
        f"{SEED_BY_SEED} Up and down: bytes over the whole run, really encoded, against FedAvg's "
        f"float32 messages as really sent. Asked of T-FedAvg: at most {POINTS:g} points behind FedAvg, with at most "
        f"1/{UP:g} of its bytes up and 1/{DOWN:g} down.",
    )
    rows = tuple(
        (model_label(group), label, rounds_label(group), *_cells(group, own))
        for alike in _by_network(own)
        for group, label in zip(alike, point_labels(alike), strict=True)
    )
    return Sheet("shakespeare", "Shakespeare's roles", headings, rows, texts=3, notes=notes).without_empty()


def _cells(group: Group, groups: Sequence[Group]) -> tuple[str, ...]:
    total = f"{sum(sent(group)) / 8e6:,.1f}"
    floats = max((other for other in groups if _is_its_fedavg(other, group)), key=_score, default=None)
    if floats is None or floats is group:
        return accuracy_text(group), NONE, seeds_text(group), NONE, NONE, total, NONE
    points = difference(group, floats)
    up, down = times_smaller(group, floats, "up"), times_smaller(group, floats, "down")
    missed = []
    if points is None or points.mean < -POINTS:
        missed.append("accuracy")
    missed += [word for word, has, needed in (("up", up, UP), ("down", down, DOWN)) if has < needed]
    asked = f"missed: {', '.join(missed)}" if missed else "reached"
    return (
        accuracy_text(group),
        NONE if points is None else points.text(sign="+"),
        seeds_text(group),
        f"1/{up:.3g}",
        f"1/{down:.3g}",
        total,
        asked if group.algorithm == "tfedavg" and group.role != "frozen" else NONE,
    )


def _by_network(groups: Sequence[Group]) -> list[list[Group]]:
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(str(group.setting("model", "name")), []).append(group)
    return [*found.values()]


def _score(group: Group) -> float:
    accuracy = group.accuracy()
    return 0.0 if accuracy is None else accuracy.mean


def _is_its_fedavg(other: Group, group: Group) -> bool:
    """FedAvg in float32 with the same network, data, rounds and epochs, at whatever rate."""
    return (
        other.algorithm == "fedavg"
        and sends_float32(other)
        and all(other.settings[section] == group.settings[section] for section in ("data", "federation"))
        and other.setting("training", "epochs") == group.setting("training", "epochs")
        and other.setting("model", "name") == group.setting("model", "name")
    )
