"""Many layers at once give what one layer at a time gives, to float64 rounding."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ternfed.fused import quantize_all
from ternfed.ternary import Quantizer, Scale, quantize, start_factors
from test_ternary import QUANTIZERS, randn

# Sums over a layer may run in another order; a few units in the last place of a float64 sum of ~100 terms.
CLOSE = {"rtol": 1e-13, "atol": 1e-13}

shapes = st.lists(st.sampled_from([(1,), (3, 4), (5, 2, 3), (7, 1)]), min_size=1, max_size=5)


def factors_for(latents: list[Tensor], quantizer: Quantizer) -> list[Tensor]:
    if quantizer.scale is Scale.MEAN:
        return []
    started = [start_factors(latent, quantizer) for latent in latents]
    # Odd layers get a negative factor: training may drive it there.
    return [f * (-1) ** i for i, f in enumerate(started) if f is not None]


@given(shapes=shapes, seed=st.integers(0, 100), quantizer=st.sampled_from(QUANTIZERS))
@settings(deadline=None, max_examples=150)
def test_values_and_gradients_agree_with_the_plain_version(
    shapes: list[tuple[int, ...]], seed: int, quantizer: Quantizer
) -> None:
    latents = [randn(*shape, seed=seed + i) for i, shape in enumerate(shapes)]
    factors = factors_for(latents, quantizer)
    incoming = [randn(*shape, seed=seed + 50 + i) for i, shape in enumerate(shapes)]

    def run(fused: bool) -> tuple[list[Tensor], list[Tensor]]:
        leaves = [latent.clone().requires_grad_() for latent in latents]
        trained = [factor.clone().requires_grad_() for factor in factors]
        if fused:
            weights = quantize_all(leaves, trained, quantizer)
        else:
            each = trained or [None] * len(leaves)
            weights = [quantize(latent, factor, quantizer) for latent, factor in zip(leaves, each, strict=True)]
        torch.autograd.backward(weights, incoming)
        return weights, [leaf.grad for leaf in (*leaves, *trained) if leaf.grad is not None]

    plain, fused = run(False), run(True)
    torch.testing.assert_close(fused, plain, **CLOSE)


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_a_leading_client_dimension_gives_each_client_its_own_thresholds(quantizer: Quantizer) -> None:
    clients = 4
    latents = [randn(clients, 6, 5), randn(clients, 5, 3, seed=1)]
    by_client = [[latent[k] for latent in latents] for k in range(clients)]
    factors = [factors_for(layers, quantizer) for layers in by_client]
    stacked = [torch.stack([factors[k][i] for k in range(clients)]) for i in range(len(factors[0]))]
    incoming = [randn(*latent.shape, seed=9) for latent in latents]

    leaves = [t.clone().requires_grad_() for t in (*latents, *stacked)]
    together = quantize_all(leaves[:2], leaves[2:], quantizer, batched=True)
    torch.autograd.backward(together, incoming)

    for k in range(clients):
        alone = [t.clone().requires_grad_() for t in (*by_client[k], *factors[k])]
        weights = quantize_all(alone[:2], alone[2:], quantizer)
        torch.autograd.backward(weights, [g[k] for g in incoming])
        torch.testing.assert_close([w[k] for w in together], weights, **CLOSE)
        torch.testing.assert_close([leaf.grad[k] for leaf in leaves], [leaf.grad for leaf in alone], **CLOSE)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_a_gpu_gives_the_same(quantizer: Quantizer) -> None:
    latents = [randn(6, 5), randn(5, 3, seed=1)]
    factors = factors_for(latents, quantizer)
    here = quantize_all(latents, factors, quantizer)
    there = quantize_all([t.cuda() for t in latents], [t.cuda() for t in factors], quantizer)
    torch.testing.assert_close([t.cpu() for t in there], here, **CLOSE)
