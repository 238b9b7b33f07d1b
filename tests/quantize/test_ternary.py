"""The quantizers, one layer at a time: thresholds, codes, scales, gradients, and every edge case's one answer."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import vmap

from ternfed.quantize.ternary import (
    FTTQ,
    TTQ,
    TWN,
    FactorGradient,
    NonFiniteError,
    Quantizer,
    Rule,
    Scale,
    Ternary,
    client_factor,
    codes_of,
    kept_scales,
    normalise,
    quantize,
    recognise,
    requantize,
    start_factors,
    ternary_of,
    threshold,
    twn,
)

QUANTIZERS = [
    TWN,
    TTQ,
    FTTQ,
    Quantizer(),
    Quantizer(Rule.MEAN, 0.7, Scale.MEAN),
    Quantizer(Rule.MAX, 0.05, Scale.TRAINED, FactorGradient.EXACT),
    Quantizer(gradient=FactorGradient.SCALED),
]


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class TestTernary:
    def test_dense_is_scale_times_code(self) -> None:
        ternary = Ternary(torch.tensor([1, 0, -1], dtype=torch.int8), torch.tensor(2.0), torch.tensor(3.0))
        assert ternary.dense().tolist() == [2.0, 0.0, -3.0]
        assert ternary.dense().dtype == torch.float32

    def test_passes_through_vmap(self) -> None:
        weights = randn(5, 4, 3)

        def one(weight: Tensor) -> Ternary:
            codes = codes_of(weight, threshold(weight, Rule.MEAN, 0.7))
            return Ternary(codes, *kept_scales(weight, codes))

        together = vmap(one)(weights)
        dense = vmap(Ternary.dense)(together)
        for weight, row in zip(weights, dense, strict=True):
            torch.testing.assert_close(row, requantize(weight, Rule.MEAN, 0.7).dense())


class TestThreshold:
    def test_max_rule_is_a_share_of_the_largest_weight(self) -> None:
        assert threshold(torch.tensor([0.5, -2.0]), Rule.MAX, 0.05).item() == pytest.approx(0.1)

    def test_mean_rule_is_a_share_of_the_mean_size(self) -> None:
        assert threshold(torch.tensor([1.0, -3.0]), Rule.MEAN, 0.7).item() == pytest.approx(1.4)

    @pytest.mark.parametrize("factor", [-0.1, math.nan, math.inf])
    def test_impossible_factor_is_refused(self, factor: float) -> None:
        with pytest.raises(ValueError, match="threshold factor"):
            Quantizer(factor=factor)

    def test_max_rule_refuses_a_factor_that_keeps_nothing(self) -> None:
        with pytest.raises(ValueError, match=r"1\.0.*under 1"):
            requantize(torch.ones(3), Rule.MAX, 1.0)

    @given(power=st.integers(-20, 20), seed=st.integers(0, 1000), rule=st.sampled_from(Rule))
    @settings(deadline=None)
    def test_codes_do_not_depend_on_the_scale_of_the_layer(self, power: int, seed: int, rule: Rule) -> None:
        """Why the normalisation of eq. scale_funtion changes no code; powers of two scale without rounding."""
        weight = randn(50, seed=seed)
        scaled = weight * 2.0**power
        assert torch.equal(
            codes_of(weight, threshold(weight, rule, 0.3)), codes_of(scaled, threshold(scaled, rule, 0.3))
        )

    def test_normalised_weights_have_the_same_codes(self) -> None:
        weight = randn(10_000)
        scaled = normalise(weight)
        assert scaled.abs().max() == 1
        assert torch.equal(
            codes_of(weight, threshold(weight, Rule.MEAN, 0.7)), codes_of(scaled, threshold(scaled, Rule.MEAN, 0.7))
        )


class TestClientFactor:
    def test_is_the_same_for_the_same_generator_state(self) -> None:
        draws = [client_factor(3, 10, torch.Generator().manual_seed(5)) for _ in range(2)]
        assert draws[0] == draws[1]

    def test_stays_in_the_papers_range_and_takes_both_branches(self) -> None:
        generator = torch.Generator().manual_seed(0)
        draws = [client_factor(9, 10, generator) for _ in range(400)]
        assert all(0.05 <= draw < 0.06 for draw in draws)
        by_index = sum(math.isclose(draw, 0.05 + 0.01 * 0.9) for draw in draws)
        # A fair coin tossed 400 times: five standard deviations are 50.
        assert abs(by_index - 200) < 50

    def test_refuses_a_client_that_does_not_exist(self) -> None:
        with pytest.raises(ValueError, match="client 10 must be one of 0 to 9"):
            client_factor(10, 10, torch.Generator())


class TestForward:
    def test_twn_minimises_the_distance_for_its_codes(self) -> None:
        """α* is the least-squares scale (eq. twn): any other is farther from the weight."""
        weight = randn(200)
        best = twn(weight)
        distance = (weight - best.dense()).norm()
        for nudge in (0.99, 1.01):
            assert (weight - best.positive * nudge * best.codes).norm() > distance

    def test_twn_uses_seven_tenths_of_the_mean(self) -> None:
        weight = torch.tensor([0.69, 0.71, -1.6, -1.0])  # mean size 1.0
        assert twn(weight).codes.tolist() == [0, 1, -1, -1]

    @pytest.mark.parametrize("quantizer", QUANTIZERS)
    def test_training_and_sending_see_the_same_weights(self, quantizer: Quantizer) -> None:
        latent = randn(30, 20)
        factors = start_factors(latent, quantizer)
        trained = quantize(latent, factors, quantizer)
        assert torch.equal(trained, ternary_of(latent, factors, quantizer).dense())

    def test_factors_start_at_the_optimal_scales(self) -> None:
        latent = torch.tensor([3.0, 1.0, -4.0, -2.0, 0.0])
        pair = start_factors(latent, TTQ)
        single = start_factors(latent, FTTQ)
        assert pair is not None
        assert single is not None
        assert pair.tolist() == [2.0, 3.0]
        assert single.tolist() == [2.5]

    def test_requantization_has_a_scale_for_each_sign(self) -> None:
        ternary = requantize(torch.tensor([1.0, 3.0, -5.0, 0.2]))
        assert ternary.codes.tolist() == [1, 1, -1, 0]
        assert (ternary.positive.item(), ternary.negative.item()) == (2.0, 5.0)

    def test_missing_factors_are_named(self) -> None:
        with pytest.raises(ValueError, match="start_factors"):
            quantize(torch.ones(3), None, FTTQ)


class TestGradients:
    """With J = Σ g·θ^t the incoming gradient is g itself, so each rule can be read off."""

    latent = torch.tensor([2.0, 0.01, -3.0, 1.0], dtype=torch.float64)
    g = torch.tensor([10.0, 20.0, 30.0, 40.0], dtype=torch.float64)

    def gradients(self, quantizer: Quantizer, factors: list[float]) -> tuple[list[float], list[float]]:
        latent = self.latent.clone().requires_grad_()
        trained = torch.tensor(factors, dtype=torch.float64).requires_grad_()
        (quantize(latent, trained if factors else None, quantizer) * self.g).sum().backward()  # type: ignore[no-untyped-call]
        assert latent.grad is not None
        return latent.grad.tolist(), trained.grad.tolist() if trained.grad is not None else []

    def test_fttq_as_in_the_paper_sums_over_the_positive_codes(self) -> None:
        latent, factor = self.gradients(FTTQ, [0.5])
        assert latent == [5.0, 20.0, 15.0, 20.0]  # eq. grad_fp: times w^q but where the code is 0
        assert factor == [50.0]  # eq. grad_wq: 10 + 40

    def test_fttq_exact_is_the_derivative_over_both_signs(self) -> None:
        _, factor = self.gradients(Quantizer(Rule.MEAN, 0.05), [0.5])
        assert factor == [10.0 - 30.0 + 40.0]

    def test_fttq_scaled_divides_by_the_root_of_the_layers_size(self) -> None:
        latent, factor = self.gradients(Quantizer(Rule.MEAN, 0.05, gradient=FactorGradient.SCALED), [0.5])
        assert latent == [5.0, 20.0, 15.0, 20.0]
        assert factor == [(10.0 - 30.0 + 40.0) / 2]

    def test_ttq_trains_each_sign_by_itself(self) -> None:
        latent, factors = self.gradients(TTQ, [0.5, 0.25])
        assert latent == [5.0, 20.0, 7.5, 20.0]
        assert factors == [50.0, -30.0]

    def test_fttq_counts_a_negative_factor_by_its_size(self) -> None:
        quantizer = Quantizer(FTTQ.rule, FTTQ.factor, gradient=FactorGradient.EXACT)
        (latent, factors), (turned, others) = (self.gradients(quantizer, [size]) for size in (0.5, -0.5))
        assert turned == latent
        assert others == [-factors[0]]

    def test_ttq_counts_a_negative_factor_by_its_size(self) -> None:
        latent, factors = self.gradients(TTQ, [-0.5, 0.25])
        assert latent == [5.0, 20.0, 7.5, 20.0]
        assert factors == [-50.0, -30.0]

    def test_twn_passes_gradients_straight_through(self) -> None:
        latent, _ = self.gradients(TWN, [])
        assert latent == self.g.tolist()

    @pytest.mark.parametrize("quantizer", [TTQ, Quantizer(Rule.MEAN, 0.05)])
    def test_factor_gradients_are_true_derivatives(self, quantizer: Quantizer) -> None:
        """Against central differences; the weights are linear in the factors, so only rounding is left."""
        latent, g = randn(40), randn(40, seed=1)
        factors = torch.tensor([0.6, 0.4], dtype=torch.float64)[: 2 if quantizer.scale is Scale.PAIR else 1]
        leaf = factors.clone().requires_grad_()
        (quantize(latent, leaf, quantizer) * g).sum().backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        for i in range(len(factors)):
            step = torch.zeros_like(factors)
            step[i] = 1e-3
            up = (quantize(latent, factors + step, quantizer) * g).sum()
            down = (quantize(latent, factors - step, quantizer) * g).sum()
            assert leaf.grad[i].item() == pytest.approx(((up - down) / 2e-3).item(), rel=1e-9)

    def test_works_under_vmap(self) -> None:
        latents = randn(3, 4, 5)
        factors = torch.rand(3, 1, dtype=torch.float64)
        together = vmap(lambda latent, factor: quantize(latent, factor, FTTQ))(latents, factors)
        for i in range(3):
            assert torch.equal(together[i], quantize(latents[i], factors[i], FTTQ))


class TestEdgeCases:
    @pytest.mark.parametrize("quantizer", QUANTIZERS)
    def test_an_all_zero_layer_is_zero_with_zero_scales(self, quantizer: Quantizer) -> None:
        latent = torch.zeros(4, 3)
        ternary = ternary_of(latent, start_factors(latent, quantizer), quantizer)
        assert not ternary.codes.any()
        assert ternary.positive == ternary.negative == 0
        assert torch.equal(quantize(latent, start_factors(latent, quantizer), quantizer), latent)
        assert not requantize(latent).dense().any()

    @pytest.mark.parametrize("quantizer", QUANTIZERS)
    def test_one_element_keeps_its_value(self, quantizer: Quantizer) -> None:
        latent = torch.tensor([[-0.25]])
        assert ternary_of(latent, start_factors(latent, quantizer), quantizer).dense().tolist() == [[-0.25]]
        assert requantize(latent).dense().tolist() == [[-0.25]]

    def test_no_positive_weight_means_a_positive_scale_of_zero(self) -> None:
        ternary = requantize(torch.tensor([-1.0, -3.0]))
        assert (ternary.positive.item(), ternary.negative.item()) == (0.0, 2.0)

    def test_no_negative_weight_means_a_negative_scale_of_zero(self) -> None:
        ternary = requantize(torch.tensor([1.0, 3.0]))
        assert (ternary.positive.item(), ternary.negative.item()) == (2.0, 0.0)

    def test_a_factor_that_crosses_zero_turns_no_sign_around(self) -> None:
        latent, factors = randn(20), torch.tensor([-0.3], dtype=torch.float64)
        ternary = ternary_of(latent, factors, FTTQ)
        assert torch.equal(ternary.codes, ternary_of(latent, -factors, FTTQ).codes)
        assert (ternary.positive.item(), ternary.negative.item()) == (0.3, 0.3)
        assert torch.equal(ternary.dense(), quantize(latent, factors, FTTQ))

    def test_negative_pair_is_sent_by_size(self) -> None:
        latent, factors = randn(20), torch.tensor([-0.3, 0.2], dtype=torch.float64)
        ternary = ternary_of(latent, factors, TTQ)
        assert (ternary.positive.item(), ternary.negative.item()) == (0.3, 0.2)
        assert torch.equal(ternary.dense(), quantize(latent, factors, TTQ))

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_non_finite_weights_are_an_error_that_names_the_tensor(self, bad: float) -> None:
        weight = torch.tensor([1.0, bad])
        for quantizing in (
            lambda: requantize(weight, name="conv3.weight"),
            lambda: twn(weight, name="conv3.weight"),
            lambda: ternary_of(weight, torch.ones(1), FTTQ, "conv3.weight"),
            lambda: ternary_of(torch.ones(2), torch.tensor([bad]), FTTQ, "conv3.weight"),
        ):
            with pytest.raises(NonFiniteError, match=r"conv3\.weight.*NaN or infinity"):
                quantizing()

    @given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.sampled_from(QUANTIZERS))
    @settings(deadline=None)
    def test_every_finite_layer_has_codes_in_range_and_scales_of_at_least_zero(
        self, values: list[float], quantizer: Quantizer
    ) -> None:
        latent = torch.tensor(values, dtype=torch.float64)
        ternary = ternary_of(latent, start_factors(latent, quantizer), quantizer)
        assert set(ternary.codes.tolist()) <= {-1, 0, 1}
        assert ternary.positive >= 0
        assert ternary.negative >= 0
        assert torch.isfinite(ternary.dense()).all()
        signs = latent.sign() * (ternary.codes != 0)
        assert torch.equal(signs, ternary.codes.to(torch.float64))


class TestHeldTrits:
    @given(st.integers(0, 2**31 - 1), st.floats(0.01, 0.99))
    def test_a_trit_changes_only_where_its_weight_is_beyond_the_threshold_by_a_part_of_it(
        self, seed: int, hold: float
    ) -> None:
        source = torch.Generator().manual_seed(seed)
        held = requantize(torch.randn(6, 50, generator=source), Rule.MEAN, 0.7).codes
        weight = torch.randn(6, 50, generator=source)
        delta, codes = threshold(weight, Rule.MEAN, 0.7), requantize(weight, Rule.MEAN, 0.7).codes
        found = requantize(weight, Rule.MEAN, 0.7, held=held, hold=hold)
        sure = (weight.abs() - delta).abs() > hold * delta
        assert torch.equal(found.codes[sure], codes[sure])
        assert torch.equal((found.codes != 0)[~sure], (held != 0)[~sure])
        assert torch.equal(found.codes.sign(), torch.where(found.codes != 0, weight.sign(), 0).to(torch.int8))
        assert torch.equal(requantize(weight, Rule.MEAN, 0.7, held=held).codes, codes)

    def test_scales_are_those_of_the_weights_that_are_kept(self) -> None:
        found = requantize(torch.tensor([1.0, 0.5, -0.4]), Rule.MEAN, 0.7, held=torch.tensor([1, 1, 0]), hold=0.2)
        assert found.codes.tolist() == [1, 1, 0]
        assert found.positive.item() == 0.75


class TestRecognise:
    @given(
        codes=st.lists(st.integers(-1, 1), min_size=1, max_size=30),
        positive=st.floats(2**-30, 2**30, width=32),
        negative=st.floats(2**-30, 2**30, width=32),
    )
    def test_scale_times_code_is_recognised_exactly(self, codes: list[int], positive: float, negative: float) -> None:
        weight = torch.tensor([{1: positive, 0: 0.0, -1: -negative}[code] for code in codes])
        found = recognise(weight)
        assert found is not None
        assert found.codes.tolist() == codes
        assert torch.equal(found.dense(), weight)

    @pytest.mark.parametrize("values", [[0.5, 0.25], [-1.0, -0.5, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]])
    def test_anything_else_is_not(self, values: list[float]) -> None:
        assert recognise(torch.tensor(values)) is None
