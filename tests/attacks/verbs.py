"""The command line as the tests of hostile files call it."""

from __future__ import annotations

from collections.abc import Callable

from click.testing import Result

Command = Callable[..., Result]
"""A verb and its arguments ─▶ exit code and what it said."""
