"""Options that several verbs share, the headings that they stand under, and what is checked of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ternfed.cli.completion import TRACKERS, keys, one_of

DATA, FEDERATION, TRAINING = "Data and model", "Federation", "Training"
FOLDER, NETWORK, ROUNDS, BOUNDS = "The run folder", "Network", "Rounds", "What is accepted"
WATCHING, OUTPUT = "Watching it", "Output"
"""Headings in a verb's help, in this order."""

Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON object on standard output and nothing else there.", rich_help_panel=OUTPUT
    ),
]
LogJson = Annotated[
    bool,
    typer.Option("--log-json", help="Progress on standard error as one JSON object per line.", rich_help_panel=OUTPUT),
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data", help="Folder with the data sets; else $TERNFED_DATA.", rich_help_panel=DATA),
]
Allow = Annotated[
    list[str] | None,
    typer.Option("--allow", help="A module of yours whose code a file may name; may be repeated."),
]
Device = Annotated[
    str, typer.Option(help="Where to train: cpu, cuda or cuda:K.", autocompletion=one_of(("cpu", "cuda")))
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Spread the clients over so many processes of this machine, one thread each."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="key=value for any setting; overrides the file; may be repeated.", autocompletion=one_of(keys),
        metavar="KEY=VALUE",
    ),
]  # fmt: skip
Out = Annotated[Path | None, typer.Option(help="The run folder; else a new one under runs/.", rich_help_panel=FOLDER)]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the run in --out.", rich_help_panel=FOLDER)]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Delete an earlier run in --out first.", rich_help_panel=FOLDER)
]
Watch = Annotated[
    bool, typer.Option("--watch", help="Show the run on a live page of this machine.", rich_help_panel=WATCHING)
]
Metrics = Annotated[
    str | None,
    typer.Option(
        help="PORT or HOST:PORT where Prometheus finds /metrics.", rich_help_panel=WATCHING, metavar="[HOST:]PORT"
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        help="Log to tensorboard, mlflow, wandb or trackio; may be repeated.", rich_help_panel=WATCHING,
        autocompletion=one_of(TRACKERS),
    ),
]  # fmt: skip


def check_device(device: str) -> None:
    """ValueError for a device that does not exist, or is not in this machine."""
    import torch

    kind, colon, number = device.partition(":")
    if device != "cpu" and (kind != "cuda" or (colon and not (number.isascii() and number.isdigit()))):
        raise ValueError(f"--device {device}: cpu, cuda or cuda:K is allowed")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"--device {device}: PyTorch sees no GPU here")
    if number and int(number) >= (count := torch.cuda.device_count()):
        seen = "one GPU here, cuda:0" if count == 1 else f"{count} GPUs here, cuda:0 to cuda:{count - 1}"
        raise ValueError(f"--device {device}: PyTorch sees {seen}")
