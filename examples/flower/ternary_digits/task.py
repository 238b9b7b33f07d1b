"""The model and the data, as any Flower project has them."""

import torch
from torch import Tensor, nn

from ternfed.data.partitions import Iid
from ternfed.data.sets import load


def make_model() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    return nn.Sequential(nn.Flatten(), *layers)


def part_of(node: int, nodes: int) -> tuple[Tensor, Tensor]:
    """The training samples of one node."""
    train = load("digits").train
    own = Iid().split(train.labels, nodes, torch.Generator().manual_seed(0))[node]
    return train.inputs[own], train.labels[own]


def accuracy(model: nn.Module) -> float:
    test = load("digits").test
    with torch.no_grad():
        return (model(test.inputs).argmax(1) == test.labels).float().mean().item()
