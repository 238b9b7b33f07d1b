"""A language model: the next character of what Shakespeare's people say. Each of them is a client with its own lines.

python examples/next_character.py FOLDER [ROUNDS]     FOLDER holds one .txt file per client
"""

import sys
from pathlib import Path

import torch

from ternfed import federate
from ternfed.data.text import read_text, text_files
from ternfed.models import chartransformer

ROLES = 8


def main(folder: str, rounds: int = 20) -> None:
    data = read_text(text_files(Path(folder))[:ROLES], "roles", length=40)

    torch.manual_seed(0)
    model = chartransformer(vocabulary=data.classes, shape=(40,), width=64, layers=2)
    settings = ("task.name=language", "data.partition=natural")
    training = ("training.optimizer=adam", "training.rate=0.002", "training.epochs=1", "training.batch=16")
    sent = 0
    for record in federate(model, data, *settings, *training, f"federation.rounds={rounds}"):
        sent += record.bytes_up
        print(f"round {record.round}: {record.measure.text(record.score)}, {sent:,} bytes sent up")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("python examples/next_character.py FOLDER [ROUNDS]: a folder with one .txt file per client is needed")
    main(sys.argv[1], *map(int, sys.argv[2:3]))
