"""The median of each coordinate: as long as liars are fewer than half, it lies among honest values.

Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018,
Definition 1. Of an even number of uploads it is the mean of the two in the middle. Clients count alike, whatever number
of samples they claim. All uploads of a round are held in memory until its end.
"""

from __future__ import annotations

from ternfed.aggregation.aggregation import Aggregation
from ternfed.aggregation.trimmed_mean import Held, of_the_middle


def aggregation() -> Aggregation[Held]:
    """The trimmed mean that leaves only the middle one or two."""
    return of_the_middle("median", lambda count: (count - 1) // 2)
