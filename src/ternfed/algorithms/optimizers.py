"""The optimizers of local training. Each says what others need to know of it; nobody compares their names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

Groups = Iterable[dict[str, Any]]
"""Parameters with rates of their own, as `torch.optim` takes them."""


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent."""

    momentum: float = 0.0
    steps_follow_gradient: ClassVar[bool] = True
    """A gradient half as large makes a step half as long."""

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum = {self.momentum}: 0 to below 1 is allowed")

    @property
    def moments(self) -> int:
        """How many further tensors it keeps per trained tensor."""
        return 1 if self.momentum else 0

    def over(
        self, groups: Groups, rate: float | Tensor, weight_decay: float = 0.0, *, captured: bool = False
    ) -> torch.optim.Optimizer:
        """PyTorch's own over these groups; `captured` in a CUDA graph, its rates read from tensors."""
        fused = True if captured else None
        return torch.optim.SGD(groups, lr=rate, momentum=self.momentum, weight_decay=weight_decay, fused=fused)


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma & Ba 2015) with PyTorch's constants."""

    steps_follow_gradient: ClassVar[bool] = False
    """Its steps are about as long as the rate, however small the gradient is."""
    moments: ClassVar[int] = 2
    """How many further tensors it keeps per trained tensor."""

    def over(
        self, groups: Groups, rate: float | Tensor, weight_decay: float = 0.0, *, captured: bool = False
    ) -> torch.optim.Optimizer:
        """PyTorch's own over these groups; `captured` in a CUDA graph, its rates read from tensors."""
        fused = True if captured else None
        return torch.optim.Adam(groups, lr=rate, weight_decay=weight_decay, fused=fused, capturable=captured)


Optimizer = Sgd | Adam
