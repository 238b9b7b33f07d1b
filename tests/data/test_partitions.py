"""Every division of the data: nothing lost, nothing twice, and the shape that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from ternfed.data.partitions import (
    Classes,
    Dirichlet,
    Iid,
    Partition,
    Unbalanced,
    histogram,
    hold_out,
    unbalanced_sizes,
)

BALANCED = torch.arange(10).repeat(300)[torch.randperm(3000, generator=Generator().manual_seed(0))]


def generator(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def sizes(parts: list[Tensor]) -> list[int]:
    return [len(part) for part in parts]


@st.composite
def labels_and_clients(draw: st.DrawFn) -> tuple[Tensor, int]:
    """Labels with gaps, in any order and imbalance, and a number of clients up to one per sample."""
    labels = torch.tensor(draw(st.lists(st.sampled_from([0, 1, 2, 5, 9]), min_size=3, max_size=80)))
    return labels, draw(st.integers(1, len(labels)))


PARTITIONS: list[Partition] = [Iid(), Unbalanced(0.6), Unbalanced(1.0), Dirichlet(0.01), Dirichlet(5.0)]
"""Those that any labels can be divided by."""


def check_whole(parts: list[Tensor], labels: Tensor, clients: int) -> None:
    assert len(parts) == clients
    assert all(part.dtype == torch.int64 and len(part) >= 1 for part in parts)
    assert torch.cat(parts).sort().values.tolist() == list(range(len(labels)))


@pytest.mark.parametrize("partition", PARTITIONS, ids=repr)
@settings(max_examples=60, deadline=None)
@given(case=labels_and_clients(), seed=st.integers(0, 1000))
def test_every_sample_is_on_exactly_one_client_and_no_client_is_empty(
    partition: Partition, case: tuple[Tensor, int], seed: int
) -> None:
    labels, clients = case
    assume(clients > 1 or partition != Unbalanced(0.6))
    check_whole(partition.split(labels, clients, generator(seed)), labels, clients)


@settings(max_examples=200, deadline=None)
@given(case=labels_and_clients(), classes_per_client=st.integers(1, 5), seed=st.integers(0, 1000))
def test_by_class_gives_each_client_exactly_its_number_of_classes_or_refuses(
    case: tuple[Tensor, int], classes_per_client: int, seed: int
) -> None:
    labels, clients = case
    counts = labels.unique(return_counts=True)[1]
    slots = clients * classes_per_client
    feasible = classes_per_client <= len(counts) <= slots <= int(counts.clamp(max=clients).sum())
    if not feasible:
        with pytest.raises(ValueError, match=rf"^classes_per_client = {classes_per_client}: "):
            Classes(classes_per_client).split(labels, clients, generator(seed))
        return
    parts = Classes(classes_per_client).split(labels, clients, generator(seed))
    check_whole(parts, labels, clients)
    assert [len(labels[part].unique()) for part in parts] == [classes_per_client] * clients


@pytest.mark.parametrize("partition", [*PARTITIONS, Classes(3)], ids=repr)
def test_the_same_generator_gives_the_same_parts_and_another_gives_others(partition: Partition) -> None:
    first, again, other = (partition.split(BALANCED, 20, generator(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("partition", [*PARTITIONS, Classes(3)], ids=repr)
def test_a_partition_says_whether_it_divides_by_class(partition: Partition) -> None:
    labels, others = (partition.split(strata, 20, generator()) for strata in (BALANCED, BALANCED.flip(0)))
    assert partition.by_class == any(not torch.equal(a, b) for a, b in zip(labels, others, strict=True))


def test_iid_parts_differ_by_at_most_one_sample_and_mix_all_classes() -> None:
    parts = Iid().split(BALANCED, 7, generator())
    assert max(sizes(parts)) - min(sizes(parts)) <= 1
    # A part of 428 or 429 holds 43 of each class, with a hypergeometric std of 5.7: this is four of them.
    assert (histogram(BALANCED, parts, 10) - 43).abs().max() < 23


def test_two_classes_on_each_of_five_clients_puts_each_class_whole_on_one_client() -> None:
    counts = histogram(BALANCED, Classes(2).split(BALANCED, 5, generator()), 10)
    assert ((counts == 0) | (counts == 300)).all()
    assert (counts > 0).sum(dim=0).tolist() == [1] * 10


@pytest.mark.parametrize(("clients", "classes_per_client"), [(5, 5), (10, 5), (100, 2), (100, 5), (20, 2), (50, 1)])
def test_by_class_gives_equal_sizes_in_the_settings_of_the_paper(clients: int, classes_per_client: int) -> None:
    part_sizes = sizes(Classes(classes_per_client).split(BALANCED, clients, generator()))
    # Each of a client's classes is rounded on its own, by less than one sample.
    assert max(abs(size - 3000 / clients) for size in part_sizes) < classes_per_client


def test_by_class_evens_out_sizes_where_owners_do_not_divide_evenly() -> None:
    for seed in range(10):
        part_sizes = sizes(Classes(3).split(BALANCED, 7, generator(seed)))
        assert max(part_sizes) - min(part_sizes) <= 6, part_sizes


def test_by_class_gives_a_larger_class_more_owners() -> None:
    labels = torch.tensor([0] * 600 + [1] * 200 + [2] * 200)
    counts = histogram(labels, Classes(1).split(labels, 10, generator()), 3)
    assert (counts > 0).sum(dim=0).tolist() == [6, 2, 2]
    assert counts.sum(dim=1).tolist() == [100] * 10


def test_by_class_pairs_every_two_classes_with_each_other_sooner_or_later() -> None:
    pairs: set[tuple[int, ...]] = set()
    for seed in range(10):
        pairs |= {tuple(BALANCED[part].unique().tolist()) for part in Classes(2).split(BALANCED, 100, generator(seed))}
    assert len(pairs) == 45


@pytest.mark.parametrize("balance", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
@pytest.mark.parametrize(("samples", "clients"), [(60000, 100), (60000, 5), (1442, 20)])
def test_unbalanced_meets_the_ratio_of_median_to_largest_exactly(samples: int, clients: int, balance: float) -> None:
    part_sizes = sizes(Unbalanced(balance).split(torch.zeros(samples, dtype=torch.int64), clients, generator()))
    assert median(part_sizes) / max(part_sizes) == pytest.approx(balance, abs=1e-12)


def descending(total: int, clients: int, largest: int) -> Iterator[list[int]]:
    if clients == 1:
        if 1 <= total <= largest:
            yield [total]
        return
    for first in range(min(total - clients + 1, largest), 0, -1):
        for rest in descending(total - first, clients - 1, first):
            yield [first, *rest]


@pytest.mark.parametrize("clients", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("balance", [0.07, 0.25, 1 / 3, 0.5, 0.62, 0.9, 1.0])
def test_no_other_sizes_would_be_nearer_to_the_ratio(clients: int, balance: float) -> None:
    for samples in range(clients, 16):
        if balance * clients < 1:
            continue
        found = unbalanced_sizes(samples, clients, balance).tolist()
        assert sum(found) == samples
        assert found == sorted(found, reverse=True)
        best = min(abs(median(every) / every[0] - balance) for every in descending(samples, clients, samples))
        assert abs(median(found) / found[0] - balance) <= best + 1e-12, found


def test_a_low_ratio_puts_most_samples_on_few_clients() -> None:
    part_sizes = sorted(
        sizes(Unbalanced(0.1).split(torch.zeros(60000, dtype=torch.int64), 100, generator())), reverse=True
    )
    assert sum(part_sizes[:10]) / 60000 == pytest.approx(0.38, abs=0.005)


def test_a_small_alpha_separates_the_classes_and_a_large_one_mixes_them() -> None:
    def largest_share(alpha: float) -> float:
        counts = histogram(BALANCED, Dirichlet(alpha).split(BALANCED, 10, generator()), 10).double()
        return float((counts.max(dim=0).values / counts.sum(dim=0)).mean())

    assert largest_share(0.01) > 0.8
    assert largest_share(1000.0) < 0.15  # 0.1 when divided evenly


def test_ten_thousand_clients_are_served_in_seconds() -> None:
    labels = torch.arange(10).repeat_interleave(5000)
    for parts in (Classes(2).split(labels, 10_000, generator()), Dirichlet(0.01).split(labels, 10_000, generator())):
        assert len(parts) == 10_000
        assert min(sizes(parts)) >= 1


@settings(max_examples=80, deadline=None)
@given(case=labels_and_clients(), share=st.floats(0, 0.99), seed=st.integers(0, 1000))
def test_hold_out_divides_all_samples_in_two_and_every_class_in_proportion(
    case: tuple[Tensor, int], share: float, seed: int
) -> None:
    labels, _ = case
    count = round(share * len(labels))
    if count == len(labels):
        return
    for amount in (share, count):
        kept, held = hold_out(labels, amount, generator(seed))
        assert len(held) == count
        assert torch.cat([kept, held]).sort().values.tolist() == list(range(len(labels)))
        wanted = torch.bincount(labels, minlength=10) * (count / len(labels))
        assert (torch.bincount(labels[held], minlength=10) - wanted).abs().max() < 1


def test_parts_of_the_kept_samples_never_touch_the_held_ones() -> None:
    kept, held = hold_out(BALANCED, 500, generator())
    parts = [kept[part] for part in Classes(2).split(BALANCED[kept], 20, generator())]
    assert torch.cat([*parts, held]).sort().values.tolist() == list(range(3000))
    assert torch.bincount(BALANCED[held]).tolist() == [50] * 10


def test_the_histogram_counts_classes_by_client() -> None:
    labels = torch.tensor([0, 2, 2, 1, 0])
    assert histogram(labels, [torch.tensor([0, 1]), torch.tensor([2, 3, 4])], 4).tolist() == [
        [1, 0, 1, 0],
        [1, 1, 1, 0],
    ]


@pytest.mark.parametrize(
    ("divide", "sentence"),
    [
        (lambda: Iid().split(BALANCED, 0, generator()), "clients = 0: 1 to 3000 is allowed"),
        (lambda: Iid().split(BALANCED[:5], 6, generator()), "clients = 6: 1 to 5 is allowed"),
        (
            lambda: Classes(11).split(BALANCED, 5, generator()),
            "classes_per_client = 11: 2 to 10 is allowed with 10 classes and clients = 5",
        ),
        (lambda: Classes(0), "classes_per_client = 0: a whole number of at least 1 is allowed"),
        (
            lambda: Classes(2).split(BALANCED, 4, generator()),
            "classes_per_client = 2: 3 to 10 is allowed with 10 classes and clients = 4",
        ),
        (lambda: Classes(4).split(BALANCED, 1000, generator()), "classes_per_client = 4: 1000 clients need 4000 parts"),
        (lambda: Unbalanced(0.0), "balance = 0.0: above 0 and at most 1 is allowed"),
        (lambda: Unbalanced(1.1), "balance = 1.1: above 0 and at most 1 is allowed"),
        (
            lambda: Unbalanced(0.3).split(BALANCED, 2, generator()),
            "balance = 0.3: 0.5 to 1 is allowed with clients = 2",
        ),
        (lambda: Dirichlet(0.0), "alpha = 0.0: a number above 0 is allowed"),
        (lambda: Dirichlet(float("nan")), "alpha = nan: a number above 0 is allowed"),
        (lambda: hold_out(BALANCED, 3000, generator()), "hold_out = 3000: 0 to 2999 samples"),
        (lambda: hold_out(BALANCED, -0.1, generator()), "hold_out = -0.1: 0 to 2999 samples"),
    ],
)
def test_an_impossible_setting_is_refused_in_one_sentence(divide: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match="^" + sentence.replace(".", r"\.")) as refusal:
        divide()
    assert "\n" not in str(refusal.value)
