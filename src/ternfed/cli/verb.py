"""A command line whose arguments say what they are.

typer before 0.21, which Flower asks for, gives an argument its help text and then lets click make the rest. From 8.5 on
click has a help text for arguments too: none, and the words were lost.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand
from typer.models import ArgumentInfo


class Verb(TyperCommand):
    """A verb, with the help text of each argument where its function has it."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        silent: list[Any] = [each for each in self.params if not getattr(each, "help", None)]
        if silent and self.callback is not None:
            hints = get_type_hints(inspect.unwrap(self.callback), include_extras=True)
            for each in silent:
                notes = getattr(hints.get(each.name), "__metadata__", ())
                each.help = next((note.help for note in notes if isinstance(note, ArgumentInfo)), None)


class CommandLine(typer.Typer):
    """A group of verbs."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        return super().command(name, **{"cls": Verb, **options})
