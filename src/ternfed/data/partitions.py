"""How a data set is divided among clients: every sample on exactly one client, the same for the same generator.

A partition is one of five values, and `split` does what it says: strata (N), one label per sample, become one sorted
index tensor per client. A label is a class, or with `Natural` the sample's own client. The indices count within the
strata given: after `hold_out`, split `labels[kept]` and look the parts up in `kept`. `check` refuses what no data with
so many classes can give so many clients.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Generator, Tensor


@dataclass(frozen=True)
class Iid:
    """A random division into parts whose sizes differ by at most one sample."""

    by_class: ClassVar[bool] = False
    """Whether the strata decide, and not only how many samples there are."""
    by_client: ClassVar[bool] = False
    """Whether the strata are clients."""

    def check(self, clients: int, classes: int | None = None) -> None:
        """Nothing to refuse."""

    def split(self, strata: Tensor, clients: int, generator: Generator) -> list[Tensor]:
        """The indices of each client's samples."""
        _check_clients(strata, clients)
        order = torch.randperm(len(strata), generator=generator)
        return [part.sort().values for part in order.tensor_split(clients)]


@dataclass(frozen=True)
class Classes:
    """N_c distinct classes per client, drawn at random; sizes as equal as the drawn classes allow.

    A class gets owners in proportion to its size, at least one. With N_c · clients = classes each class lies whole on
    one client (the paper's N_c = 2 with 5 clients and 10 classes).
    """

    per_client: int = field(default=2, metadata={"key": "classes_per_client"})
    """N_c; the setting `classes_per_client` of an experiment."""
    by_class: ClassVar[bool] = True
    by_client: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.per_client < 1:
            raise ValueError(f"classes_per_client = {self.per_client}: a whole number of at least 1 is allowed")

    def check(self, clients: int, classes: int | None = None) -> None:
        """Refuse more classes per client than there are, or so few that some class would lie on no client."""
        if classes is not None and not (least := math.ceil(classes / clients)) <= self.per_client <= classes:
            raise ValueError(
                f"classes_per_client = {self.per_client}: "
                f"{least} to {classes} is allowed with {classes} classes and clients = {clients}"
            )

    def split(self, strata: Tensor, clients: int, generator: Generator) -> list[Tensor]:
        """The indices of each client's samples."""
        _check_clients(strata, clients)
        present, counts = torch.unique(strata, return_counts=True)
        self.check(clients, len(present))
        slots, possible = clients * self.per_client, int(counts.clamp(max=clients).sum())
        if possible < slots:
            raise ValueError(
                f"classes_per_client = {self.per_client}: {clients} clients need {slots} parts of classes, "
                f"but {len(strata)} samples in {len(present)} classes give only {possible}"
            )
        owns = _draw_owners(_owners(counts, clients, slots, generator), clients, self.per_client, generator)
        shares = _even_shares(owns, counts)
        parts: list[list[Tensor]] = [[] for _ in range(clients)]
        for column, label in enumerate(present):
            owners = owns[:, column].nonzero().flatten()
            sizes = _apportion(int(counts[column]), shares[owners, column], least=1)
            pieces = torch.split(_shuffled((strata == label).nonzero().flatten(), generator), sizes.tolist())
            for owner, piece in zip(owners.tolist(), pieces, strict=True):
                parts[owner].append(piece)
        return [torch.cat(pieces).sort().values for pieces in parts]


@dataclass(frozen=True)
class Unbalanced:
    """Random parts of unequal size, their median / max as near the balance as whole samples allow.

    The sizes fall geometrically from the largest to the smallest: at β = 0.1 ten of 100 clients hold 38% of MNIST.
    """

    balance: float = 0.5
    """β = median / max of the client sizes (eq. imbalance)."""
    by_class: ClassVar[bool] = False
    by_client: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.balance <= 1:
            raise ValueError(f"balance = {self.balance}: above 0 and at most 1 is allowed")

    def check(self, clients: int, classes: int | None = None) -> None:
        """Refuse what one or two clients cannot have: their median is the mean, at least 1 / clients of the largest."""
        if clients <= 2 and self.balance * clients < 1:
            raise ValueError(f"balance = {self.balance}: {1 / clients:g} to 1 is allowed with clients = {clients}")

    def split(self, strata: Tensor, clients: int, generator: Generator) -> list[Tensor]:
        """The indices of each client's samples."""
        _check_clients(strata, clients)
        self.check(clients)
        sizes = unbalanced_sizes(len(strata), clients, self.balance)
        sizes = sizes[torch.randperm(clients, generator=generator)]
        order = torch.randperm(len(strata), generator=generator)
        return [part.sort().values for part in torch.split(order, sizes.tolist())]


@dataclass(frozen=True)
class Dirichlet:
    """Each class divided among the clients in proportions drawn from Dirichlet(α); at least one sample per client."""

    alpha: float = 0.5
    by_class: ClassVar[bool] = True
    by_client: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf:
            raise ValueError(f"alpha = {self.alpha}: a number above 0 is allowed")

    def check(self, clients: int, classes: int | None = None) -> None:
        """Nothing to refuse."""

    def split(self, strata: Tensor, clients: int, generator: Generator) -> list[Tensor]:
        """The indices of each client's samples."""
        _check_clients(strata, clients)
        # numpy's sampler stays exact for small α, where gamma draws underflow to nothing but zeros.
        draws = np.random.Generator(np.random.PCG64(int(torch.randint(2**62, (), generator=generator))))
        parts: list[list[Tensor]] = [[] for _ in range(clients)]
        for label in torch.unique(strata):
            members = _shuffled((strata == label).nonzero().flatten(), generator)
            proportions = torch.from_numpy(draws.dirichlet(np.full(clients, self.alpha)))
            for client, piece in enumerate(torch.split(members, _apportion(len(members), proportions).tolist())):
                parts[client].append(piece)
        joined = [torch.cat(pieces) for pieces in parts]
        richest = [(-len(part), client) for client, part in enumerate(joined)]
        heapq.heapify(richest)
        for client, part in enumerate(joined):
            if len(part) == 0:
                size, giver = richest[0]
                heapq.heapreplace(richest, (size + 1, giver))
                joined[client], joined[giver] = joined[giver][:1], joined[giver][1:]
        return [part.sort().values for part in joined]


@dataclass(frozen=True)
class Natural:
    """Every sample on the client that it belongs to by nature: a role of a play, a hospital, a sensor."""

    by_class: ClassVar[bool] = False
    by_client: ClassVar[bool] = True

    def check(self, clients: int, classes: int | None = None) -> None:
        """Nothing to refuse before the data are known."""

    def split(self, strata: Tensor, clients: int, generator: Generator) -> list[Tensor]:
        """The indices of each client's samples; the strata are clients."""
        sizes = torch.bincount(strata, minlength=clients)
        if len(sizes) > clients:
            raise ValueError(f"clients = {clients}: the data has {len(sizes)} of its own, and so many are needed")
        if len(empty := (sizes == 0).nonzero().flatten()):
            raise ValueError(
                f"client {int(empty[0])} has no samples to train on; leave it out of the data, or hold out less"
            )
        return list(torch.split(strata.argsort(stable=True), sizes.tolist()))


Partition = Iid | Classes | Unbalanced | Dirichlet | Natural


def hold_out(labels: Tensor, amount: int | float, generator: Generator) -> tuple[Tensor, Tensor]:
    """(kept, held): `amount` samples (int) or that share of them (float) set aside, from each class in proportion."""
    count = amount if isinstance(amount, int) else round(amount * len(labels))
    if not 0 <= count < len(labels):
        raise ValueError(
            f"hold_out = {amount}: 0 to {len(labels) - 1} samples, or a share from 0 to below 1, is allowed"
        )
    present, counts = torch.unique(labels, return_counts=True)
    takes = _apportion(count, counts.to(torch.float64))
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label, take in zip(present, takes.tolist(), strict=True):
        held[_shuffled((labels == label).nonzero().flatten(), generator)[:take]] = True
    return (~held).nonzero().flatten(), held.nonzero().flatten()


def histogram(labels: Tensor, parts: Sequence[Tensor], classes: int) -> Tensor:
    """How many samples of each class each client holds: clients × classes."""
    return torch.stack([torch.bincount(labels[part], minlength=classes) for part in parts])


def unbalanced_sizes(samples: int, clients: int, balance: float) -> Tensor:
    """Client sizes, largest first, none zero, that add up to `samples`, median / max as near `balance` as can be."""
    if clients <= 2:  # the median is the mean size, whatever the largest is: β = samples / (clients · largest)
        possible = range(math.ceil(samples / clients), samples - clients + 2)
        top = min(possible, key=lambda largest: abs(samples / (clients * largest) - balance))
        return torch.tensor([top, samples - top][:clients])
    middles = 2 - clients % 2
    below = (clients - middles) // 2
    above = below - 1  # clients between the largest and the median
    # Every largest size with every kind of middle: equal sizes or, for an even number of clients, also two that differ
    # by one (`gap`). For each, the median nearest to balance · largest among those with which the rest can add up.
    largest, gap = np.meshgrid(np.arange(1, samples + 1), np.arange(middles), indexing="ij")
    least = -((largest * (1 + above) + gap - samples) // (middles + below))
    most = np.minimum((samples - largest - below - gap * (above + 1)) // (above + middles), largest - gap)
    lower = np.rint(balance * largest - gap / 2).astype(np.int64).clip(np.maximum(least, 1), most)
    ideal = balance ** (2 * np.arange(clients) / (clients - 1))
    ideal *= samples / ideal.sum()
    error = np.abs((lower + gap / 2) / largest - balance).round(12)
    error[np.maximum(least, 1) > most] = np.inf
    best = np.lexsort((np.abs(np.log(largest / ideal[0])).ravel(), error.ravel()))[0]
    top, low = int(largest.flat[best]), int(lower.flat[best])
    high = low + int(gap.flat[best])
    floors = np.array([top] + [high] * above + [high, low][-middles:] + [1] * below)
    ceilings = np.array([top] + [top] * above + [high, low][-middles:] + [low] * below)
    return torch.from_numpy(np.sort(_fill(samples, ideal, floors, ceilings))[::-1].copy())


def _fill(total: int, wanted: np.ndarray, floors: np.ndarray, ceilings: np.ndarray) -> np.ndarray:
    """Integers between floors and ceilings that add up to `total`, in proportion to `wanted` where the bounds allow."""
    low, high = 0.0, float((ceilings / wanted).max())
    for _ in range(100):
        factor = (low + high) / 2
        if np.clip(factor * wanted, floors, ceilings).sum() < total:
            low = factor
        else:
            high = factor
    exact = np.clip(high * wanted, floors, ceilings)
    sizes = np.floor(exact).astype(np.int64)
    while (missing := total - int(sizes.sum())) > 0:
        room = np.where(sizes < ceilings, exact - sizes, -np.inf)
        chosen = np.argsort(-room, kind="stable")[: min(missing, int((sizes < ceilings).sum()))]
        sizes[chosen] += 1
    return sizes


def _apportion(total: int, weights: Tensor, least: int = 0) -> Tensor:
    """`total` as integers in proportion to the weights (largest remainders), none below `least`."""
    exact = weights.to(torch.float64) / weights.sum() * (total - least * len(weights))
    sizes = exact.floor().long()
    missing = total - least * len(weights) - int(sizes.sum())
    sizes[(exact - sizes).argsort(descending=True, stable=True)[:missing]] += 1
    return sizes + least


def _owners(counts: Tensor, clients: int, slots: int, generator: Generator) -> Tensor:
    """How many clients own each class: at least one, no more than it has samples; the largest shards are cut first."""
    owners = torch.ones_like(counts)
    limit = counts.clamp(max=clients)
    order = torch.randperm(len(counts), generator=generator).tolist()  # decides between classes of equal size
    queue = [(-float(counts[column]), rank, column) for rank, column in enumerate(order) if limit[column] > 1]
    heapq.heapify(queue)
    for _ in range(slots - len(counts)):
        _, rank, column = heapq.heappop(queue)
        owners[column] += 1
        if owners[column] < limit[column]:
            heapq.heappush(queue, (-float(counts[column] / owners[column]), rank, column))
    return owners


def _draw_owners(owners: Tensor, clients: int, per_client: int, generator: Generator) -> Tensor:
    """A random clients × classes truth table: `per_client` true in each row, `owners` in each column."""
    owns = torch.zeros(clients, len(owners), dtype=torch.bool)
    need = torch.full((clients,), float(per_client))
    for column in torch.randperm(len(owners), generator=generator).tolist():
        # Giving to those who need most never runs into a dead end (Gale and Ryser 1957).
        chosen = (need + 0.5 * torch.rand(clients, generator=generator)).topk(int(owners[column])).indices
        owns[chosen, column] = True
        need[chosen] -= 1
    # That table is regular rather than random. Pairs of clients trade the classes that only one of the two has.
    for _ in range(32):
        first, second = torch.randperm(clients, generator=generator)[: clients // 2 * 2].view(2, -1)
        traded = owns[first] ^ owns[second]
        keys = torch.rand(traded.shape, generator=generator).masked_fill(~traded, 2.0)
        rank = keys.argsort(dim=1).argsort(dim=1)
        taken = traded & (rank < (traded & owns[first]).sum(dim=1, keepdim=True))
        owns[first], owns[second] = (owns[first] & ~traded) | taken, (owns[second] & ~traded) | (traded & ~taken)
    return owns


def _even_shares(owns: Tensor, counts: Tensor) -> Tensor:
    """Samples (real numbers) of each class on each owner: columns add up to the counts, rows are made equal."""
    shares = owns.to(torch.float64)
    for _ in range(200):
        shares = shares / shares.sum(dim=1, keepdim=True)
        shares = shares * (counts / shares.sum(dim=0))
    return shares


def _shuffled(indices: Tensor, generator: Generator) -> Tensor:
    return indices[torch.randperm(len(indices), generator=generator)]


def _check_clients(strata: Tensor, clients: int) -> None:
    if not 1 <= clients <= len(strata):
        raise ValueError(f"clients = {clients}: 1 to {len(strata)} is allowed, the samples there are to divide")
