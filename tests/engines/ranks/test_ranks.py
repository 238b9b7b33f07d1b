"""A run over several ranks: the same bits for any number of them, and a clear end when one is lost.

The ranks are real processes that talk over gloo; this process is rank 0.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from ternfed.cli.app import app
from ternfed.data.sets import load
from ternfed.data.values import DataSet
from ternfed.engines import simulate
from ternfed.engines.ranks.launch import started
from ternfed.engines.ranks.link import Link
from ternfed.engines.ranks.team import RankFailed, crew_over
from ternfed.experiment.experiment import Experiment
from ternfed.round.acceptance import OutOfBounds
from ternfed.round.crew import Crew
from ternfed.round.federation import Federation, open_federation

TINY = (
    "data.dataset=digits", "data.balance=0.4", "data.hold_out=0.1", "model.hidden=[12, 12]", "federation.clients=6",
    "federation.participation=0.7", "federation.rounds=5", "training.epochs=1", "training.batch=16",
)  # fmt: skip
ALGORITHMS = {
    "FedAvg": ("algorithm.name=fedavg",),
    "T-FedAvg": ("algorithm.name=tfedavg",),
    "T-FedAvg, judged by its clients": ("algorithm.name=tfedavg", "algorithm.preset=paper"),
    "STC, whose clients remember": ("algorithm.name=stc",),
    "CMFL, whose clients may keep silent": ("algorithm.name=cmfl",),
}
SAME = ("rounds.jsonl", "state.safetensors", "last.safetensors", "best.safetensors", "config.toml", "partition.json")
"""Files that are the same bytes, whoever trained."""


@pytest.fixture(scope="module")
def digits() -> DataSet:
    return load("digits")


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def link(request: pytest.FixtureRequest) -> Iterator[Link]:
    with started(request.param, ["run"]) as link:
        yield link


def ready(digits: DataSet, *settings: str) -> Federation:
    return open_federation(Experiment.from_toml("", [*TINY, *settings]), digits)


def recorded(folder: Path, federation: Federation, crew: Crew | None = None, resume: bool = False) -> dict[str, bytes]:
    """The files of a run that must not depend on who trained."""
    target, _, rounds = simulate.record_into(folder, federation, "cpu", resume=resume, crew=crew)
    with target:
        list(rounds)
    return {name: (folder / name).read_bytes() for name in SAME}


@pytest.mark.parametrize("settings", ALGORITHMS.values(), ids=ALGORITHMS.keys())
def test_any_number_of_ranks_gives_the_same_bytes(
    link: Link, digits: DataSet, settings: tuple[str, ...], tmp_path: Path
) -> None:
    alone = recorded(tmp_path / "alone", ready(digits, *settings))
    federation = ready(digits, *settings)
    together = recorded(tmp_path / "together", federation, crew_over(link, federation))
    assert together == alone


def test_a_client_that_diverges_on_another_rank_is_left_out_as_it_would_be_here(
    link: Link, digits: DataSet, tmp_path: Path
) -> None:
    wild = ("algorithm.name=stc", "training.rate=1e30", "federation.rounds=1")
    for crew in (None, crew_over(link, federation := ready(digits, *wild))):
        with pytest.raises(simulate.DivergedError, match="diverged on every client of round 1"):
            list(simulate.play(federation, crew=crew))


def test_a_client_whose_upload_is_refused_goes_on_from_where_it_stood(
    link: Link, digits: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted = simulate.accepted

    def choosy(*arguments: Any) -> Any:
        if arguments[2].numbers["round"] in (1, 3) and arguments[4].index % 2:
            raise OutOfBounds("not today")
        return accepted(*arguments)

    monkeypatch.setattr(simulate, "accepted", choosy)
    settings = ("algorithm.name=stc", "federation.participation=1")
    alone = recorded(tmp_path / "alone", ready(digits, *settings))
    federation = ready(digits, *settings)
    assert b"not today" in alone["rounds.jsonl"]
    assert recorded(tmp_path / "together", federation, crew_over(link, federation)) == alone


def test_a_run_of_one_process_is_resumed_by_several_and_by_one_again(
    link: Link, digits: DataSet, tmp_path: Path
) -> None:
    whole = recorded(tmp_path / "whole", ready(digits, "algorithm.name=stc"))
    begun = tmp_path / "begun"
    for upto, with_ranks in ((2, False), (4, True), (5, False)):
        federation = ready(digits, "algorithm.name=stc")
        crew = crew_over(link, federation) if with_ranks else None
        target, past, rounds = simulate.record_into(begun, federation, "cpu", resume=upto > 2, crew=crew)
        with target, pytest.MonkeyPatch.context() as patch:
            patch.setattr(simulate, "CHECKPOINT_SECONDS", -1.0)
            for _ in range(upto - len(past)):
                next(rounds)
    assert {name: (begun / name).read_bytes() for name in SAME} == whole


def test_a_rank_with_other_data_is_refused(link: Link, digits: DataSet) -> None:
    fewer = replace(digits, train=digits.train.take(torch.arange(1000)))
    with pytest.raises(RankFailed, match=r"rank [12] has another data set than rank 0"):
        crew_over(link, ready(fewer))


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ternfed", "run", *(f"--set={setting}" for setting in TINY), *arguments]


LONG = ("--set=algorithm.name=stc", "--set=federation.rounds=40")


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for the processes of a run")
def test_a_killed_rank_ends_the_run_with_one_sentence_and_others_go_on_to_the_same_bytes(
    link: Link, digits: DataSet, tmp_path: Path
) -> None:
    if link.count == 2:
        pytest.skip("the other number of ranks will do")
    folder = tmp_path / "run"
    run = subprocess.Popen(
        command(*LONG, "--workers", "2", "--out", str(folder)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    until = time.monotonic() + 120
    while not (lines := folder / "rounds.jsonl").exists() or lines.read_bytes().count(b"\n") < 3:
        assert time.monotonic() < until
        assert run.poll() is None, run.stderr and run.stderr.read()
        time.sleep(0.01)
    (worker,) = map(int, Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split())
    os.kill(worker, signal.SIGKILL)
    _, told = run.communicate(timeout=60)
    last = told.decode().strip().splitlines()[-1]
    assert run.returncode == 1
    assert last == "ternfed: rank 1 was lost; the same command goes on by --resume"
    assert (folder / "rounds.jsonl").read_bytes().count(b"\n") < 40
    rounds = "federation.rounds=40"
    whole = recorded(tmp_path / "whole", ready(digits, "algorithm.name=stc", rounds))
    federation = ready(digits, "algorithm.name=stc", rounds)
    assert recorded(folder, federation, crew_over(link, federation), resume=True) == whole


def test_torchrun_starts_the_ranks_and_rank_0_alone_speaks_and_writes(digits: DataSet, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    own = [*command("--algorithm", "tfedavg", "--out", str(folder), "--json")[2:]]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", *own],
        capture_output=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["rounds"] == 5
    assert not done.stderr
    whole = recorded(tmp_path / "whole", ready(digits, "algorithm.name=tfedavg"))
    assert {name: (folder / name).read_bytes() for name in SAME} == whole


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--workers", "0"], "--workers"),
        (["--workers", "5"], "--workers 5: 4 clients take part in each round, and each rank needs one at least"),
        (["--device", "cuda:9"], "--device cuda:9: PyTorch sees"),
        (["--device", "cuda:first"], "--device cuda:first: cpu, cuda or cuda:K is allowed"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_leaves_no_folder(
    arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    result = CliRunner().invoke(app, [*command(*arguments, "--out", str(folder))[3:]], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert sentence in " ".join(result.stderr.split())
    assert not folder.exists()


def test_workers_have_no_meaning_under_torchrun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for key, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(key, value)
    result = CliRunner().invoke(app, command("--workers", "2", "--out", str(tmp_path / "run"))[3:])
    assert result.exit_code == 2
    assert "torchrun has started 2 ranks already" in " ".join(result.stderr.split())
