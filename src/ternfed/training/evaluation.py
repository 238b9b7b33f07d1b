"""How good a model is, and BatchNorm statistics recomputed for it; both in batches, on the device of the samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn
from torch.func import functional_call

from ternfed.algorithms.algorithm import Network, Weights
from ternfed.data.images import normalise
from ternfed.data.values import DataSet, Samples

BATCH = 1000
"""Samples at a time, …"""
NUMBERS = 2**26
"""… and where each has many targets, no more than so many outputs: 256 MiB."""
CACHED = 64
"""Samples at a time that a CPU judges with convolutions, or with many targets each: 1,000 do not fit its caches, and
each takes up to three times as long. Not where statistics are counted, which depend on what a batch is."""


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Evaluates models of one network on samples that it holds, normalised."""

    network: Network
    samples: Samples

    @staticmethod
    def of(network: Network, data: DataSet, samples: Samples, device: str = "cpu") -> Evaluator:
        """For samples of a data set, normalised once."""
        inputs = normalise(samples.inputs.to(device), data.mean, data.std)
        return Evaluator(network, Samples(inputs, samples.labels.to(device)))

    @cached_property
    def _model(self) -> nn.Module:
        return self.network.copied(self.samples.inputs.device).eval()

    @cached_property
    def _counting(self) -> nn.Module:
        """The model in training mode, its BatchNorm statistics a plain mean over all batches."""
        model = self.network.in_training(self.network.copied(self.samples.inputs.device))
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
                module.momentum = None
        return model

    @torch.no_grad()
    def evaluate(self, weights: Weights) -> tuple[float, float]:
        """(the score by the task's metric, the mean loss)."""
        task, moved = self.network.task, self._moved(weights)
        sums = loss = torch.zeros((), dtype=torch.float64, device=self.samples.inputs.device)
        count = task.count(self.samples.labels)
        batches = (torch.split(each, self._judged) for each in (self.samples.inputs, self.samples.labels))
        for inputs, labels in zip(*batches, strict=True):
            outputs = functional_call(self._model, moved, (inputs,))
            sums = sums + task.metric.add(outputs, labels).to(torch.float64)
            loss = loss + task.total(outputs, labels)
        return task.metric.finish(sums.cpu(), len(self.samples)), loss.item() / count

    def score(self, weights: Weights) -> float:
        """In the metric's own units."""
        return self.evaluate(weights)[0]

    def goodness(self, weights: Weights) -> float:
        """The score turned so that higher is always better."""
        return self.network.task.metric.measure.goodness(self.score(weights))

    @torch.no_grad()
    def statistics(self, weights: Weights) -> Weights:
        """The weights with running means and variances of these samples."""
        moved = self._moved(self.network.with_counters(weights))
        for name in self.network.buffers:
            if name.endswith(("running_mean", "running_var", "num_batches_tracked")):
                moved[name] = torch.zeros_like(moved[name])
        for inputs in torch.split(self.samples.inputs, self._batch):
            functional_call(self._counting, moved, (inputs,))
        counted = {name: moved[name].cpu() for name in self.network.buffers}
        return {**weights, **counted}

    def _moved(self, weights: Weights) -> Weights:
        return {name: tensor.to(self.samples.inputs.device) for name, tensor in weights.items()}

    @cached_property
    def _judged(self) -> int:
        """So many samples that what layers make of them fits into a CPU's caches."""
        if self.samples.inputs.device.type != "cpu":
            return self._batch
        convolves = any(isinstance(module, nn.modules.conv._ConvNd) for module in self.network.model.modules())
        return min(self._batch, CACHED) if convolves or self.network.task.dense else self._batch

    @cached_property
    def _batch(self) -> int:
        """So many samples that their outputs fit into memory."""
        if not self.network.task.dense:
            return BATCH
        with torch.no_grad():
            outputs = int(self._model(self.samples.inputs[:1]).numel())
        return min(BATCH, max(1, NUMBERS // outputs))
