"""Local training on an NVIDIA GPU: the whole step as one captured graph, several clients side by side in it.

A step of a small network is hundreds of kernels of a few microseconds, so what costs is their number. Here

- all trained tensors lie end to end in three flat ones (latent weights, factors, everything else), convolutions with
  channels last: quantizing, casting, the optimizer and clipping are a few kernels each, however many layers there are;
- the samples lie on the device, normalised and padded beforehand, so that a random crop with flip is one gather;
- every draw of a round is copied to the device once; a counter there says which batch is next;
- a graph is captured once a kind of step (its batch size, and whether it quantizes) and replayed for all clients and
  rounds, which load their own numbers into the same tensors.

Everything but the capture runs on a CPU too, where tests hold it to `training.train_one` to float64 rounding.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ternfed.algorithms.algorithm import Local, Network, Training, Weights
from ternfed.quantize import fused
from ternfed.quantize.fused import Segments
from ternfed.quantize.ternary import check_threshold_factor
from ternfed.training.fused_conv import fuse_convolutions
from ternfed.training.fused_norm import fuse_norms
from ternfed.training.resident import ALIGNED, Table, layout_of, table_of
from ternfed.training.work import Trained, TrainingData, Work, computing_in, copy_on

SIDE_BY_SIDE = 5
"""Clients in one graph, each on a stream of its own: their small kernels fill the GPU together."""
PIECES = 32
"""As many tensors as PyTorch's fused Adam takes in one launch, less a few."""
PLAIN_STEPS = 2
"""So many steps of a kind run as they are, which is the warm-up that capture needs; a rare tail is never captured."""


class CapturedTrainer:
    """Trains clients of one network on one device, in all rounds; samples, slots and graphs there go with it."""

    def __init__(
        self,
        network: Network,
        training: Training,
        feed: TrainingData,
        *,
        side_by_side: int = SIDE_BY_SIDE,
        compiled: bool = False,
    ) -> None:
        """`compiled` puts full batches through `torch.compile`: a minute once, for fewer kernels in every step."""
        if training.one_by_one:
            raise ValueError(
                "steps that are corrected, or use weights of their own, are for plain training alone: use train_one"
            )
        self._network, self._training, self._feed = network, training, feed
        self._side_by_side, self._compiled = side_by_side, compiled
        self._device: _OnDevice | None = None

    def train(self, works: Sequence[Work]) -> Iterator[Trained]:
        """`train_one` of every client's work, in their order; the results lie in the CPU's memory."""
        if not works:
            return
        if self._training.quantizer is not None:
            for work in works:
                check_threshold_factor(self._training.quantizer.rule, work.local.threshold)
        if self._device is None or self._device.dtype != _dtype(works[0].local):
            self._device = _OnDevice(self._network, self._training, self._feed, self._compiled, works[0].local)
        at_once = 1 if self._device.probe.random else self._side_by_side
        # Clients of like size keep step with each other.
        longest_first = sorted(range(len(works)), key=lambda k: -works[k].order.numel())
        done: dict[int, Trained] = {}
        for at in range(0, len(works), at_once):
            group = longest_first[at : at + at_once]
            done.update(zip(group, self._device.train([works[k] for k in group]), strict=True))
        yield from (done[k] for k in range(len(works)))


def _dtype(local: Local) -> torch.dtype:
    return next(iter(local.weights.values())).dtype


class _Kind(NamedTuple):
    """What the steps of one graph have in common."""

    batch: int
    quantizing: bool


class _OnDevice:
    """The slots that clients are trained in, and the graphs that move them."""

    def __init__(self, network: Network, training: Training, feed: TrainingData, compiled: bool, local: Local) -> None:
        self.device, self.dtype = feed.samples.inputs.device, _dtype(local)
        self.training, self.loss = training, network.task.loss
        self.table = table_of(feed, torch.bfloat16 if training.precision == "bfloat16" else None)
        self.layout = layout_of(network, training, local.weights)
        self.segments = Segments(1, tuple(self.layout.ternary.lengths), self.device)
        self.probe = _probe(network.model, self.table, training, local)
        self.network = _forward(network.model, self.probe, self.device, training.batch if compiled else 0)
        self.slots: list[_Slot] = []
        self.room = 0
        self.graphs: dict[tuple[tuple[int, ...], _Kind], torch.cuda.CUDAGraph] = {}
        self.seen: Counter[tuple[tuple[int, ...], _Kind]] = Counter()
        self.streams: list[torch.cuda.Stream] = []
        self.captures = self.device.type == "cuda"
        self.pool = torch.cuda.graph_pool_handle() if self.captures else None

    def train(self, works: Sequence[Work]) -> list[Trained]:
        """The work of a few clients at the same time."""
        self._make_room(works)
        # Rounding must not depend on which algorithm happened to win a race at the first step.
        exact = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
        with exact, torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(works[0].seed)
            for slot, work in zip(self.slots, works, strict=False):
                slot.load(work)
            self._walk(works)
        return [slot.outcome(work) for slot, work in zip(self.slots, works, strict=False)]

    def _walk(self, works: Sequence[Work]) -> None:
        """All steps, as many clients at once as stand before the same kind of full batch."""
        plans = [_plan(work, self.training) for work in works]
        at = [0] * len(works)
        last_epoch = [
            len(plan) // len(work.order) * (self.training.epochs - 1) for plan, work in zip(plans, works, strict=True)
        ]
        while ahead := {k: plans[k][at[k]] for k in range(len(works)) if at[k] < len(plans[k])}:
            for k in ahead:
                if at[k] == last_epoch[k]:
                    self.slots[k].total.zero_()  # only that epoch's loss is reported
            for which in _turn(ahead, self.training.batch):
                self._run(which, ahead[which[0]])
                for k in which:
                    at[k] += 1

    def _run(self, which: tuple[int, ...], kind: _Kind) -> None:
        key = (which, kind)
        self.seen[key] += 1
        if self.captures and self.seen[key] > PLAIN_STEPS and self._has_graph(which, kind):
            self.graphs[key].replay()
            return
        for k in which:
            self.slots[k].step(kind)

    def _has_graph(self, which: tuple[int, ...], kind: _Kind) -> bool:
        """Whether there is a graph for this step, captured now if need be.

        A user's network may do what no graph can hold, such as look at a number on the CPU. Nothing runs while a step
        is captured, so that the step can then be made as it is.
        """
        if (which, kind) not in self.graphs:
            try:
                self.graphs[which, kind] = self._capture(which, kind)
            except RuntimeError as error:
                self.captures = False
                self.graphs.clear()
                reason = str(error).partition("\n")[0]
                logging.getLogger("ternfed").warning("training goes on without a captured graph, slower: %s", reason)
        return self.captures

    def _capture(self, which: tuple[int, ...], kind: _Kind) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # One pool for all graphs: none needs what another left there, and no two run at a time.
        with torch.cuda.graph(graph, pool=self.pool):
            here = torch.cuda.current_stream()
            for k in which:
                self.streams[k].wait_stream(here)
                with torch.cuda.stream(self.streams[k]):
                    self.slots[k].step(kind)
            for k in which:
                here.wait_stream(self.streams[k])
        return graph

    def _make_room(self, works: Sequence[Work]) -> None:
        """Slots for so many clients with so many samples; graphs hold addresses, so new ones start over.

        They seldom do: there is room for clients up to twice as large.
        """
        needed = max(work.order.numel() for work in works)
        if needed > self.room:
            self.room = 2 * needed if self.room else needed
            self.slots.clear()
            self.graphs.clear()
            self.seen.clear()
            if self.captures:
                self.pool = torch.cuda.graph_pool_handle()  # the old one went with the last graph that used it
        while len(self.slots) < len(works):
            self.slots.append(_Slot(self, works[0].local, self.room))
            if self.device.type == "cuda" and len(self.streams) < len(self.slots):
                self.streams.append(torch.cuda.Stream(self.device))  # type: ignore[no-untyped-call]


def _plan(work: Work, training: Training) -> list[_Kind]:
    """The kind of each local step."""
    full, tail = divmod(work.order.shape[1], training.batch)
    sizes = [training.batch] * full + [tail] * (tail > 0)
    first = training.plain_epochs if training.quantizer is not None else len(work.order)
    return [_Kind(size, epoch >= first) for epoch in range(len(work.order)) for size in sizes]


def _turn(ahead: Mapping[int, _Kind], full: int) -> list[tuple[int, ...]]:
    """Who moves next, those of one group at once: whoever would otherwise keep the others from moving together.

    Tails of an epoch go first and one by one, since graphs for every mix of their sizes would be too many; then those
    that do not quantize yet.
    """
    tails: list[tuple[int, ...]] = [(k,) for k, kind in ahead.items() if kind.batch < full]
    plain = tuple(k for k, kind in ahead.items() if not kind.quantizing)
    return tails or [plain or tuple(ahead)]


class _Slot:
    """The tensors of one client at a time, always at the same addresses, and the step that moves them."""

    def __init__(self, shared: _OnDevice, local: Local, room: int) -> None:
        self.training, self.table, self.layout = shared.training, shared.table, shared.layout
        self.network, self.probe, self.loss = shared.network, shared.probe, shared.loss
        self.segments, device = shared.segments, shared.device
        like = next(iter(local.weights.values()))

        def empty(count: int, dtype: torch.dtype = like.dtype) -> Tensor:
            return torch.zeros(count, dtype=dtype, device=device)

        self.latents = empty(self.layout.ternary.size)
        self.others = empty(self.layout.cast.size + self.layout.kept.size)
        self.factors = empty(sum(t.numel() for t in local.factors.values()))
        self.buffers = {n: t.to(device, copy=True) for n, t in local.buffers.items() if n not in self.probe.rises}
        self.dtype = torch.bfloat16 if self.training.precision == "bfloat16" else like.dtype
        self.threshold = empty(1)
        warms_up = self.training.quantizer is not None and self.training.plain_epochs > 0
        self.scales = empty(self.layout.ternary.size) if warms_up else None
        # The fused optimizers read float32 rates on a GPU.
        self.rates = [empty(1, torch.float32 if device.type == "cuda" else torch.float64)[0] for _ in range(3)]
        self.pieces = [_pieces(flat) for flat in (self.others, self.latents, self.factors)]
        self.optimizers = self._make_optimizers()
        self.cursor, self.ramp = empty(1, torch.int64), torch.arange(self.training.batch, device=device)
        self.start, self.turn = (empty(room, torch.int64) for _ in range(2))
        self.labels = self.table.labels.new_zeros(room, *self.table.labels.shape[1:])
        self.total = empty(1, torch.float64)

    def _make_optimizers(self) -> list[torch.optim.Optimizer]:
        """As in `plain.make_optimizers`, over the flat tensors."""
        decays = (self.training.weight_decay, self.training.weight_decay, 0.0)
        groups = [
            {"params": pieces, "lr": rate, "weight_decay": decay}
            for pieces, rate, decay in zip(self.pieces, self.rates, decays, strict=True)
        ]
        shared = self.training.share_out(groups)
        return [optimizer.over(own, self.rates[0], captured=True) for optimizer, own in shared]

    @torch.no_grad()
    def load(self, work: Work) -> None:
        """A client's own numbers: where it starts, and every draw of its round."""
        local, layout = work.local, self.layout
        self.latents.copy_(layout.ternary.pack(local.weights))
        self.others.copy_(torch.cat((layout.kept.pack(local.weights), layout.cast.pack(local.weights))))
        if self.factors.numel():
            self.factors.copy_(torch.cat([local.factors[span.name] for span in layout.ternary.spans]))
        for name, tensor in self.buffers.items():
            tensor.copy_(local.buffers[name])
        for state in chain.from_iterable(optimizer.state.values() for optimizer in self.optimizers):
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()
        self.threshold.fill_(work.local.threshold)
        if self.scales is not None:
            names = [span.name for span in layout.ternary.spans]
            filled = {name: torch.full_like(local.weights[name], local.scales.get(name, 1.0)) for name in names}
            self.scales.copy_(layout.ternary.pack(filled))
        for rate, value in zip(self.rates, work.rates, strict=True):
            rate.fill_(value)
        start, turn = self.table.places(work)
        for place, values in ((self.start, start), (self.turn, turn)):
            place[: len(values)].copy_(values)
        order = work.order.reshape(-1).to(self.labels.device)
        self.labels[: len(order)].copy_(self.table.labels[order])
        self.cursor.zero_()
        self.total.zero_()

    def step(self, kind: _Kind) -> None:
        """Forward, loss, backward, optimizer, clip of the next batch: one step of `train_one`."""
        at = self.cursor + self.ramp[: kind.batch]
        inputs = self.table.take(self.start, self.turn, at)
        labels = self.labels.index_select(0, at)
        self.cursor += kind.batch

        weights, trace = self.latents, None
        if kind.quantizing:
            assert self.training.quantizer is not None
            factors = self.factors if self.factors.numel() else None
            weights, trace = fused.forward_flat(
                weights,
                factors,
                self.layout.flat_shapes,
                self.training.quantizer,
                self.segments,
                thresholds=self.threshold,
            )
        elif self.scales is not None:
            weights = weights * self.scales
        count, split = len(weights), self.layout.kept.size
        others = self.others
        # One tensor is the leaf of all layers that compute in `precision`: rounding them, and collecting their
        # gradients, takes one kernel instead of one per layer.
        leaf = torch.empty(self.layout.computing.size, dtype=self.dtype, device=weights.device)
        leaf[:count], leaf[count:] = weights, others[split:]
        kept = others.detach()[:split]
        leaf.requires_grad_()
        kept.requires_grad_()
        tensors = {**self.layout.computing.views(leaf), **self.layout.kept.views(kept), **self.buffers}
        with computing_in(self.training.precision, weights.device):
            loss = self.loss(self.network(tensors, inputs), labels)
        slope, slope_kept = torch.autograd.grad(loss, (leaf, kept), materialize_grads=True)
        slope = slope.to(others.dtype)

        slopes: list[Tensor | None] = [torch.cat((slope_kept, slope[count:])), slope[:count], None]
        if trace is not None:
            slopes[1:] = fused.backward_flat(trace, slope[:count])
        elif self.scales is not None:
            slopes[1] = slope[:count] * self.scales
        for pieces, flat in zip(self.pieces, slopes, strict=True):
            if pieces and flat is not None:
                for piece, part in zip(pieces, torch.split(flat, len(pieces[0])), strict=True):
                    piece.grad = part
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if self.training.clip is not None:
            self.latents.clamp_(-self.training.clip, self.training.clip)
        self.total.add_(loss.detach(), alpha=kind.batch)

    def outcome(self, work: Work) -> Trained:
        """What the client ends with."""
        local, spans = work.local, self.layout.ternary.spans
        others = self.others.cpu()
        moved = {
            **self.layout.ternary.views(self.latents.cpu()),
            **self.layout.kept.views(others[: self.layout.kept.size]),
            **self.layout.cast.views(others[self.layout.kept.size :]),
        }
        weights = {
            name: moved[name].clone(memory_format=torch.contiguous_format) if name in moved else tensor.cpu().clone()
            for name, tensor in local.weights.items()
        }
        steps = len(_plan(work, self.training))
        buffers = {
            name: tensor.cpu() + steps * self.probe.rises[name]
            if name in self.probe.rises
            else self.buffers[name].cpu().clone()
            for name, tensor in local.buffers.items()
        }
        parts = self.factors.cpu().view(len(spans), -1).unbind() if local.factors else ()
        factors = {span.name: part.clone() for span, part in zip(spans, parts, strict=False)}
        moved_local = replace(
            local, weights=weights, buffers=buffers, factors={name: factors[name] for name in local.factors}
        )
        return Trained(moved_local, self.total.item() / max(work.order.shape[1], 1))


def _pieces(flat: Tensor) -> list[Tensor]:
    """A flat tensor as the optimizer gets it: PyTorch's fused kernels give a tensor one block per 65,536 numbers."""
    length = -(-len(flat) // (PIECES * ALIGNED)) * ALIGNED
    return [piece.detach().requires_grad_() for piece in torch.split(flat, length)] if len(flat) else []


class _Probe(NamedTuple):
    """What a forward pass of the network does besides computing."""

    random: bool
    """It draws random numbers, for dropout say: then clients go one at a time, each with its own seed."""
    rises: dict[str, int]
    """By how much each BatchNorm counter rises; they are counted here and left out of the graph, a kernel each."""


def _probe(model: nn.Module, table: Table, training: Training, local: Local) -> _Probe:
    device = table.labels.device
    model = copy_on(model, device)
    tensors = {name: tensor.to(device, copy=True) for name, tensor in {**local.weights, **local.buffers}.items()}
    inputs = table.take(*(torch.zeros(2, dtype=torch.int64, device=device) for _ in range(3)))
    cuda = device.type == "cuda"
    with torch.no_grad(), torch.random.fork_rng([device] if cuda else []):
        before = torch.cuda.get_rng_state(device) if cuda else torch.get_rng_state()
        with computing_in(training.precision, device):
            functional_call(model, tensors, (inputs,))
        after = torch.cuda.get_rng_state(device) if cuda else torch.get_rng_state()
    counters = [
        f"{name}.num_batches_tracked".removeprefix(".")
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.momentum is not None
    ]
    rises = {name: int(tensors[name].cpu() - local.buffers[name].cpu()) for name in counters if name in local.buffers}
    return _Probe(not torch.equal(before, after), rises)


def _forward(
    model: nn.Module, probe: _Probe, device: torch.device, compiled_batch: int
) -> Callable[[Weights, Tensor], Tensor]:
    """The model as a function of its tensors, without its counters."""
    model = copy_on(model, device)
    for name in probe.rises:
        model.get_submodule(name.rpartition(".")[0])._buffers["num_batches_tracked"] = None

    def plain(tensors: Weights, inputs: Tensor) -> Tensor:
        outputs: Tensor = functional_call(model, tensors, (inputs,))
        return outputs

    if not compiled_batch:
        fuse_convolutions(fuse_norms(model))
        return plain
    fast = torch.compile(plain, dynamic=False)

    def call(tensors: Weights, inputs: Tensor) -> Tensor:
        # A tail would be compiled anew for each of its sizes.
        return fast(tensors, inputs) if len(inputs) == compiled_batch else plain(tensors, inputs)

    return call
