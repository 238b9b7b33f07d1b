"""A run whose trits do not move says so, unless that is what it is for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ternfed.experiment.experiment import Experiment
from ternfed.runs.records import Round, is_frozen, summarise, unmoved, warnings_of

HALF = 0.5


def rounds(*changed: float | None) -> list[Round]:
    usual = {"bytes_up_fp32": 1, "bytes_down_fp32": 1, "bits_per_weight_up": None, "clients": 5, "loss": 1.0}
    return [
        Round(round=n, score=0.5, train_loss=None, validation=None, bytes_up=1, bytes_down=1, changed=share, **usual)
        for n, share in enumerate(changed, start=1)
    ]


def constant(round: int) -> float:
    return 0.1


def decays_after(last: int) -> object:
    return lambda round: 0.1 if round <= last else 0.009


class TestUnmoved:
    def test_a_quarter_of_the_rounds_at_rest_is_a_frozen_network(self) -> None:
        sentence = unmoved(rounds(HALF, 0, 0, 0, HALF), constant, 12)
        assert sentence is not None
        assert sentence.startswith("no trit changed in rounds 2 to 4 of 12 while the learning rate had not decayed")

    @pytest.mark.parametrize(
        "changed",
        [
            (HALF, 0, 0, HALF, 0, 0, HALF, 0),  # never three in a row
            (HALF,) * 12,
            (None,) * 12,  # floats travel
            (0, 0, None, 0, 0),  # a broadcast in full precision may have changed them
            (),
        ],
    )
    def test_anything_else_is_not(self, changed: Sequence[float | None]) -> None:
        assert unmoved(rounds(*changed), constant, 12) is None

    def test_it_is_told_as_soon_as_it_holds(self) -> None:
        found = [unmoved(rounds(*[0.0] * count), constant, 40) is not None for count in range(1, 41)]
        assert found.index(True) == 9
        assert all(found[9:])

    def test_trits_may_rest_when_the_rate_has_decayed(self) -> None:
        shares = [HALF] * 8 + [0.0] * 4
        assert unmoved(rounds(*shares), constant, 12) is not None
        assert unmoved(rounds(*shares), decays_after(8), 12) is None
        assert unmoved(rounds(*shares), decays_after(10), 12) is None
        assert unmoved(rounds(*shares), decays_after(11), 12) is not None

    def test_a_trit_in_a_hundred_thousand_does_not_count_as_movement(self) -> None:
        sentence = unmoved(rounds(*[1e-5] * 4), constant, 8)
        assert sentence is not None
        assert sentence.startswith("hardly a trit changed")
        assert unmoved(rounds(*[2e-4] * 4), constant, 8) is None

    def test_two_rounds_say_nothing_about_a_short_run(self) -> None:
        assert unmoved(rounds(0, 0), constant, 2) is None
        assert unmoved(rounds(0, 0, 0), constant, 3) is not None


class TestWarnings:
    def experiment(self, *settings: str) -> Experiment:
        return Experiment.from_toml("", ["federation.rounds=8", *settings])

    def test_are_in_the_summary_of_a_run(self) -> None:
        (sentence,) = summarise(rounds(*[0.0] * 8), self.experiment())["warnings"]
        assert "rounds 1 to 8 of 8" in sentence

    def test_know_the_schedule_of_the_experiment(self) -> None:
        """By a cosine the last two of eight rounds have less than a fifth of the rate, and one less than a tenth."""
        shares = [HALF] * 5 + [0.0] * 3
        assert warnings_of(rounds(*shares), self.experiment())
        assert not warnings_of(rounds(*shares), self.experiment("training.schedule=cosine"))

    def test_leave_the_control_alone_that_is_frozen_on_purpose(self) -> None:
        still = rounds(*[0.0] * 8)
        assert not warnings_of(still, self.experiment("algorithm.preset=frozen"))
        assert warnings_of(still, self.experiment("algorithm.upload=trits"))

    @pytest.mark.parametrize(
        ("algorithm", "frozen"),
        [
            ({"name": "tfedavg", "latent_rate": 1.0, "latent_adam": 0.0}, True),
            ({"name": "tfedavg", "latent_rate": 0.0, "latent_adam": "none"}, True),
            ({"name": "tfedavg", "latent_rate": 0.0, "latent_adam": 0.04}, False),
            ({"name": "tfedavg", "latent_rate": 24.0, "latent_adam": "none"}, False),
            ({"name": "fedavg"}, False),
            ({"name": "mine:algorithm", "latent_rate": 0.0}, False),
            ({}, False),
        ],
    )
    def test_ask_the_algorithm_what_is_frozen(self, algorithm: dict[str, object], frozen: bool) -> None:
        assert is_frozen(algorithm) is frozen
