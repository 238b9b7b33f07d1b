"""The paper's three networks as plain `torch.nn` modules, PyTorch's default initialisation.

All three run under `torch.func.functional_call` and `vmap` (with BatchNorm, hand over one set of buffers a model) and
in `channels_last`. Their sizes are what the paper's communication table counts:

| network      | parameters | Linear and Conv weights but the first and the last |
|--------------|------------|----------------------------------------------------|
| `mlp()`      |     24,320 |                                                600 |
| `cnn()`      |  1,061,460 |                                          1,059,016 |
| `resnet18()` |    607,050 |                                            602,112 |
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor, nn


class Flatten(nn.Module):
    """(N, …) to (N, features); an input of another size is an error that says so, not a failed matrix product."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def forward(self, batch: Tensor) -> Tensor:
        flat = batch.flatten(1)
        if flat.shape[1] != self.features:
            raise ValueError(
                f"the first linear layer takes {self.features} numbers an example but {flat.shape[1]} arrive: "
                "build the network for this input size"
            )
        return flat

    def extra_repr(self) -> str:
        return f"features={self.features}"


def mlp(
    activation: str = "relu", inputs: int = 784, hidden: Sequence[int] = (30, 20), classes: int = 10
) -> nn.Sequential:
    """784-30-20-10 without bias. Takes images (N, 1, 28, 28) or rows (N, 784).

    `activation="none"` leaves a product of matrices, a linear classifier: the network of the authors' code.
    """
    if activation not in ("relu", "none"):
        raise ValueError(f"activation is {activation!r}; allowed are 'relu' and 'none'")
    parts: OrderedDict[str, nn.Module] = OrderedDict(flatten=Flatten(inputs))
    for index, (fan_in, fan_out) in enumerate(pairwise((inputs, *hidden, classes)), start=1):
        if index > 1 and activation == "relu":
            parts[f"relu{index - 1}"] = nn.ReLU()
        parts[f"linear{index}"] = nn.Linear(fan_in, fan_out, bias=False)
    return nn.Sequential(parts)


def cnn(channels: int = 3, size: int = 32, classes: int = 10) -> nn.Sequential:
    """Five 3×3 convolutions 32-64-128-256-256, then 4096-20-10-10. Takes (N, channels, size, size), size ≥ 8.

    Biases sit on the first convolution and the linear layers, BatchNorm on convolutions 2 to 5, max pooling after 2, 3
    and 5, ReLU after all but the last layer. The paper's text leaves this open; its 16196.59 Mb (1,061,460 numbers) and
    2201.84 Mb (convolutions 2 to 5 with their BatchNorm, 978,304 numbers, at 2 bits) settle it.
    """
    if size < 8:
        raise ValueError(f"size is {size}; three poolings halve the image, so at least 8 is needed")
    parts: OrderedDict[str, nn.Module] = OrderedDict(conv1=nn.Conv2d(channels, 32, 3, padding=1), relu1=nn.ReLU())
    for index, (fan_in, fan_out) in enumerate(pairwise((32, 64, 128, 256, 256)), start=2):
        parts[f"conv{index}"] = nn.Conv2d(fan_in, fan_out, 3, padding=1, bias=False)
        parts[f"norm{index}"] = nn.BatchNorm2d(fan_out)
        parts[f"relu{index}"] = nn.ReLU()
        if index in (2, 3, 5):
            parts[f"pool{index}"] = nn.MaxPool2d(2)
    features = 256 * (size // 8) ** 2
    parts |= OrderedDict(
        flatten=Flatten(features),
        linear1=nn.Linear(features, 20),
        relu6=nn.ReLU(),
        linear2=nn.Linear(20, 10),
        relu7=nn.ReLU(),
        linear3=nn.Linear(10, classes),
    )
    return nn.Sequential(parts)


class _Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which is a 1×1 convolution where the stride is 2."""

    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1:
            self.shortcut = nn.Sequential(
                OrderedDict(conv=nn.Conv2d(width, width, 1, stride, bias=False), norm=nn.BatchNorm2d(width))
            )

    def forward(self, batch: Tensor) -> Tensor:
        inner = self.norm1(self.conv1(batch)).relu()
        outer: Tensor = self.norm2(self.conv2(inner)) + self.shortcut(batch)
        return outer.relu()


def resnet18(classes: int = 10, channels_in: int = 3, width: int = 64) -> nn.Sequential:
    """ResNet18*: ResNet18 for small images, `width` channels in every stage. Takes (N, channels_in, any H, any W).

    A 3×3 stem without pooling, four stages of two blocks (strides 1, 2, 2, 2), the mean over the image, a linear layer.
    """

    def stage(stride: int) -> nn.Sequential:
        return nn.Sequential(_Block(width, stride), _Block(width, 1))

    return nn.Sequential(
        OrderedDict(
            stem=nn.Conv2d(channels_in, width, 3, padding=1, bias=False),
            norm=nn.BatchNorm2d(width),
            relu=nn.ReLU(),
            stage1=stage(1),
            stage2=stage(2),
            stage3=stage(2),
            stage4=stage(2),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            linear=nn.Linear(width, classes),
        )
    )


def build(name: str, **options: Any) -> nn.Sequential:
    """The network of that name with its own options, for settings that come from a file."""
    make: Callable[..., nn.Sequential]
    match name:
        case "mlp":
            make = mlp
        case "cnn":
            make = cnn
        case "resnet18":
            make = resnet18
        case _:
            raise ValueError(f"model is {name!r}; allowed are 'mlp', 'cnn' and 'resnet18'")
    allowed = list(inspect.signature(make).parameters)
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise ValueError(f"{name} has no option {', '.join(unknown)}; allowed are {', '.join(allowed)}")
    return make(**options)
