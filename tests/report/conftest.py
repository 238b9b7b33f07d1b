"""One set of tiny runs for all tests of the report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from run_folders import real_run, row
from ternfed.paper.rows import Row


@pytest.fixture(autouse=True, scope="session")
def one_revision() -> Iterator[None]:
    """Asking git three times a folder would be most of the time of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ternfed.runs.environment._revision", lambda: "abc")
        yield


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of run that a report tells apart, on the digits; one of them unfinished."""
    results = tmp_path_factory.mktemp("runs") / "results"
    for split, setting in (("iid", "data.partition=iid"), ("nc2", "data.classes_per_client=2")):
        for algorithm in ("fedavg", "tfedavg", "cmfl"):
            for seed in (0, 1):
                name = f"digits-{split}-{algorithm}"
                up = ("algorithm.upload=trits",) if algorithm == "tfedavg" else ()
                own = (f"name={name}", f"seed={seed}", setting, f"algorithm.name={algorithm}", *up)
                real_run(results / name / f"seed-{seed}", *own)
    for share in (0.2, 0.6):
        name = f"participation-{share}"
        real_run(results / name / "seed-0", f"name={name}", f"federation.participation={share}")
    for beta in (0.3, 1.0):
        name = f"balance-{beta}"
        real_run(results / name / "seed-0", f"name={name}", f"data.balance={beta}")
    real_run(results / "digits-central" / "seed-0", "name=digits-central", "algorithm.name=centralized")
    halted = real_run(results / "halted", "name=halted", "algorithm.name=stc", finish=False) / "rounds.jsonl"
    halted.write_bytes(b"".join(halted.read_bytes().splitlines(keepends=True)[:2]))
    return results


@pytest.fixture(scope="session")
def rows() -> dict[str, Row]:
    """The rows that these runs are of."""
    shown = [row("digits-central", "centralized", "iid", paper=97.5)]
    for algorithm in ("fedavg", "tfedavg", "cmfl"):
        shown.append(row(f"digits-iid-{algorithm}", "iid", "convergence", paper=90.5, paper_std=0.25))
        shown.append(row(f"digits-nc2-{algorithm}", "non-iid", "distributions", paper=80.5))
    shown += [row(f"participation-{share}", "participation") for share in (0.2, 0.6)]
    shown += [row(f"balance-{beta}", "balance") for beta in (0.3, 1.0)]
    return {each.name: each for each in shown}
