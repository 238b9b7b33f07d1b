"""Ternary layers that rest late, latent weights that decay by themselves, steps that are never too fine."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ternfed
from ternfed.algorithms.algorithm import Training
from ternfed.algorithms.optimizers import Adam
from ternfed.algorithms.rest import rounded
from ternfed.engines.simulate import play
from ternfed.experiment.experiment import Experiment, ExperimentError
from ternfed.round.federation import open_federation

DIGITS = ("model.hidden=[24,16]", "federation.clients=4", "training.schedule=cosine", "training.rate=0.2")


def changed(*settings: str, rounds: int = 8) -> list[float]:
    """The share of trits that each round flips, with every client in every round."""
    experiment = Experiment.from_toml("", [*DIGITS, f"federation.rounds={rounds}", *settings])
    federation = open_federation(experiment, ternfed.load("digits"), "cpu")
    return [outcome.changed or 0.0 for _, outcome in play(federation)]


class TestLayersThatRest:
    def test_no_trit_changes_once_the_rates_have_decayed(self) -> None:
        resting = changed("algorithm.settle_at_decay=0.5")
        assert all(resting[:4])
        assert not any(resting[5:])

    def test_without_the_setting_they_never_rest(self) -> None:
        assert any(changed("algorithm.settle_at_decay=none")[5:])

    def test_where_every_matrix_is_ternary_nothing_else_could_learn_and_they_go_on(self) -> None:
        assert any(changed("algorithm.settle_at_decay=0.5", "model.ternary=all")[5:])

    def test_a_share_outside_0_to_1_is_refused(self) -> None:
        with pytest.raises(ExperimentError, match=r"settle_at_decay = 1\.5"):
            Experiment.from_toml("", ["algorithm.settle_at_decay=1.5"])


class TestRates:
    @pytest.mark.parametrize(("power", "expected"), [(1.0, 0.01), (0.5, 0.02), (0.0, 0.04)])
    def test_latents_with_an_optimizer_of_their_own_decay_by_a_power(self, power: float, expected: float) -> None:
        training = Training(latent_optimizer=Adam(), latent_rate=0.04, latent_decay=power, decay=0.25)
        assert training.rates[1] == pytest.approx(expected)

    def test_latents_at_rest_have_no_rate_and_the_others_keep_theirs(self) -> None:
        training = Training(rate=0.02, decay=0.2, latents_rest_at=0.2)
        assert training.rates == (0.02, 0.0, 0.02)


class TestTheFinestStep:
    @given(st.integers(2, 12), st.integers(0, 2**31))
    def test_the_codes_of_a_row_have_at_most_so_many_bits(self, finest: int, seed: int) -> None:
        source = torch.Generator().manual_seed(seed)
        tensor = torch.randn(5, 7, generator=source)
        before = tensor + 1e-6 * torch.randn(5, 7, generator=source)
        grid = rounded({"w": tensor}, {"w": before}, {"w": 2}, finest)["w"]
        assert int(grid.codes.abs().max()) <= 2 ** (finest - 1)

    def test_a_change_has_its_own_bits_where_they_are_more(self) -> None:
        tensor = torch.tensor([[1.0, 0.3, -0.7]])
        grid = rounded({"w": tensor}, {}, {"w": 8}, 2)["w"]
        assert torch.allclose(grid.dense(), tensor, atol=2**-7)

    def test_a_model_that_hardly_moves_costs_next_to_nothing(self) -> None:
        tensor = torch.linspace(-1, 1, 64).view(4, 16)
        first = rounded({"w": tensor}, {}, {"w": 6}, 6)["w"]
        second = rounded({"w": tensor + 1e-4}, {"w": first.dense()}, {"w": 3}, 6)["w"]
        moved = (second.dense() - first.dense()).abs()
        assert int((moved > 0).sum()) <= 2
