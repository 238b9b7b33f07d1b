"""The paper's three networks and two for text, as plain `torch.nn` modules, PyTorch's default initialisation.

All run under `torch.func.functional_call`; the paper's also under `vmap` (with BatchNorm, hand over one set of buffers
per model) and in `channels_last`. Their sizes are what the paper's communication table counts:

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
from functools import partial
from itertools import pairwise
from typing import Any

import torch
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
                f"the first linear layer takes {self.features} numbers per example but {flat.shape[1]} arrive: "
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


def plain_norm_relu(norm: nn.Module, batch: Tensor, residual: Tensor | None = None) -> Tensor:
    """relu(norm(batch) + residual), one operation after another."""
    outputs: Tensor = norm(batch)
    return (outputs if residual is None else outputs + residual).relu()


def plain_fork(batch: Tensor) -> tuple[Tensor, Tensor]:
    """The batch for each of two ways."""
    return batch, batch


class Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which is a 1×1 convolution where the stride is 2."""

    norm_relu: Callable[..., Tensor] = staticmethod(plain_norm_relu)
    """Whoever trains on a GPU gives a block a faster one (`training/fused_norm.py`)."""
    fork: Callable[[Tensor], tuple[Tensor, Tensor]] = staticmethod(plain_fork)
    """What the convolutions get, and what the shortcut gets; likewise."""

    def __init__(self, width: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.norm1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = norm(width)
        self.shortcut = nn.Sequential()
        if stride != 1:
            self.shortcut = nn.Sequential(
                OrderedDict(conv=nn.Conv2d(width, width, 1, stride, bias=False), norm=norm(width))
            )

    def forward(self, batch: Tensor) -> Tensor:
        batch, beside = self.fork(batch)
        inner = self.norm_relu(self.norm1, self.conv1(batch))
        return self.norm_relu(self.norm2, self.conv2(inner), self.shortcut(beside))


GROUPS = 2
"""Of a GroupNorm: as in Hsieh, Phanishayee, Mutlu, Gibbons (ICML 2020) and Reddi et al. (ICLR 2021)."""


def resnet18(classes: int = 10, channels_in: int = 3, width: int = 64, norm: str = "batch") -> nn.Sequential:
    """ResNet18*: ResNet18 for small images, `width` channels in every stage. Takes (N, channels_in, any H, any W).

    A 3×3 stem without pooling, four stages of two blocks (strides 1, 2, 2, 2), the mean over the image, a linear layer.
    `norm="group"` has GroupNorm in place of BatchNorm: no statistics that clients with unlike data disagree on.
    """
    if norm not in ("batch", "group"):
        raise ValueError(f"norm is {norm!r}; allowed are 'batch' and 'group'")
    if norm == "group" and width % GROUPS:
        raise ValueError(f"width is {width}; a multiple of {GROUPS} is needed with GroupNorm")
    layer: Callable[[int], nn.Module] = nn.BatchNorm2d if norm == "batch" else partial(nn.GroupNorm, GROUPS)

    def stage(stride: int) -> nn.Sequential:
        return nn.Sequential(Block(width, stride, layer), Block(width, 1, layer))

    return nn.Sequential(
        OrderedDict(
            stem=nn.Conv2d(channels_in, width, 3, padding=1, bias=False),
            norm=layer(width),
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


class CharLstm(nn.Module):
    """Embedding, LSTM, linear. Takes ids (N, T), gives a logit for each id at each place (N, T, vocabulary)."""

    def __init__(self, vocabulary: int, embedding: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.lstm(self.embedding(ids))[0])
        return outputs


def charlstm(vocabulary: int, embedding: int = 8, width: int = 256, layers: int = 2) -> CharLstm:
    """The next character by an LSTM, as McMahan et al. (2017) have it for Shakespeare's roles: 8-256-256."""
    return CharLstm(vocabulary, embedding, width, layers)


class _CausalBlock(nn.Module):
    """Attention to what came before, then two linear layers, each beside a shortcut and after a LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        # A bias of the keys changes no attention: its gradient is rounding alone, which Adam would make steps of.
        self.attend = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, batch: Tensor) -> Tensor:
        queries, keys, values = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.attend(self.norm1(batch)).chunk(3, -1)
        )
        seen = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        batch = batch + self.project(seen.transpose(1, 2).flatten(2))
        outputs: Tensor = batch + self.narrow(nn.functional.gelu(self.widen(self.norm2(batch))))
        return outputs


class CharTransformer(nn.Module):
    """A causal transformer. Takes ids (N, T), T at most `length`, gives (N, T, vocabulary)."""

    def __init__(self, vocabulary: int, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(_CausalBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        places = self.positions(torch.arange(ids.shape[1], device=ids.device))
        outputs: Tensor = self.head(self.norm(self.blocks(self.embedding(ids) + places)))
        return outputs


def chartransformer(
    vocabulary: int, shape: Sequence[int], width: int = 128, layers: int = 4, heads: int = 4
) -> CharTransformer:
    """The next character by a small transformer: four layers, 128 wide, for sequences of the shape (length,)."""
    if width % heads:
        raise ValueError(f"heads is {heads}; a divisor of the width {width} is needed")
    (length,) = shape
    return CharTransformer(vocabulary, length, width, layers, heads)


def build(name: str, **options: Any) -> nn.Module:
    """The network of that name with its own options, for settings that come from a file."""
    make: Callable[..., nn.Module]
    match name:
        case "mlp":
            make = mlp
        case "cnn":
            make = cnn
        case "resnet18":
            make = resnet18
        case "charlstm":
            make = charlstm
        case "chartransformer":
            make = chartransformer
        case _:
            raise ValueError(
                f"model is {name!r}; allowed are 'mlp', 'cnn', 'resnet18', 'charlstm' and 'chartransformer'"
            )
    allowed = list(inspect.signature(make).parameters)
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise ValueError(f"{name} has no option {', '.join(unknown)}; allowed are {', '.join(allowed)}")
    return make(**options)
