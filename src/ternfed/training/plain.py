"""One client's local training as a pure function: the reference that every faster way is held to."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.func import functional_call

from ternfed.algorithms.algorithm import Correct, Local, Network, Training, Weights
from ternfed.quantize.layers import take_back
from ternfed.quantize.ternary import quantize
from ternfed.training.work import Trained, TrainingData, Work, computing_in, placed


def train_one(network: Network, training: Training, feed: TrainingData, work: Work) -> Trained:
    """Local training, one step after another (Algorithm 1): forward, loss, backward, correction, optimizer, clip."""
    local = work.local
    device = feed.samples.inputs.device
    leaves = {name: tensor.to(device, copy=True).requires_grad_() for name, tensor in local.weights.items()}
    factors = {name: tensor.to(device, copy=True).requires_grad_() for name, tensor in local.factors.items()}
    buffers = {name: tensor.to(device, copy=True) for name, tensor in local.buffers.items()}
    optimizers = make_optimizers(training, leaves, factors, work.rates)
    started = replace(local, weights={name: tensor.to(device) for name, tensor in local.weights.items()})
    moving = [*leaves.values(), *factors.values()]
    model = placed(network, device).model
    total, seen = 0.0, 0
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(work.seed)
        steps = list(work.steps(training.batch))
        for number, (epoch, order, offsets, flips) in enumerate(steps):
            inputs, labels = feed.batch(order, offsets, flips)
            if training.forward is None:
                weights = forward_weights(training, leaves, factors, local, epoch)
            else:
                weights = training.forward(leaves, factors, started, number / len(steps))
            with computing_in(training.precision, device):
                outputs = functional_call(model, {**weights, **buffers}, (inputs,))
                loss = network.task.loss(outputs, labels)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward(inputs=moving)  # type: ignore[no-untyped-call]
            if training.correct is not None:
                _correct(training.correct, leaves, started)
            for optimizer in optimizers:
                optimizer.step()
            if training.clip is not None:
                with torch.no_grad():
                    for name in training.ternary:
                        leaves[name].clamp_(-training.clip, training.clip)
            if epoch == training.epochs - 1:
                total, seen = total + loss.item() * len(labels), seen + len(labels)
    take_back(model)
    moved = [{name: t.detach().cpu() for name, t in group.items()} for group in (leaves, factors, buffers)]
    return Trained(replace(local, weights=moved[0], factors=moved[1], buffers=moved[2]), total / max(seen, 1))


def _correct(correct: Correct, leaves: Weights, started: Local) -> None:
    """Replace the gradients of a step by those that the algorithm wants."""
    with torch.no_grad():
        gradients = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
        current = {name: leaf.detach() for name, leaf in leaves.items()}
        for name, gradient in correct(gradients, current, started).items():
            leaves[name].grad = gradient


def forward_weights(training: Training, leaves: Weights, factors: Weights, local: Local, epoch: int) -> Weights:
    """The weights of one forward pass: ternary layers quantized, unless this epoch is one of the plain ones."""
    if training.quantizer is None:
        return leaves
    if epoch < training.plain_epochs:
        return {name: local.scales[name] * leaf if name in local.scales else leaf for name, leaf in leaves.items()}
    quantizer = replace(training.quantizer, factor=local.threshold)
    return {
        name: quantize(leaf, factors.get(name), quantizer) if name in training.ternary else leaf
        for name, leaf in leaves.items()
    }


def make_optimizers(
    training: Training, leaves: Weights, factors: Weights, rates: tuple[float, float, float]
) -> list[torch.optim.Optimizer]:
    """The optimizers of one round: of everything, or of the latent weights and of the rest."""
    latents = [leaf for name, leaf in leaves.items() if name in training.ternary]
    others = [leaf for name, leaf in leaves.items() if name not in training.ternary]
    decays = (training.weight_decay, training.weight_decay, 0.0)
    groups = [
        {"params": parameters, "lr": rate, "weight_decay": decay}
        for parameters, rate, decay in zip((others, latents, list(factors.values())), rates, decays, strict=True)
    ]
    return [optimizer.over(own, rates[0]) for optimizer, own in training.share_out(groups)]
