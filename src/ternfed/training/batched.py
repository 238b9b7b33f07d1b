"""Many clients trained at once: the local steps of `training.train_one` for networks that are chains of linear layers.

Each tensor of the model is stacked over the clients, (clients, …), and a local step of all of them is a handful of
batched products with a backward pass written by hand. Activations lie as (clients, features, samples), because
W · Xᵀ and Ȳ · X are the products that BLAS runs fastest for narrow layers. Clients of uneven size stay exact: they are
sorted by their number of steps, so that those still working are a prefix of the stack, and a sample that only fills
up a batch has weight 0. Tests hold all of it to `train_one` to float64 rounding.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ternfed.algorithms.algorithm import Local, Network, Training, Weights
from ternfed.algorithms.optimizers import Adam, Optimizer
from ternfed.data.values import Samples
from ternfed.quantize import fused, pieces
from ternfed.quantize.ternary import Quantizer, Scale, check_threshold_factor
from ternfed.training.chain import Layer, chain_of
from ternfed.training.work import Trained, TrainingData, Work

WINDOW = 256
"""Clients are sorted by size within so many of them; the results of no more are held back."""
WORKING_SET = {"cpu": 16 << 20, "cuda": 1 << 30}
"""Bytes that the clients trained at once may touch in a step: on a CPU, what its last cache holds (docs/LOG.md)."""
WHOLE = 16
"""A short batch is filled up to a multiple of this: what is left over after whole vectors is computed by other code,
which rounds otherwise, and a client's bits must not depend on how large its neighbours are."""

Count = int | Tensor
"""A number of steps: the same for all clients, or (clients, 1) in float64."""
Gradient = Tensor | tuple[Tensor, Tensor]
"""A pair stands for its batched product, so that the product can be added right onto what it changes."""
Multiply = Callable[[Tensor, Tensor], Tensor]
"""The batched product."""


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
    multiply = torch.bmm if alone else _bmm
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

    for step in _steps(works, training, samples):
        now = {**weights, **frozen}
        if step.active < len(works):
            now = {name: tensor[: step.active] for name, tensor in now.items()}
        traces: list[tuple[list[str], fused.Trace]] = []
        ternary = step.plain, step.active
        if step.plain:
            now |= {name: _before(now[name], scale[: step.plain]) for name, scale in plain_scales.items()}
        if quantized is not None and step.plain < step.active:
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
        inputs = rows.view(step.active, -1, rows.shape[1]).transpose(1, 2)
        values = _forward(chain, now, inputs, multiply)
        slope, loss = _cross_entropy(values[-1], step)
        if loss is not None:
            losses[step.earlier : step.active] += loss
        gradients = _backward(chain[lowest:], now, values[lowest:], slope, multiply)
        if step.plain:
            for name, scale in plain_scales.items():
                gradients[name] = _before(_product(gradients[name], multiply), scale[: step.plain])
        del now  # quantized weights have done their work
        for names, trace in traces:
            whole = [_product(gradients.pop(name), multiply) for name in names]
            passed, summed = fused.backward(trace, [_part(gradient, *ternary) for gradient in whole], alone)
            both = [_after(gradient, new) for gradient, new in zip(whole, passed, strict=True)]
            for name, gradient in zip((name for name in names if name in scales), summed, strict=True):
                scales[name].move(ternary, gradient, step.quantized)
            del trace, whole, passed
            for name, gradient in zip(names, both, strict=True):
                trained[name].move((0, step.active), gradient, step.number)
            del both, gradient
        del traces
        for name, leaf in trained.items():
            if name in gradients:
                leaf.move((0, step.active), gradients[name], step.number)
        if training.clip is not None:
            for latent in latents.values():
                latent[: step.active].clamp_(-training.clip, training.clip)
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


class _Step(NamedTuple):
    """One local step. Clients are sorted by their number of steps, so those at work are the first ones."""

    number: int
    """From 1."""
    active: int
    """So many clients are at work, with `width` samples each."""
    plain: int
    """So many of them in an epoch without quantization."""
    earlier: int
    """So many of them in another epoch than their last."""
    quantized: Count
    """How many steps with quantization each of the others has begun."""
    chosen: Tensor
    """(active · width,): the samples; a short batch is filled up with a sample of its own."""
    labels: Tensor
    """(active, 1, width)"""
    share: Tensor
    """(active, 1, width): the weight of a sample in its batch's mean; 0 for one that fills up."""


def _steps(works: Sequence[Work], training: Training, samples: Samples) -> Iterator[_Step]:
    """The steps of clients with one number of epochs, the largest client first."""
    device, batch, epochs = samples.inputs.device, training.batch, len(works[0].order)
    sizes = [work.order.shape[1] for work in works]
    steps = [-(-size // batch) for size in sizes]
    index = torch.zeros(epochs * steps[0], len(works), batch, dtype=torch.int64)
    counts = torch.zeros(epochs * steps[0], len(works), dtype=torch.int64)
    for k, (work, count) in enumerate(zip(works, steps, strict=True)):
        fill = count * batch - sizes[k]
        rows = torch.cat((work.order, work.order[:, :1].expand(-1, fill)), dim=1) if fill else work.order
        index[: epochs * count, k] = rows.reshape(-1, batch)
        counts[: epochs * count, k] = batch
        counts[count - 1 : epochs * count : max(count, 1), k] -= fill
    share = (torch.arange(batch) < counts.unsqueeze(2)) / counts.clamp_min(1).unsqueeze(2).to(torch.float64)
    index, share = index.to(device), share.to(device, samples.inputs.dtype)
    widths = [min(batch, -(-most // WHOLE) * WHOLE) for most in (counts.amax(1).tolist() if len(counts) else [])]
    rows_of = zip(index, samples.labels[index], share, widths, strict=True)
    done = torch.tensor(steps, dtype=torch.float64, device=device).unsqueeze(1) * training.plain_epochs

    def unfinished(at: int, epochs: int) -> int:
        """How many clients have not done so many epochs before this step; `steps` descends."""
        return bisect_left(steps, True, key=lambda count: count * epochs <= at)

    for at, (chosen, labels, weight, width) in enumerate(rows_of):
        active = unfinished(at, epochs)
        plain = min(active, unfinished(at, training.plain_epochs))
        yield _Step(
            number=at + 1,
            active=active,
            plain=plain,
            earlier=min(active, unfinished(at, training.epochs - 1)),
            quantized=at + 1 - done[plain:active] if training.plain_epochs else at + 1,
            chosen=chosen[:active, :width].reshape(-1),
            labels=labels[:active, None, :width],
            share=weight[:active, None, :width],
        )


def _part(tensor: Tensor, start: int, stop: int) -> Tensor:
    """tensor[start:stop], without the cost of a view where that is the whole tensor."""
    return tensor if start == 0 and stop == tensor.size(0) else tensor[start:stop]  # `len` takes five times as long


def _forward(chain: list[Layer], weights: Weights, inputs: Tensor, multiply: Multiply) -> list[Tensor]:
    """The inputs and every layer's outputs, (clients, features, samples)."""
    values = [inputs]
    for layer in chain:
        above = multiply(weights[layer.weight], values[-1])
        if layer.bias is not None:
            above += weights[layer.bias].unsqueeze(2)
        values.append(above.relu_() if layer.relu else above)
    return values


def _cross_entropy(outputs: Tensor, step: _Step) -> tuple[Tensor, Tensor | None]:
    """The derivative (softmax - one-hot) · share, and the summed loss of every client in its last epoch, if any is."""
    slope = outputs.softmax(1).mul_(step.share).scatter_add_(1, step.labels, -step.share)
    if step.earlier == step.active:
        return slope, None
    last = slice(step.earlier, step.active)
    right = outputs[last].log_softmax(1).gather(1, step.labels[last]) * (step.share[last] > 0)
    # float64 holds the sum of a batch's float32 exactly, in whatever order.
    return slope, -right.sum((1, 2), dtype=torch.float64)


def _backward(
    chain: list[Layer], weights: Weights, values: list[Tensor], slope: Tensor, multiply: Multiply
) -> dict[str, Gradient]:
    """The gradients of the chain's tensors, from its `values` (one more than layers) and that of its last output."""
    gradients: dict[str, Gradient] = {}
    for i, layer in reversed(list(enumerate(chain))):
        if layer.relu:
            slope = torch.ops.aten.threshold_backward(slope, values[i + 1], 0)
        gradients[layer.weight] = slope, values[i].transpose(1, 2)
        if layer.bias is not None:
            gradients[layer.bias] = slope.sum(2)
        if i > 0:
            slope = multiply(weights[layer.weight].transpose(1, 2), slope)
    return gradients


def _bmm(first: Tensor, second: Tensor) -> Tensor:
    """The batched product, for one client with the bits that it has among many.

    BLAS rounds a single product otherwise than one of a batch, and a client must not depend on who trains beside it.
    """
    return torch.bmm(first, second) if first.size(0) > 1 else torch.bmm(_twice(first), _twice(second))[:1]


def _twice(single: Tensor) -> Tensor:
    return single.expand(2, -1, -1)


def _product(gradient: Gradient, multiply: Multiply) -> Tensor:
    return multiply(*gradient) if isinstance(gradient, tuple) else gradient


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
            _adam(value, first, second, _product(gradient, self.multiply), self.rate, self.decay, count)
        elif moments:
            self._accumulate(moments[0], gradient, self.optimizer.momentum, 1.0)
            if self.decay:
                moments[0].add_(value, alpha=self.decay)
            value.add_(moments[0], alpha=-self.rate)
        else:
            self._accumulate(value, gradient, 1.0 - self.rate * self.decay, -self.rate)

    def _accumulate(self, into: Tensor, gradient: Gradient, keep: float, times: float) -> None:
        """into ← keep · into + times · gradient."""
        if isinstance(gradient, tuple) and into.size(0) == 1 and self.multiply is _bmm:  # as it does
            into.copy_(torch.baddbmm(_twice(into), *map(_twice, gradient), beta=keep, alpha=times)[:1])
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
