"""What many clients send is, number for number, what each of them would send by itself."""

from __future__ import annotations

import pytest
import torch

from ternfed.algorithms.rest import changes, changes_each
from ternfed.quantize.ternary import NonFiniteError

SHAPES = {"matrix": (4, 6), "kernel": (3, 2, 2, 2), "vector": (5,), "one": ()}
BITS = {"matrix": 3, "kernel": 2, "vector": 6, "one": 1}


def tensors(seed: int, size: float = 1.0) -> dict[str, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return {name: size * torch.randn(shape, generator=source) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("at_random", [True, False])
def test_several_clients_send_what_each_would_send(at_random: bool) -> None:
    received = tensors(0)
    moved = [{name: received[name] + t for name, t in tensors(seed, 0.1 * seed).items()} for seed in range(4)]

    def source(client: int) -> torch.Generator | None:
        return torch.Generator().manual_seed(client) if at_random else None

    together = changes_each(moved, received, BITS, [source(client) for client in range(4)])
    for client, own in enumerate(together):
        for name, alone in changes(moved[client], received, BITS, source(client)).items():
            assert torch.equal(own[name].codes, alone.codes), name
            assert torch.equal(own[name].exponents, alone.exponents), name
            assert own[name].codes.shape == SHAPES[name]


def test_one_that_is_not_finite_is_refused() -> None:
    moved = [tensors(1), tensors(2)]
    moved[1]["matrix"][0, 0] = torch.inf
    with pytest.raises(NonFiniteError):
        changes_each(moved, tensors(0), BITS, [None, None])
