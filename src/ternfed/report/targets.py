"""The table of what is aimed at: reached, or missed by how much."""

from __future__ import annotations

from collections.abc import Sequence

from ternfed.paper.costs import sent
from ternfed.paper.groups import Group
from ternfed.paper.targets import Aim, Measure, aims
from ternfed.report.accuracy import accuracy_text
from ternfed.report.labels import dataset_label, method_label, network_label
from ternfed.report.tables import NONE, Sheet


def targets(groups: Sequence[Group]) -> Sheet | None:
    """One row per aim: what was needed, what came out, by how much it was reached or missed."""
    every = aims(groups)
    if all(aim.reached is None for aim in every):
        return None
    headings = ("T-FedAvg on", "target", "compared with", "it has", "T-FedAvg", "margin", "seeds", "")
    rows = tuple((_where(aim), _needed(aim), *_amounts(aim), *_verdict(aim)) for aim in every)
    notes = (
        "Accuracies in percent on test data after the last round, mean over all seeds of a row; margins in points, "
        "taken seed by seed over the seeds that both rows have, ± their standard deviation. Seeds: of the margin, and "
        "how many are meant. Bytes over the whole run, all layers and headers counted, against the same messages in "
        "float32, four bytes per number; in brackets, against what FedAvg really sent, whose floats are compressed "
        "without loss. Only runs of the same rounds and epochs are compared.",
    )
    return Sheet("targets", "Targets of this implementation", headings, rows, texts=3, notes=notes)


def _where(aim: Aim) -> str:
    dataset, model = aim.target.case
    split = "IID" if aim.classes is None else f"N_c = {aim.classes}"
    first = ", first layer ternary too" if aim.target.ternary == "first" else ""
    return f"{dataset_label(dataset)}, {network_label(model, aim.target.activation)}, {split}{first}"


def _needed(aim: Aim) -> str:
    points = f"{'−' if aim.needed < 0 else '+'} {abs(aim.needed):g}"
    match aim.measure:
        case Measure.OVER_TUNED:
            return f"at least tuned FedAvg {points}"
        case Measure.OVER_FEDAVG:
            return f"at least FedAvg {points}"
        case Measure.OVER_FROZEN:
            return f"at least frozen {points}"
        case Measure.UPLOADS:
            return f"up at most 1/{aim.needed:g} of float32"
        case Measure.DOWNLOADS:
            return f"down at most 1/{aim.needed:g} of float32"


def _amounts(aim: Aim) -> tuple[str, str, str]:
    """Who it is compared with, its own and T-FedAvg's."""
    if way := aim.measure.way:
        if aim.tfedavg is None or aim.reached is None:
            return "float32", NONE, NONE
        own = sent(aim.tfedavg)[("up", "down").index(way)] / 8e6
        return "float32", f"{own * aim.reached:,.2f} MB", f"{own:,.2f} MB"
    other, own_text = (NONE if group is None else accuracy_text(group) for group in (aim.other, aim.tfedavg))
    return NONE if aim.other is None else method_label(aim.other), other, own_text


def _verdict(aim: Aim) -> tuple[str, str, str]:
    """By how much, by how many seeds, and whether it was reached."""
    value, points = aim.reached, aim.points
    if value is None:
        return NONE, NONE, "not run"
    enough = aim.seeds >= aim.target.seeds
    seeds = str(aim.seeds) if enough else f"{aim.seeds} of {aim.target.seeds}"
    if points is None:
        as_sent = "" if aim.of_fedavg is None else f" (1/{aim.of_fedavg:.1f})"
        margin, missed = f"1/{value:.1f}{as_sent}", f"missed: 1/{value:.1f}"
    else:
        margin, missed = points.text(sign="+"), f"missed by {aim.needed - value:.2f}"
    return margin, seeds, missed if not aim.holds else "reached" if enough else "reached so far"
