"""The demonstration's picture looks like the report's: the same colours, names at the lines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ternfed.report import comparison_picture
from ternfed.report.comparison import comparison_figure
from ternfed.report.style import colour_of, drawing
from ternfed.runs.records import Round

pytest.importorskip("matplotlib")


def rounds(accuracy: float, changed: float | None = None) -> list[Round]:
    usual = {"bytes_up_fp32": 1, "bytes_down_fp32": 1, "bits_per_weight_up": None, "clients": 5, "loss": 1.0}
    return [
        Round(
            round=n,
            score=accuracy * n / 3,
            train_loss=None,
            validation=None,
            bytes_up=n,
            bytes_down=n,
            changed=changed,
            **usual,
        )
        for n in (1, 2, 3)
    ]


def test_each_algorithm_has_its_colour_and_its_name_at_its_line(tmp_path: Path) -> None:
    path = comparison_picture({"FedAvg": rounds(0.9), "T-FedAvg": rounds(0.8)}, tmp_path / "new" / "a.svg", "Digits")
    drawn = path.read_text()
    for name, algorithm in (("FedAvg", "fedavg"), ("T-FedAvg", "tfedavg")):
        assert f">{name}</text>" in drawn
        assert drawn.count(colour_of(algorithm)) >= 2
    assert ">Digits</text>" in drawn
    assert "legend" not in drawn


def test_where_trits_travel_a_third_panel_shows_how_many_flipped(tmp_path: Path) -> None:
    runs = {"FedAvg": rounds(0.9), "T-FedAvg": rounds(0.8, 0.25), "T-FedAvg, frozen": rounds(0.7, 0.0)}
    with_trits = comparison_picture(runs, tmp_path / "a.svg").read_text()
    without = comparison_picture({"FedAvg": rounds(0.9)}, tmp_path / "b.svg").read_text()
    assert ">trits that flipped (%), log scale</text>" in with_trits
    assert "flipped" not in without
    assert with_trits.count('id="axes_') == without.count('id="axes_') + 1
    # The control has its algorithm's colour and a line of its own: three panels each.
    assert with_trits.count(f"stroke: {colour_of('tfedavg')}") == 6
    assert with_trits.count(f"stroke: {colour_of('fedavg')}") == 2
    assert "stroke-dasharray" in with_trits


def test_long_names_stand_below_and_take_no_room_from_the_curves() -> None:
    runs = {"a-folder-with-a-long-name/seed-0": rounds(0.9), "another-folder-with-a-long-name/seed-0": rounds(0.8)}
    with drawing():
        figure = comparison_figure(runs)
        figure.draw_without_rendering()
    first, second = (panel.get_position().width for panel in figure.axes)
    assert first == pytest.approx(second, rel=0.1)
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == list(runs)


def test_a_name_that_is_no_algorithm_is_drawn_too(tmp_path: Path) -> None:
    assert comparison_picture({"mine": rounds(0.5)}, tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'ternfed\[report\]'"):
        comparison_picture({"FedAvg": rounds(0.9)}, tmp_path / "a.png")
