"""Many layers at once give what one layer at a time gives, to float64 rounding."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ternary import QUANTIZERS, randn
from torch import Tensor

from ternfed.quantize.fused import Segments, quantize_all
from ternfed.quantize.ternary import Quantizer, Scale, quantize, start_factors

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


def test_weights_with_channels_last_keep_their_layout_and_their_values() -> None:
    latents = [randn(4, 3, 2, 2), randn(5, 4, 3, 3, seed=1)]
    factors = factors_for(latents, Quantizer())
    incoming = [randn(*latent.shape, seed=9) for latent in latents]

    def run(layout: torch.memory_format) -> tuple[list[Tensor], list[Tensor]]:
        leaves = [t.clone(memory_format=layout).requires_grad_() for t in latents]
        trained = [t.clone().requires_grad_() for t in factors]
        weights = quantize_all(leaves, trained, Quantizer())
        assert all(weight.is_contiguous(memory_format=layout) for weight in weights)
        torch.autograd.backward(weights, incoming)
        return weights, [leaf.grad for leaf in (*leaves, *trained) if leaf.grad is not None]

    torch.testing.assert_close(run(torch.channels_last), run(torch.contiguous_format), **CLOSE)


def test_a_narrower_dtype_rounds_the_weights_and_nothing_else() -> None:
    latents = [randn(6, 5).float().requires_grad_(), randn(5, 3, seed=1).float().requires_grad_()]
    factors = [f.requires_grad_() for f in factors_for([t.detach() for t in latents], Quantizer())]
    wide = quantize_all(latents, factors, Quantizer())
    narrow = quantize_all(latents, factors, Quantizer(), dtype=torch.bfloat16)
    assert all(torch.equal(one, two.bfloat16()) for one, two in zip(narrow, wide, strict=True))
    torch.autograd.backward(narrow, [torch.ones_like(weight) for weight in narrow])
    assert all(leaf.grad is not None and leaf.grad.dtype == torch.float32 for leaf in (*latents, *factors))


@pytest.mark.parametrize(
    ("layers", "clients"), [((36864, 4096, 36864), 1), ((200, 81920), 1), ((30, 15), 4), ((7, 3), 2)]
)
@pytest.mark.parametrize("how", ["sum", "mean", "amax"])
def test_reducing_by_pieces_is_reducing_by_layer(layers: tuple[int, ...], clients: int, how: str) -> None:
    segments = Segments(clients, layers, torch.device("cpu"))
    numbers = randn(clients * sum(layers)).abs()
    # Sums of up to 81,920 numbers near 1, in another order: relative errors add up to some hundred units.
    torch.testing.assert_close(segments.reduce_by_pieces(numbers, how), segments.reduce(numbers, how), **CLOSE)
