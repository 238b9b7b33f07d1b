"""The picture of a partition is drawn for few and for many clients."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ternfed.data.partitions import Classes, Dirichlet, histogram
from ternfed.data.picture import partition_picture

LABELS = torch.arange(10).repeat(300)


def counts(clients: int) -> torch.Tensor:
    return histogram(LABELS, Classes(2).split(LABELS, clients, torch.Generator().manual_seed(0)), 10)


@pytest.mark.parametrize("clients", [5, 20, 100])
def test_a_picture_is_written_as_png_and_svg(clients: int, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    png, svg = partition_picture(counts(clients), tmp_path / "figures" / "parts", f"{clients} clients")
    assert (png.name, svg.name) == ("parts.png", "parts.svg")
    pixels = np.asarray(image.open(png).convert("L"))
    assert pixels.shape[1] >= 600
    assert pixels.min() < 60 < 250 < pixels.max()
    text = svg.read_text()
    assert all(word in text for word in (f"{clients} clients", ">client<", ">class<", ">samples<"))


def test_few_clients_have_their_counts_written_in(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    parts = Dirichlet(0.5).split(LABELS, 5, torch.Generator().manual_seed(0))
    table = histogram(LABELS, parts, 10)
    text = partition_picture(table, tmp_path / "parts")[1].read_text()
    assert all(f">{count}<" in text for count in table.flatten().tolist() if count)


def test_a_name_with_a_point_keeps_it_and_the_same_table_gives_the_same_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    first = partition_picture(counts(5), tmp_path / "beta-0.1")
    again = partition_picture(counts(5), tmp_path / "again.png")
    assert [path.name for path in (*first, *again)] == ["beta-0.1.png", "beta-0.1.svg", "again.png", "again.svg"]
    assert first[1].read_bytes() == again[1].read_bytes()


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'ternfed\[report\]'"):
        partition_picture(counts(5), tmp_path / "parts")
