"""onnxruntime, opened the same way to check an export, to predict and to measure."""

from __future__ import annotations

from typing import Any

from ternfed.edge.inputs import ModelError


def session(model: str | bytes, threads: int = 1) -> Any:
    """An onnxruntime session on the CPU."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelError("onnxruntime is missing; install the extra: pip install 'ternfed[edge]'") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # what it says of errors is in its exceptions; its log would show names as they are
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
