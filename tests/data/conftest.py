"""Tests of data sets see nothing of the user's own settings."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Neither the user's own settings nor their cache reach a test."""
    if "real_data" not in request.fixturenames:
        monkeypatch.setenv("TERNFED_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TERNFED_DATA", raising=False)
