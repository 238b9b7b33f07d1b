"""The table of controls: what learning trits is worth beside a tuned FedAvg and beside trits that never change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ternfed.paper.belonging import compared
from ternfed.paper.controls import Controls, controls_of
from ternfed.paper.costs import times_smaller
from ternfed.paper.groups import Group, difference
from ternfed.report.accuracy import FLIPS, FLIPS_NOTE, SEED_BY_SEED, accuracy_text, flips_text, score_heading
from ternfed.report.labels import by_comparison, distinguish, rounds_label
from ternfed.report.tables import NONE, Sheet


def controls(groups: Sequence[Group]) -> Sheet | None:
    """One row for each group whose trits travel, beside FedAvg at its best rate and beside its own frozen trits."""
    chosen = compared(groups)
    rows, known = [], False
    for comparison, inside in by_comparison(chosen).items():
        own = [group for group in inside if group.role != "frozen" and group.flips() is not None]
        labels = distinguish(own)
        for place, group in enumerate(own):
            found = controls_of(group, chosen)
            known = known or found.tuned is not None or found.frozen is not None
            rows.append((comparison.text(), labels[place], rounds_label(group), *_cells(group, found)))
    if not known:
        return None
    headings = (
        "data", "algorithm", "rounds × epochs", score_heading(chosen), "tuned FedAvg", "T-FedAvg − tuned FedAvg",
        "frozen", "T-FedAvg − frozen", FLIPS, "up, of FedAvg's", "down, of FedAvg's",
    )  # fmt: skip
    notes = (
        f"Test accuracy in percent after the last round. {SEED_BY_SEED} Frozen: the same algorithm with the trits of "
        "its first ternary broadcast for ever; only the scales and what is not ternary learn. What T-FedAvg is ahead "
        "of it is what learning the trits is worth. Tuned FedAvg: at the best of the rates that were tried on "
        "validation data. "
        f"{FLIPS_NOTE} Up and down: bytes over the whole run against FedAvg's float32 messages as really sent.",
    )
    return Sheet("controls", "Controls: tuned FedAvg and frozen trits", headings, tuple(rows), texts=3, notes=notes)


def _cells(group: Group, found: Controls) -> tuple[str, ...]:
    return (
        accuracy_text(group),
        *_beside(group, found.tuned),
        *_beside(group, found.frozen),
        flips_text(group),
        *(_part(group, found.floats, way) for way in ("up", "down")),
    )


def _beside(group: Group, other: Group | None) -> tuple[str, str]:
    """The other's score, and how far this one is ahead of it."""
    points = None if other is None else difference(group, other)
    if other is None or points is None:
        return NONE, NONE
    seeds = "" if points.count == len(group.shown) else f" ({points.count} seed{'s' * (points.count != 1)})"
    return accuracy_text(other), points.text(sign="+") + seeds


def _part(group: Group, full: Group | None, way: Literal["up", "down"]) -> str:
    return NONE if full is None else f"1/{times_smaller(group, full, way):.3g}"
