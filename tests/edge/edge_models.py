"""Ternary networks for the tests of the edge: quantized at once, or trained for a moment."""

from __future__ import annotations

import torch
from torch import nn

from ternfed.data.images import normalise
from ternfed.data.values import DataSet
from ternfed.edge import Inputs, Trained, trained
from ternfed.quantize.choice import ternary_names
from ternfed.quantize.layers import parameter_groups, ternarize_
from ternfed.quantize.ternary import Quantizer, requantize


def with_two_scales(network: nn.Module) -> nn.Module:
    """The inner layers as the server broadcasts them: codes, w_p and w_n."""
    for name in ternary_names(network):
        weight = network.get_parameter(name).data
        weight.copy_(requantize(weight).dense())
    return network


def with_statistics(network: nn.Module, data: DataSet, seed: int = 0) -> Trained:
    """A network with two scales a layer, BatchNorm of real images and of no neutral value."""
    torch.manual_seed(seed)
    with_two_scales(network).train()
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
    with torch.no_grad():
        for images in data.train.inputs[:256].split(64):
            network(normalise(images, data.mean, data.std))
    return trained(network, Inputs.of(data))


def briefly_trained(network: nn.Module, data: DataSet, samples: int, quantizer: Quantizer | None = None) -> Trained:
    """One epoch of ternary training over the first samples."""
    torch.manual_seed(0)
    prepared = ternarize_(network, quantizer)
    optimizer = torch.optim.Adam(parameter_groups(prepared, 0.002, factors=0.1))
    inputs = normalise(data.train.inputs[:samples], data.mean, data.std)
    for chosen in torch.randperm(samples).split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(prepared(inputs[chosen]), data.train.labels[chosen]).backward()
        optimizer.step()
    return trained(prepared, Inputs.of(data))
