"""A finished run, model files of it, and a folder to stand in that holds a bait: a module that must not be imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner
from verbs import Command

from ternfed.bench.fuzz_files import make_good
from ternfed.cli.app import app

pytest.importorskip("sklearn", reason="the digits come with scikit-learn, the extra [data]")


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of every file that ternfed writes or reads; not to be changed."""
    return make_good(tmp_path_factory.mktemp("good") / "files")


@pytest.fixture
def ternfed() -> Command:
    """The command line, in this process."""

    def call(*arguments: Any) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return call
