"""What a run with `privacy.clip` and `privacy.noise` gives away, by the RDP accountant of dp-accounting.

Who takes part in a round follows from the experiment's seed, which every client knows. So no privacy is claimed from
being drawn by chance: a client counts with every round that it took part in, and ε is that of the client with the most.
Two runs are neighbours when one client sends nothing in one of them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ternfed.draws import participants
from ternfed.experiment.experiment import Experiment
from ternfed.experiment.settings import ExperimentError


def epsilon(experiment: Experiment, rounds: int) -> float | None:
    """ε at `privacy.delta` after so many rounds; None where the run is not private."""
    own = experiment.privacy
    if own.clip is None or own.noise is None:
        return None
    counts = Counter(client for number in range(1, rounds + 1) for client in _participants(experiment, number))
    return epsilon_of(own.noise, max(counts.values(), default=0), own.delta)


def epsilon_of(noise: float, times: int, delta: float) -> float:
    """ε of so many sums with Gaussian noise, `noise` times as large as what one client can add."""
    accounting = need_accounting()
    accountant = accounting.rdp.RdpAccountant()
    accountant.compose(accounting.GaussianDpEvent(noise), times)
    return float(accountant.get_epsilon(delta))


def need_accounting() -> Any:
    """The library, or the sentence that says how to install it."""
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError as error:
        raise ExperimentError(
            "privacy.noise: needs dp-accounting; install the extra [privacy]: pip install 'ternfed[privacy]'"
        ) from error
    return dp_accounting


def _participants(experiment: Experiment, number: int) -> list[int]:
    own = experiment.federation
    return participants(experiment.seed, number, own.clients, own.participation)
