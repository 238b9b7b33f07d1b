"""The model, the data and the training loop, as any Flower project has them."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

TEST = 360
"""The last so many digits are for judging."""


def make_model() -> nn.Module:
    torch.manual_seed(0)
    body = nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()
    return nn.Sequential(*body, nn.Linear(64, 10))


def digits() -> tuple[Tensor, Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels)


def part_of(node: int, nodes: int) -> tuple[Tensor, Tensor]:
    """The training samples of one node."""
    inputs, labels = digits()
    return inputs[:-TEST][node::nodes], labels[:-TEST][node::nodes]


def train(model: nn.Module, inputs: Tensor, labels: Tensor, epochs: int) -> float:
    """Plain SGD over what is to be trained; the mean loss of the last epoch."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    losses: list[float] = []
    for _ in range(epochs):
        losses = []
        for batch in torch.randperm(len(labels)).split(32):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def accuracy(model: nn.Module) -> float:
    inputs, labels = digits()
    with torch.no_grad():
        return (model.eval()(inputs[-TEST:]).argmax(1) == labels[-TEST:]).float().mean().item()
