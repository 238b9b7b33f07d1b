"""Tables of what the algorithms cost: bits on the wire beside the paper's formula, seconds beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence

from ternfed.paper.belonging import belonging
from ternfed.paper.costs import formula, sent, times_smaller
from ternfed.paper.elapsed import Elapsed
from ternfed.paper.groups import Group, place
from ternfed.paper.numbers import MEGABIT, MEGABITS, MLP, exchanges_of, megabits_of
from ternfed.paper.rows import SHOWN
from ternfed.report.labels import algorithm_label, by_comparison, distinguish, network_label
from ternfed.report.tables import NONE, Sheet


def communication(groups: Sequence[Group]) -> Sheet | None:
    """Table II: what was really sent, what the paper's formula makes of it, and the paper's own numbers."""
    found = [group for group in belonging(groups, "communication") if group.length and not group.central]
    if not found:
        return None
    headings = (
        "data, model", "algorithm", "rounds", "sent up / down (Mb)", "of FedAvg's", "formula up / down (Mb)",
        "paper up / down (Mb)", "paper, scaled (Mb)",
    )  # fmt: skip
    rows = []
    for comparison, inside in by_comparison(found).items():
        labels = distinguish(inside)
        full = next((group for group in inside if group.algorithm == "fedavg"), None)
        for number, group in enumerate(inside):
            parts = None
            if full is not None and full is not group:
                parts = times_smaller(group, full, "up"), times_smaller(group, full, "down")
            rows.append(
                (
                    f"{comparison.data}, {comparison.model}",
                    labels[number],
                    str(group.length) if group.finished else f"{group.length}, unfinished",
                    _both(sent(group)),
                    NONE if parts is None else ", ".join(f"1/{times:.3g}" for times in parts),
                    _both(formula(group)),
                    *_of_paper(group),
                )
            )
    notes = (
        "Mb: 2²⁰ bits, the paper's unit. Sent: every message as really encoded, all layers and headers counted, mean "
        "over seeds; the part of FedAvg's is per exchange with a client. Formula: the paper's (eq. downstream) for our "
        "networks, rounds and S_I: 2 bits per ternary weight, 32 bits per other parameter, nothing for an upload that "
        "CMFL skips; download = (1 − S_I/T) · FedAvg's upload + S_I/T · T-FedAvg's upload. Paper: as printed, for 100 "
        "rounds; where our runs exchanged another number of models, also scaled to that number.",
        *_first_layer(found),
    )
    sheet = Sheet("communication", SHOWN["communication"], headings, tuple(rows), texts=2, notes=notes)
    return sheet.without_empty()


def elapsed(measured: Sequence[Elapsed]) -> Sheet | None:
    """Table V: seconds of one client's local epochs, and their ratio to FedAvg's."""
    if not measured:
        return None
    headings = ("model", "algorithm", "machine", "seconds", "× FedAvg", "paper (s)", "paper, × FedAvg")
    rows = []
    for one in sorted(measured, key=lambda one: place("model", one.model)):
        for name, seconds in one.seconds.items():
            full, theirs = one.seconds.get("fedavg"), one.paper.get(name)
            rows.append(
                (
                    network_label(one.model),
                    algorithm_label(name),
                    one.machine,
                    f"{seconds:.3g}",
                    f"{seconds / full:.2f}" if full else NONE,
                    NONE if theirs is None else f"{theirs:.2f}",
                    NONE if theirs is None else f"{theirs / one.paper['fedavg']:.2f}",
                )
            )
    times = " or ".join(map(str, sorted({one.repetitions for one in measured})))
    notes = (f"Median of {times} measurements of one client's 5 local epochs; the algorithms take turns in one run.",)
    return Sheet("elapsed", SHOWN["elapsed"], headings, tuple(rows), texts=3, notes=notes)


def _of_paper(group: Group) -> tuple[str, str]:
    """As printed, and scaled to as many exchanges as ours where those are not as many."""
    printed = megabits_of(group.settings)
    if printed is None:
        return NONE, NONE
    up, down = (MEGABIT * amount for amount in printed)
    share = group.exchanges() / exchanges_of(group.settings)
    return _both((up, down)), NONE if share == 1 else _both((share * up, share * down))


def _first_layer(groups: Sequence[Group]) -> list[str]:
    """The paper leaves the MLP's first layer out; what the formula gives then."""
    parts = []
    for group in groups:
        bits = formula(group, first=False)
        if group.setting("model", "name") == "mlp" and group.algorithm in ("fedavg", "tfedavg") and bits is not None:
            parts.append(f"{algorithm_label(group.algorithm)} {_amount(bits[0])} up and {_amount(bits[1])} down")
    if not parts:
        return []
    return [
        "The paper does not send the MLP's first layer; without it the formula gives, in Mb: "
        f"{'; '.join(dict.fromkeys(parts))}. Its {MEGABITS[MLP]['fedavg'].up} and {MEGABITS[MLP]['tfedavg'].up} Mb are "
        "640 numbers per upload, 600 of them ternary."
    ]


def _both(bits: tuple[float, float] | None) -> str:
    return NONE if bits is None else f"{_amount(bits[0])} / {_amount(bits[1])}"


def _amount(bits: float) -> str:
    value = bits / MEGABIT
    return f"{value:,.2f}" if value >= 0.1 or value == 0 else f"{value:.3g}"
