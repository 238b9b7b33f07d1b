"""Options that several verbs share, and what is checked of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else there.")]
DataDir = Annotated[Path | None, typer.Option("--data", help="Folder with the data sets; else $TERNFED_DATA.")]
Allow = Annotated[
    list[str] | None,
    typer.Option("--allow", help="A module of yours whose code a file may name; may be repeated."),
]
Device = Annotated[str, typer.Option(help="Where to train: cpu or cuda.")]


def check_device(device: str) -> None:
    """ValueError for a device that does not exist, or is not in this machine."""
    import torch

    if device not in ("cpu", "cuda"):
        raise ValueError(f"--device {device}: cpu or cuda is allowed")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: PyTorch sees no GPU here")
