"""The model, the data and the training loop, as any Flower project has them."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

TEST = 360
"""The last so many digits are for judging."""


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 10))


def make_tuned() -> nn.Module:
    """The model with everything frozen but its last layer; here random features stand for pretrained ones."""
    model = make_model()
    for parameter in model[:-1].parameters():
        parameter.requires_grad_(False)
    return model


def head_of(model: nn.Module) -> nn.Module:
    """What is trained and sent."""
    return model[-1]


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
