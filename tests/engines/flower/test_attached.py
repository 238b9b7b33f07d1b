"""A run beside others: a SuperLink and SuperNodes that somebody else started, whose tasks ternfed takes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

pytest.importorskip("flwr")
pytest.importorskip("sklearn", reason="the digits come with scikit-learn, the extra [data]")

from harness import replay, same_bits, small, wait

from ternfed.bench.stock_flower import Stock, flower_processes
from ternfed.cli import app
from ternfed.engines.flower import adapter, desk, link, processes
from ternfed.engines.flower.errors import NetworkError
from ternfed.engines.flower.link import Link, Place, attach_link
from ternfed.runs.records import read_rounds

EXAMPLES = Path(__file__).parents[3] / "examples" / "flower"
PATIENCE = 300.0
TASKS = ("--isolation", "process")


def ternfed(stack: ExitStack, log: Path, stock: Stock, *words: str) -> subprocess.Popen[bytes]:
    """A command of ours as a process."""
    process = processes.start([sys.executable, "-m", "ternfed", *words], log)
    stack.callback(processes.stop, process)
    return process


def test_two_clients_and_a_server_attach_and_play_the_simulators_rounds(tmp_path: Path) -> None:
    experiment = small(2, 2)
    file, out = tmp_path / "experiment.toml", tmp_path / "out"
    file.write_text(experiment.to_toml(), encoding="utf-8")
    with flower_processes(tmp_path, 2, *TASKS) as stock, ExitStack() as stack:
        for index, address in enumerate(stock.supernodes):
            own = ("--insecure", "--data-partition", f"{index}/2", "--state", str(tmp_path / str(index)))
            ternfed(stack, tmp_path / f"client-{index}.log", stock, "client", "--supernode", address, *own)
        words = ("server", str(file), "--superlink", stock.superlink, "--insecure", "--out", str(out))
        server = ternfed(stack, tmp_path / "server.log", stock, *words)
        assert server.wait(PATIENCE) == 0, (tmp_path / "server.log").read_text()
        rounds = read_rounds(out / "rounds.jsonl")[0]
        assert [record.dropped for record in rounds] == [(), ()]
        assert same_bits(load_file(out / "last.safetensors"), replay(experiment, rounds))
        runs = flwr(stock, "list", "--format", "json")
        assert "finished:completed" in runs, runs
        shown = flwr(stock, "log", number_of(runs), "here", "--show")
        assert "clients are there: 0, 1" in shown
        assert "round 2: accuracy" in shown


@pytest.mark.slow
def test_somebody_elses_run_goes_on_beside_ours_in_flowers_own_programs(tmp_path: Path) -> None:
    """Its tasks are older than ours and come first; with --others they go to the programs that Flower has for them."""
    experiment = small(2, 2)
    file, out, theirs = tmp_path / "experiment.toml", tmp_path / "out", tmp_path / "updates"
    file.write_text(experiment.to_toml(), encoding="utf-8")
    shutil.copytree(EXAMPLES / "updates", theirs, ignore=shutil.ignore_patterns("__pycache__"))
    with flower_processes(tmp_path, 2, *TASKS) as stock, ExitStack() as stack:
        assert "started run" in flwr(stock, "run", str(theirs), "here", "-c", "num-server-rounds=1")
        for index, address in enumerate(stock.supernodes):
            own = ("--insecure", "--data-partition", f"{index}/2", "--state", str(tmp_path / str(index)))
            more = ("--others", "--stay")
            ternfed(stack, tmp_path / f"client-{index}.log", stock, "client", "--supernode", address, *own, *more)
        words = ("server", str(file), "--superlink", stock.superlink, "--insecure", "--others", "--out", str(out))
        server = ternfed(stack, tmp_path / "server.log", stock, *words)
        assert server.wait(PATIENCE) == 0, (tmp_path / "server.log").read_text()
        assert same_bits(load_file(out / "last.safetensors"), replay(experiment, read_rounds(out / "rounds.jsonl")[0]))
        ended = "finished:completed"
        wait(lambda: flwr(stock, "list", "--format", "json").count(ended) == 2, PATIENCE, "the end of both runs")
        runs = flwr(stock, "list", "--format", "json")
        said = [flwr(stock, "log", run, "here", "--show") for run in set(re.findall(r'"run-id": "?(\d+)', runs))]
    assert sum("ternfed-share-of-float32-up" in lines for lines in said) == 1  # theirs: an app with the two lines
    assert sum("round 2: accuracy" in lines for lines in said) == 1  # ours
    assert all((tmp_path / str(index) / "others.log").stat().st_size for index in range(2))


def flwr(stock: Stock, *words: str) -> str:
    """What one of Flower's own commands says."""
    done = subprocess.run(
        [adapter.program("flwr"), *words], env=stock.environment, capture_output=True, text=True, timeout=120
    )
    return done.stdout + done.stderr


def number_of(runs: str) -> str:
    """The id of the one run that `flwr list` names."""
    (found,) = set(re.findall(r'"run-id": "?(\d+)', runs))
    return str(found)


class Grid:
    """Nodes that answer as they are told to."""

    def __init__(self, answers: dict[int, Any]) -> None:
        self.answers = answers
        self.asked: list[int] = []

    def get_node_ids(self) -> list[int]:
        return list(self.answers)

    def push_messages(self, messages: list[Any]) -> list[str]:
        self.asked += [message.metadata.dst_node_id for message in messages]
        return [str(message.metadata.dst_node_id) for message in messages]

    def pull_messages(self, identities: list[str]) -> list[Any]:
        return [self.answers[int(each)] for each in identities if self.answers[int(each)] is not None]


def answer(node: int, said: Any) -> Any:
    """A reply to the question who somebody is: a record's content, or an error's reason."""
    is_error = isinstance(said, str)
    content = SimpleNamespace(config_records={} if is_error else {"hello": said})
    return SimpleNamespace(
        has_error=lambda: is_error, content=content, metadata=SimpleNamespace(reply_to_message_id=str(node))
    )


def test_nodes_are_known_by_what_they_say_and_by_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # as where a task was taken
    monkeypatch.setattr(desk, "LOOK", 0.0)
    grid = Grid(
        {
            11: answer(11, {"client": 1, "of": 3}),
            12: answer(12, "an app of somebody else's"),
            13: answer(13, {"client": 7}),  # there are three
            14: answer(14, {"client": 1}),  # which node 11 is
            15: None,  # has not answered yet
            16: answer(16, {"client": 0}),
        }
    )
    said: list[str] = []
    own = Link(("127.0.0.1", 1), grid, None, {}, said.append)
    there = desk.Desk(own, 3, said.append)
    assert [client for client in range(3) if there.is_ready(client)] == [0, 1]
    assert own.nodes == {0: 16, 1: 11}
    assert said == ["node 14 says that it is client 1, which node 11 is; it is left out"]
    there.look()
    assert sorted(grid.asked) == [11, 12, 13, 14, 15, 16]  # nobody is asked twice in half a minute
    del grid.answers[16]
    assert not there.is_ready(0)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["server", "--superlink", "there:9093"], "--superlink: --ca FILE is needed, the authority of its certificate"),
        (["server", "--superlink", "there", "--insecure"], "--superlink there: HOST:PORT is needed"),
        (["server", "--superlink", "there:1", "--local", "2"], "one of --certs DIR, --local N"),
        (["client", "--data-partition", "0/2"], "--server HOST:PORT is needed, or --supernode HOST:PORT"),
        (["client", "--data-partition", "0/2", "--server", "there:1"], "--certs DIR is needed: the folder with ca.crt"),
        (
            ["client", "--data-partition", "0/2", "--supernode", "there:1", "--insecure", "--secret", "nowhere"],
            "nowhere: there is no such file",
        ),
    ],
)
def test_what_is_missing_is_said_in_one_sentence(words: list[str], sentence: str) -> None:
    ended = CliRunner().invoke(app.app, words)
    assert ended.exit_code == 2
    assert sentence in " ".join(ended.output.split())


def test_a_superlink_that_is_not_there_is_named(tmp_path: Path) -> None:
    port = processes.free_port()
    adapter.set_up(tmp_path)
    with (
        pytest.raises(NetworkError, match=f"127.0.0.1:{port}: the SuperLink took no run"),
        attach_link(Place(f"127.0.0.1:{port}"), dict.fromkeys(("run", "experiment", "frozen"), "")),
    ):
        raise AssertionError("attached to nothing")


def test_what_is_not_ours_is_handed_to_flowers_own_program_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = [adapter.Taken("theirs", 7, "x"), adapter.Taken("ours", 8, "y")]
    handed: list[str] = []
    monkeypatch.setattr(adapter, "open_queue", lambda *_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(adapter, "take", lambda *_: waiting.pop(0))
    monkeypatch.setattr(adapter, "hand_on", lambda taken, *_: handed.append(taken.token))
    with pytest.raises(NetworkError, match="handed out run 7, which is not ours"):
        link._take(Place("there:1"), 8, None)
    waiting.insert(0, adapter.Taken("theirs", 7, "x"))
    assert link._take(Place("there:1"), 8, Path("log")) == "ours"
    assert handed == ["theirs"]
