"""Kernels for a GPU in tests: there where one is, else in Triton's interpreter on the CPU."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def use_kernels(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
    """Have these modules take their kernels on any device; the test is skipped where Triton is not installed."""
    pytest.importorskip("triton", reason="Triton is not installed; it comes with PyTorch for NVIDIA GPUs")
    if DEVICE == "cuda":
        return
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def with_indices(tensor: Any, scope: Any) -> None:
        # Triton 3.6 asks for int() of an array of one number, which NumPy 2.4 no longer gives.
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", with_indices)
    for module in modules:
        monkeypatch.setattr(module, "runs_on", lambda device: True)
