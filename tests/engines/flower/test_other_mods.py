"""ternary_mod beside other mods: first in the list, so that the others see plain arrays."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod, arrays_size_mod, fixedclipping_mod, message_size_mod
from flwr.serverapp import strategy as flower
from toy import arrays, client_app, distance, grid_of, network, play, record, small, state_of

from ternfed.engines.flower.mod import ternary_mod
from ternfed.engines.flower.strategy import NoReplyCounted, TernaryStrategy


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging.getLogger("flwr").setLevel(logging.WARNING)


def local_dp(noise: float) -> LocalDpMod:
    """Clips to 100 and adds noise of about this size."""
    return LocalDpMod(100.0, noise, 4.8, 1e-5)


def test_local_differential_privacy_comes_after_it_and_its_noise_is_sent() -> None:
    start = state_of(network())
    calm, noisy = (play(small(flower.FedAvg), start, mods=[ternary_mod, local_dp(s)])[1] for s in (1e-6, 1.0))
    assert distance(arrays(calm.arrays), start) < 0.2
    assert distance(arrays(noisy.arrays), start) > 1


def test_before_it_local_differential_privacy_is_refused() -> None:
    start = state_of(network())
    with pytest.raises(NoReplyCounted, match="ternary_mod the first mod"):
        play(small(flower.FedAvg), start, rounds=1, mods=[local_dp(0.1), ternary_mod])


def test_updates_that_are_clipped_are_still_short_when_they_are_decoded() -> None:
    """Nothing of earlier rounds is added, or the sum that central differential privacy relies on would be longer."""
    start, lengths, norm = state_of(network()), list[float](), 0.5

    class Watched(flower.FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            replies = list(replies)
            for reply in replies:
                got = arrays(reply.content["arrays"])
                before = arrays(strategy._seen)
                lengths.append(sum(float(np.square(got[n] - before[n]).sum()) for n in got) ** 0.5)
            return super().aggregate_train(server_round, replies)

    clipped = flower.DifferentialPrivacyClientSideFixedClipping(small(Watched), 1e-9, norm, 3)
    strategy = TernaryStrategy(clipped)
    grid = grid_of(client_app(start, mods=[ternary_mod, fixedclipping_mod]))
    strategy.start(grid, record(start), num_rounds=3)
    assert len(lengths) == 9
    assert max(lengths) <= norm * (1 + 1e-5)
    assert min(lengths) > 0.8 * norm


def test_clipping_on_the_server_sees_decoded_models() -> None:
    start = state_of(network())
    inner = flower.DifferentialPrivacyServerSideFixedClipping(small(flower.FedAvg), 1e-6, 100.0, 3)
    _, result = play(inner, start)
    assert distance(arrays(result.arrays), start) < 0.2


@pytest.mark.parametrize("mod", [message_size_mod, arrays_size_mod])
def test_size_mods_show_compressed_sizes_before_it_and_plain_ones_after(mod: Any, caplog: Any) -> None:
    start = state_of(network())
    logger = logging.getLogger("flwr")
    logger.setLevel(logging.INFO)
    logger.propagate = True
    plain = 4 * sum(array.size for array in start.values())
    seen = {}
    for order in ("before", "after"):
        caplog.clear()
        mods = [mod, ternary_mod] if order == "before" else [ternary_mod, mod]
        play(small(flower.FedAvg), start, rounds=1, mods=mods)
        said = [r.args[0] for r in caplog.records if "utgoing message" in r.msg or "elements sent" in r.msg]
        seen[order] = said
    assert max(seen["before"]) < plain / 4
    assert min(seen["after"]) > plain


def test_secure_aggregation_is_refused_with_the_reason() -> None:
    app = client_app(state_of(network()))
    asked = RecordDict({"secaggplus_configs": ConfigRecord({"stage": "setup"})})
    (reply,) = grid_of(app).send_and_receive([Message(asked, 1, "train")])
    assert reply.has_error()
    assert "does not work with SecAgg or SecAgg+" in reply.error.reason
    assert "leave one of the two out" in reply.error.reason


def test_the_record_of_secure_aggregation_has_this_name() -> None:
    from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS

    from ternfed.engines.flower.mod import SECAGG

    assert SECAGG == RECORD_KEY_CONFIGS
