"""Every draw comes from one seed by (purpose, round, client)."""

import torch

from ternfed import draws


def test_the_same_seed_purpose_round_and_client_draw_the_same() -> None:
    first, second = (torch.rand(5, generator=draws.generator(1, "order", 2, 3)) for _ in range(2))
    assert torch.equal(first, second)


def test_another_seed_purpose_round_or_client_draws_something_else() -> None:
    keys = [(1, "order", 2, 3), (2, "order", 2, 3), (1, "augment", 2, 3), (1, "order", 3, 3), (1, "order", 2, 4)]
    assert len({draws.seed_of(*key) for key in keys}) == len(keys)
    assert draws.seed_of(1, "order", 12, 3) != draws.seed_of(1, "order", 1, 23)


def test_participants_are_the_share_of_all_clients_without_repetition() -> None:
    chosen = draws.participants(0, 1, 100, 0.1)
    assert len(chosen) == len(set(chosen)) == 10
    assert chosen == sorted(chosen)
    assert chosen != draws.participants(0, 2, 100, 0.1)
    assert draws.participants(0, 1, 5, 1.0) == [0, 1, 2, 3, 4]


def test_orders_are_permutations_of_the_clients_own_samples() -> None:
    own = torch.tensor([5, 9, 2, 7])
    rows = draws.orders(own, 3, draws.generator(0, "order"))
    assert rows.shape == (3, 4)
    assert all(sorted(row.tolist()) == [2, 5, 7, 9] for row in rows)
