"""The table of what was aimed at: reached, or missed by how much."""

from __future__ import annotations

from collections.abc import Sequence

from ternfed.paper.costs import sent
from ternfed.paper.groups import Group
from ternfed.paper.targets import Aim, Measure, aims
from ternfed.report.accuracy import accuracy_text
from ternfed.report.labels import dataset_label, network_label, rounds_label
from ternfed.report.tables import NONE, Sheet


def targets(groups: Sequence[Group]) -> Sheet | None:
    """One row per aim: what was needed, what came out, by how much it was reached or missed."""
    every = aims(groups)
    if all(aim.reached is None for aim in every):
        return None
    headings = ("T-FedAvg on", "target", "FedAvg", "T-FedAvg", "margin", "")
    rows = tuple((_where(aim), _needed(aim), *_amounts(aim), *_verdict(aim)) for aim in every)
    notes = (
        "Accuracies in percent on test data after the last round, margins in points. Bytes over the whole run, "
        "all layers and headers counted; where the two runs differ in length, bytes per exchange are compared.",
    )
    return Sheet("targets", "Targets of this implementation", headings, rows, texts=2, notes=notes)


def _where(aim: Aim) -> str:
    """What it is about, with what is unusual about its two runs."""
    dataset, model = aim.case
    split = "IID" if aim.classes is None else f"N_c = {aim.classes}"
    parts = [f"{dataset_label(dataset)}, {network_label(model, aim.activation)}, {split}"]
    full, ternary = aim.fedavg, aim.tfedavg
    if ternary is not None and ternary.preset is not None:
        parts.append(f"{ternary.preset} preset")
    if full is not None and ternary is not None and full.planned != ternary.planned:
        parts.append(f"{rounds_label(full)} against {rounds_label(ternary)} rounds × epochs")
    return "; ".join(parts)


def _needed(aim: Aim) -> str:
    match aim.measure:
        case Measure.OVER_FEDAVG:
            return "above FedAvg" if not aim.needed else f"at least FedAvg − {-aim.needed:g}"
        case Measure.OVER_PAPER:
            return f"above the paper's {aim.paper}"
        case Measure.UPLOADS:
            return f"uploads at most 1/{aim.needed:g} of FedAvg's bytes"
        case Measure.DOWNLOADS:
            return f"downloads at most 1/{aim.needed:g} of FedAvg's bytes"
        case Measure.BITS:
            return f"at most {aim.needed:g} bits per ternary weight up"


def _amounts(aim: Aim) -> tuple[str, str]:
    """FedAvg's and T-FedAvg's own."""
    both = (aim.fedavg, aim.tfedavg)
    match aim.measure:
        case Measure.OVER_FEDAVG:
            full, ternary = (NONE if group is None else accuracy_text(group) for group in both)
            return full, ternary
        case Measure.OVER_PAPER:
            return NONE, NONE if aim.tfedavg is None else accuracy_text(aim.tfedavg)
        case Measure.BITS:
            return NONE, NONE if aim.reached is None else f"{aim.reached:.3f}"
    place = 0 if aim.measure is Measure.UPLOADS else 1
    if aim.reached is None:
        return NONE, NONE
    full, ternary = (NONE if group is None else f"{sent(group)[place] / 8e6:,.2f} MB" for group in both)
    return full, ternary


def _verdict(aim: Aim) -> tuple[str, str]:
    """By how much, and whether it was reached."""
    value = aim.reached
    if value is None:
        return NONE, "not run"
    match aim.measure:
        case Measure.UPLOADS | Measure.DOWNLOADS:
            margin, missed = f"1/{value:.1f}", f"missed: 1/{value:.1f}"
        case Measure.BITS:
            margin, missed = f"{aim.needed - value:+.3f}", f"missed by {value - aim.needed:.3f}"
        case _:
            margin, missed = f"{value:+.2f}", f"missed by {aim.needed - value:.2f}"
    return margin, "reached" if aim.holds else missed
