"""Rounds on standard error: a line each without a terminal, JSON for machines, and what happens inside a long one."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from ternfed.cli import progress
from ternfed.cli.progress import Shown, span, style_of
from ternfed.runs.live import Moment
from ternfed.runs.records import Round


def record(number: int, **values: Any) -> Round:
    usual: dict[str, Any] = {
        "score": 0.5, "loss": 1.25, "train_loss": None, "validation": None, "bytes_up": 1000, "bytes_down": 2000,
        "bytes_up_fp32": 1, "bytes_down_fp32": 1, "bits_per_weight_up": None, "clients": 5, "seconds": {"train": 2.0},
    }  # fmt: skip
    return Round(round=number, **{**usual, **values})


def test_without_a_terminal_there_is_one_line_per_round_with_the_time_in_front(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert style_of(quiet=False, log_json=False) == "lines"
    list(Shown(2, "mine", "lines").follow([record(1), record(2, changed=0.25, strategy="I")]))
    first, second = capsys.readouterr().err.splitlines()
    assert re.match(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ mine round 1/2 50.00% · ↑ 1.0 kB ↓ 2.0 kB · loss 1.25 · 2.0 s", first
    )
    assert first.endswith(" · 2 s left")  # as long as the rounds took, not as long as was waited for the first
    assert "round 2/2" in second
    assert "strategy I · flips 25.0%" in second


def test_after_a_resume_what_was_sent_before_counts(capsys: pytest.CaptureFixture[str]) -> None:
    list(Shown(3, "mine", "lines", [record(1), record(2)]).follow([record(3)]))
    assert "round 3/3 50.00% · ↑ 3.0 kB ↓ 6.0 kB" in capsys.readouterr().err


def test_for_machines_each_line_is_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Shown(1, "mine", style_of(quiet=True, log_json=True))
    shown.say("listening")
    list(shown.follow([record(1, score=float("nan"), dropped=("client 1: late",))]))
    shown.warn("careful")
    said, played, warned = map(json.loads, capsys.readouterr().err.splitlines())
    assert (said["event"], said["text"]) == ("message", "listening")
    assert (played["event"], played["round"], played["score"]) == ("round", 1, None)
    assert (played["phases"], played["total_up"]) == ({"train": 2.0}, 1000)
    assert (warned["event"], warned["text"]) == ("warning", "careful")
    assert all("time" in line for line in (said, played, warned))


def test_who_asks_for_quiet_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Shown(1, "mine", style_of(quiet=True, log_json=False))
    shown.say("listening")
    list(shown.follow([record(1)]))
    shown.warn("careful")
    assert capsys.readouterr().err == ""


def test_a_round_that_takes_minutes_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Shown(5, "mine", "lines")
    moment = Moment(3, "train", 0.0, {0: "done", 1: "training", 2: "away"})
    shown.tell(moment)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "SILENCE", -1.0)
    shown.tell(moment)
    assert capsys.readouterr().err.endswith("round 3/5 1 of 2 clients done\n")


@pytest.mark.parametrize(("seconds", "text"), [(4.2, "4 s"), (600.0, "10 min"), (9000.0, "2.5 h")])
def test_a_time_is_told_in_one_unit(seconds: float, text: str) -> None:
    assert span(seconds) == text
