"""Many clients trained at once: the local steps of `training.train_one` for networks that are chains of linear layers.

Each tensor of the model is stacked over the clients, (clients, …), and a local step of all of them is a handful of
batched products with a backward pass written by hand (`passes.py`). Clients of uneven size stay exact: they are sorted
by their number of steps, so that those still working are a prefix of the stack, and a sample that only fills up a batch
has weight 0 (`steps.py`). Tests hold all of it to `train_one` to float64 rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice

import torch
from torch import Tensor, nn

from ternfed.algorithms.algorithm import Local, Network, Training, Weights
from ternfed.algorithms.optimizers import Adam, Optimizer
from ternfed.data.values import Samples
from ternfed.quantize import fused, pieces
from ternfed.quantize.ternary import Quantizer, Scale, check_threshold_factor
from ternfed.training.chain import Layer, chain_of
from ternfed.training.passes import Gradient, Multiply, as_among_many, backward, forward, product, twice, widest
from ternfed.training.steps import Count, Step, steps_of
from ternfed.training.work import Trained, TrainingData, Work

WINDOW = 256
"""Clients are sorted by size within so many of them; the results of no more are held back."""
WORKING_SET = {"cpu": 16 << 20, "cuda": 1 << 30}
"""Bytes that the clients trained at once may touch in a step: on a CPU, what its last cache holds (docs/LOG.md)."""


def trainable_chain(network: Network, training: Training, feed: TrainingData) -> list[Layer] | None:
    """The chain whose steps, as written here, are those of `train_one`; None where they would not be."""
    own_loss = network.task.loss is nn.functional.cross_entropy
    if not own_loss or training.one_by_one or training.precision != "float32" or feed.augment is not None:
        return None
    return chain_of(network.model, feed.samples.inputs.shape[1:])


def train_batched(network: Network, training: Training, feed: TrainingData, works: Iterable[Work]) -> Iterator[Trained]:
    """`train_one` of every client's work, in their order, many clients at a time."""
    chain = trainable_chain(network, training, feed)
    if chain is None:
        raise ValueError(
            "only chains of linear layers that learn cross-entropy in float32, without augmentation or corrected "
            "gradients, train many clients at once: use train_one"
        )
    samples = Samples(feed.samples.inputs.flatten(1), feed.samples.labels)
    remaining = iter(works)
    del works  # what a large client starts from is a model, and goes when it has been taken
    while window := list(islice(remaining, WINDOW)):
        if _is_large(window[0], samples):
            window.reverse()
            while window:
                yield _train_chunk(network, chain, training, samples, [window.pop()], alone=True)[0]
            continue
        done: dict[int, Trained] = {}
        for chunk in _chunks(window, _clients_at_once(window[0], training, samples)):
            outcomes = _train_chunk(network, chain, training, samples, [window[k] for k in chunk])
            done.update(zip(chunk, outcomes, strict=True))
        yield from (done[k] for k in range(len(window)))


def _clients_at_once(work: Work, training: Training, samples: Samples) -> int:
    """So many that the inputs, weights and optimizer states of one step stay within the working set."""
    copies = 1 + max(training.optimizer.moments, 0 if (own := training.latent_optimizer) is None else own.moments)
    numbers = training.batch * samples.inputs.shape[1] + copies * sum(t.numel() for t in work.local.weights.values())
    room = WORKING_SET.get(samples.inputs.device.type, WORKING_SET["cuda"])
    return max(1, room // (numbers * samples.inputs.element_size()))


def _is_large(work: Work, samples: Samples) -> bool:
    """Whether the weights of one client are more than a working set: then no two are ever trained at once."""
    size = sum(tensor.numel() for tensor in work.local.weights.values()) * samples.inputs.element_size()
    return size > WORKING_SET.get(samples.inputs.device.type, WORKING_SET["cuda"])


def _chunks(window: list[Work], most: int) -> Iterator[list[int]]:
    """Positions in the window of clients to train together: alike in rates and epochs, most samples first."""

    def kind(k: int) -> tuple[tuple[float, ...], int]:
        return window[k].rates, len(window[k].order)

    ordered = sorted(range(len(window)), key=lambda k: (*kind(k), -window[k].order.shape[1]))
    for _, group in groupby(ordered, key=kind):
        alike = list(group)
        yield from (alike[at : at + most] for at in range(0, len(alike), most))


@torch.no_grad()
def _train_chunk(
    network: Network,
    chain: list[Layer],
    training: Training,
    samples: Samples,
    given: list[Work],
    alone: bool = False,
) -> list[Trained]:
    """All local steps of clients with the same rates and number of epochs, the largest client first.

    `alone`: one client, which never has others beside it, so that its products need not be rounded as theirs would. It
    is taken out of its list, and what it starts from is let go.
    """
    multiply = torch.bmm if alone else as_among_many
    works = [given.pop()] if alone else given
    clients = [work.local for work in works]
    device = samples.inputs.device
    weights = {name: torch.stack([local.weights[name] for local in clients]).to(device) for name in clients[0].weights}
    factors = {name: torch.stack([local.factors[name] for local in clients]).to(device) for name in clients[0].factors}
    if alone:
        works = [_begun(*works)]
        clients = [work.local for work in works]
    latents = {name: tensor for name, tensor in weights.items() if name in training.ternary}
    quantized = training.quantizer if latents else None
    thresholds = _thresholds(quantized, works, next(iter(weights.values())))
    plain_scales = _plain_scales(training, clients, next(iter(weights.values())))
    trained, scales = _leaves(training, weights, factors, works[0].rates, multiply)
    frozen = _frozen(network, weights, len(works))
    lowest = next(i for i, layer in enumerate(chain) if layer.weight in trained or layer.bias in trained)
    room = samples.inputs.new_empty(len(works) * training.batch, samples.inputs.shape[1])
    losses = torch.zeros(len(works), dtype=torch.float64, device=room.device)
    # Layers end to end take fewer kernels; of a large model that would be one more copy, and their index two.
    layers = [[name] for name in latents] if alone else [list(latents)]
    kept_segments: list[fused.Segments | None] = [None] * len(layers)

    fill_up = partial(widest, chain, {**weights, **frozen}, batch=training.batch)
    for step in steps_of(works, training, samples, fill_up):
        taking = step.first, step.end
        now = {name: _part(tensor, *taking) for name, tensor in {**weights, **frozen}.items()}
        traces: list[tuple[list[str], fused.Trace]] = []
        ternary = step.plain, step.end
        if step.plain > step.first:
            now |= {name: _before(now[name], scale[step.first : step.plain]) for name, scale in plain_scales.items()}
        if quantized is not None and step.plain < step.end:
            for place, names in enumerate(layers):
                now_latents = [_part(latents[name], *ternary) for name in names]
                segments = kept_segments[place]
                if segments is None or segments.clients != len(now_latents[0]):
                    segments = kept_segments[place] = fused.Segments.of(now_latents, batched=True)
                codes, trace = fused.forward(
                    now_latents,
                    [_part(scales[name].value, *ternary) for name in names if name in scales],
                    quantized,
                    batched=True,
                    thresholds=_part(thresholds, *ternary),
                    segments=segments,
                )
                traces.append((names, trace))
                now |= {name: _after(now[name], new) for name, new in zip(names, codes, strict=True)}
                del codes, trace
        # Only now, because these inputs push everything else out of the cache.
        rows = room[: len(step.chosen)]
        torch.index_select(samples.inputs, 0, step.chosen, out=rows)
        inputs = rows.view(step.end - step.first, -1, rows.shape[1]).transpose(1, 2)
        values = forward(chain, now, inputs, multiply)
        slope, loss = _cross_entropy(values[-1], step)
        if loss is not None:
            losses[step.earlier : step.end] += loss
        gradients = backward(chain[lowest:], now, values[lowest:], slope, multiply, training.batch)
        if step.plain > step.first:
            for name, scale in plain_scales.items():
                gradients[name] = _before(product(gradients[name], multiply), scale[step.first : step.plain])
        del now  # quantized weights have done their work
        for names, trace in traces:
            whole = [product(gradients.pop(name), multiply) for name in names]
            of_ternary = [_part(gradient, step.plain - step.first, step.end - step.first) for gradient in whole]
            passed, summed = fused.backward(trace, of_ternary, alone)
            both = [_after(gradient, new) for gradient, new in zip(whole, passed, strict=True)]
            for name, gradient in zip((name for name in names if name in scales), summed, strict=True):
                scales[name].move(ternary, gradient, step.quantized)
            del trace, whole, of_ternary, passed
            for name, gradient in zip(names, both, strict=True):
                trained[name].move(taking, gradient, step.number)
            del both, gradient
        del traces
        for name, leaf in trained.items():
            if name in gradients:
                leaf.move(taking, gradients[name], step.number)
        if training.clip is not None:
            for latent in latents.values():
                latent[slice(*taking)].clamp_(-training.clip, training.clip)
    return [
        Trained(_taken(work.local, weights, factors, k), loss / max(work.order.shape[1], 1))
        for k, (work, loss) in enumerate(zip(works, losses.tolist(), strict=True))
    ]


def _begun(work: Work) -> Work:
    """The work without what it starts from; names and devices stay."""
    empty = {name: tensor.new_empty(0) for name, tensor in work.local.weights.items()}
    return replace(work, local=replace(work.local, weights=empty))


def _frozen(network: Network, trained: Weights, clients: int) -> Weights:
    """The parameters that nobody trains, one for all clients."""
    like = next(iter(trained.values()))
    return {
        name: parameter.detach().to(like).expand(clients, *parameter.shape)
        for name, parameter in network.model.named_parameters()
        if name not in trained
    }


def _taken(local: Local, weights: Weights, factors: Weights, k: int) -> Local:
    """What client k trained. Copies, unless it is alone: its result must not keep the tensors of all clients alive."""

    def own(stacked: Tensor, like: Tensor) -> Tensor:
        return stacked[k].to(like.device, copy=len(stacked) > 1)

    return replace(
        local,
        weights={name: own(tensor, local.weights[name]) for name, tensor in weights.items()},
        factors={name: own(tensor, local.factors[name]) for name, tensor in factors.items()},
        buffers={name: tensor.clone() for name, tensor in local.buffers.items()},
    )


def _after(all_: Tensor, last: Tensor) -> Tensor:
    """The clients of `all_`, the last of them replaced."""
    return last if last.size(0) == all_.size(0) else torch.cat((all_[: len(all_) - len(last)], last))


def _before(all_: Tensor, scales: Tensor) -> Tensor:
    """The clients of `all_`, the first of them multiplied by their scales."""
    first = all_[: len(scales)] * scales
    return first if len(first) == len(all_) else torch.cat((first, all_[len(first) :]))


def _plain_scales(training: Training, clients: Sequence[Local], like: Tensor) -> Weights:
    """By layer, (clients, 1, 1): what latent weights are multiplied by in plain epochs."""
    if training.quantizer is None or not training.plain_epochs:
        return {}
    return {
        name: like.new_tensor([local.scales[name] for local in clients])[:, None, None] for name in clients[0].scales
    }


def _thresholds(quantizer: Quantizer | None, works: Sequence[Work], like: Tensor) -> Tensor:
    """T_k of every client, (clients, 1)."""
    if quantizer is not None:
        for work in works:
            check_threshold_factor(quantizer.rule, work.local.threshold)
    return like.new_tensor([[work.local.threshold] for work in works])


def _part(tensor: Tensor, start: int, stop: int) -> Tensor:
    """tensor[start:stop], without the cost of a view where that is the whole tensor."""
    return tensor if start == 0 and stop == tensor.size(0) else tensor[start:stop]  # `len` takes five times as long


def _cross_entropy(outputs: Tensor, step: Step) -> tuple[Tensor, Tensor | None]:
    """The derivative (softmax - one-hot) · share, and the summed loss of every client in its last epoch, if any is."""
    slope = outputs.softmax(1).mul_(step.share).scatter_add_(1, step.labels, -step.share)
    if step.earlier == step.end:
        return slope, None
    last = slice(step.earlier - step.first, step.end - step.first)
    right = outputs[last].log_softmax(1).gather(1, step.labels[last]) * (step.share[last] > 0)
    # float64 holds the sum of a batch's float32 exactly, in whatever order.
    return slope, -right.sum((1, 2), dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class _Leaf:
    """One trained tensor of all clients, and how the optimizer moves it."""

    value: Tensor
    """(clients, …)"""
    optimizer: Optimizer
    rate: float
    decay: float
    moments: tuple[Tensor, ...]
    """Shaped like the value: none, the momentum, or Adam's two."""
    multiply: Multiply

    def move(self, clients: tuple[int, int], gradient: Gradient, count: Count) -> None:
        """The optimizer's step of clients from one to another, the `count`-th one of this tensor."""
        value, moments = self.value, self.moments
        if clients != (0, value.size(0)):
            value, moments = value[slice(*clients)], tuple(moment[slice(*clients)] for moment in moments)
        if isinstance(self.optimizer, Adam):
            first, second = moments
            _adam(value, first, second, product(gradient, self.multiply), self.rate, self.decay, count)
        elif moments:
            self._accumulate(moments[0], gradient, self.optimizer.momentum, 1.0)
            if self.decay:
                moments[0].add_(value, alpha=self.decay)
            value.add_(moments[0], alpha=-self.rate)
        else:
            self._accumulate(value, gradient, 1.0 - self.rate * self.decay, -self.rate)

    def _accumulate(self, into: Tensor, gradient: Gradient, keep: float, times: float) -> None:
        """into ← keep · into + times · gradient."""
        if isinstance(gradient, tuple) and into.size(0) == 1 and self.multiply is as_among_many:  # as it does
            into.copy_(torch.baddbmm(twice(into), *map(twice, gradient), beta=keep, alpha=times)[:1])
        elif isinstance(gradient, tuple):
            into.baddbmm_(*gradient, beta=keep, alpha=times)
        else:
            (into if keep == 1.0 else into.mul_(keep)).add_(gradient, alpha=times)


def _leaves(
    training: Training, weights: Weights, factors: Weights, rates: tuple[float, float, float], multiply: Multiply
) -> tuple[dict[str, _Leaf], dict[str, _Leaf]]:
    """The trained weights and the trained factors, with the optimizers and rates of `plain.make_optimizers`."""
    common, (of_others, of_latents, of_factors) = training.optimizer, rates

    def leaf(value: Tensor, optimizer: Optimizer, rate: float, decay: float) -> _Leaf:
        moments = tuple(torch.zeros_like(value) for _ in range(optimizer.moments))
        return _Leaf(value, optimizer, rate, decay, moments, multiply)

    own, decay = training.latent_optimizer or common, training.weight_decay
    trained = {
        name: leaf(value, own, of_latents, decay) if name in training.ternary else leaf(value, common, of_others, decay)
        for name, value in weights.items()
    }
    if training.quantizer is None or training.quantizer.scale is Scale.MEAN:
        return trained, {}
    latents = [name for name in weights if name in training.ternary]
    return trained, {name: leaf(factors[name], common, of_factors, 0.0) for name in latents}


def _adam(
    value: Tensor, first: Tensor, second: Tensor, gradient: Tensor, rate: float, decay: float, count: Count
) -> None:
    """Adam (Kingma & Ba 2015) as `torch.optim.Adam` has it: β = 0.9 and 0.999, ε = 1e-8, decay in the gradient."""
    if value.numel() > pieces.PIECE and isinstance(count, int) and gradient.is_contiguous():
        for own, own_first, own_second, own_gradient in pieces.pieces(value, first, second, gradient):
            _adam(own, own_first, own_second, own_gradient, rate, decay, count)
        return
    if decay:
        gradient = gradient.add(value, alpha=decay)
    first.lerp_(gradient, 0.1)
    second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    root = second.sqrt().div_((1 - 0.999**count) ** 0.5).add_(1e-8)
    value.sub_((first * (rate / (1 - 0.9**count))).div_(root))
