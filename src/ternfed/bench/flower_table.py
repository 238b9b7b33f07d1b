"""What runs of Flower apps ended with, as Markdown: strategies by modes, what misses the aim, and runs played again."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean
from textwrap import fill

from ternfed.bench.flower_apps import PLAIN, Case, Outcome
from ternfed.bench.tables import markdown
from ternfed.engines.flower.modes import Mode

LEAST_CHANGE, MOST_UP, MOST_DOWN = -0.5, 1 / 20, 1 / 12
"""The aim of the mode `updates`: points of accuracy against the app without ternfed, and bytes against float32."""

Groups = dict[tuple[Case, str], dict[int, Outcome]]


def table(outcomes: Iterable[Outcome]) -> str:
    """Accuracy in percent, the mean over the seeds, bytes as shares of float32, and which rows miss the aim.

    Each mode is compared with the runs without ternfed from the same seeds.
    """
    groups: Groups = {}
    for outcome in outcomes:
        groups.setdefault((outcome.case, outcome.mode), {})[outcome.seed] = outcome
    rows = []
    for (case, mode), own in groups.items():
        change = _change(groups, case, mode)
        shown = "" if change is None else f"{round(change, 2) + 0.0:+.2f}"
        score = 100 * mean(each.accuracy for each in own.values())
        shares = ["1" if mode == PLAIN else _share(_mean(own, way)) for way in ("up", "down")]
        rows.append((case.label, mode, str(len(own)), f"{score:.2f}", shown, *shares))
    made = markdown(("strategy", "mode", "seeds", "accuracy", "against none", "up", "down"), rows)
    missed = [words for case, mode in groups if mode == Mode.UPDATES for words in _missed(groups, case)]
    told = f"**What misses the aim** (half a point, 1/20 up, 1/12 down): {'; '.join(missed) or 'nothing'}."
    return f"{made}\n\n{fill(told, 120)}" if any(mode == Mode.UPDATES for _, mode in groups) else made


def comparison(pairs: Iterable[tuple[Outcome, Outcome]]) -> str:
    """How many runs have the same model and the same bytes when they are played again, and those that do not."""
    both = list(pairs)
    others = [(first, second) for first, second in both if first != second]
    told = f"{len(both) - len(others)} of {len(both)} runs, played again, end with the same bits."
    rows = [
        (one.case.label, one.mode, str(one.seed), f"{100 * one.accuracy:.2f}", f"{100 * two.accuracy:.2f}")
        for one, two in others
    ]
    return f"{told}\n\n{markdown(('strategy', 'mode', 'seed', 'accuracy', 'again'), rows)}" if rows else told


def _change(groups: Groups, case: Case, mode: str) -> float | None:
    """Points against the app without ternfed; None where it was not run from all of these seeds."""
    own, plain = groups[case, mode], groups.get((case, PLAIN), {})
    if mode == PLAIN or not own.keys() <= plain.keys():
        return None
    return 100 * mean(each.accuracy - plain[seed].accuracy for seed, each in own.items())


def _missed(groups: Groups, case: Case) -> list[str]:
    """What a row of the mode `updates` misses, in words."""
    own, change = groups[case, Mode.UPDATES], _change(groups, case, Mode.UPDATES)
    up, down = _mean(own, "up"), _mean(own, "down")
    faults = [
        *([f"{change:+.2f}"] if change is not None and round(change, 2) < LEAST_CHANGE else []),
        *([f"{_share(up)} up"] if up > MOST_UP else []),
        *([f"{_share(down)} down"] if down > MOST_DOWN else []),
    ]
    return [f"{case.label} ({' and '.join(faults)})"] if faults else []


def _mean(own: dict[int, Outcome], way: str) -> float:
    return mean(float(getattr(each, way)) for each in own.values())


def _share(share: float) -> str:
    return f"1/{1 / share:.1f}"
