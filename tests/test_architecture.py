"""The code keeps to the table of rooms in docs/architecture.md: direction, no cycles, no private names of others."""

from __future__ import annotations

import ast
import runpy
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "ternfed"
PAGE = ROOT / "docs" / "architecture.md"


class Import(NamedTuple):
    """One imported name: who imports it, from which module."""

    importer: str
    module: str
    name: str | None


sys.path.append(str(ROOT / "docs"))  # where the drawings share their parts
DRAWING = runpy.run_path(str(ROOT / "docs" / "draw_architecture.py"))


def rooms() -> list[str]:
    """The rooms in the order of the table, as the drawing reads them: `quantize`, `task`, …"""
    found: list[str] = DRAWING["rooms"]()
    return found


def module_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(file): file for file in sorted(PACKAGE.rglob("*.py"))}
FRONT_DOORS = ("ternfed", "ternfed.__main__")
"""They open every room, and belong to none."""


def imports_of(module: str) -> Iterator[Import]:
    """Every import of ternfed's own modules, wherever in the file it stands."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(module, alias.name, None) for alias in node.names if alias.name.startswith("ternfed"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ternfed"):
            assert node.level == 0, f"{module}: relative imports hide where a name comes from"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield Import(module, inner, None) if inner in MODULES else Import(module, node.module or "", alias.name)


IMPORTS = [found for module in MODULES if module not in FRONT_DOORS for found in imports_of(module)]


def room_of(module: str) -> str:
    return module.split(".")[1]


def test_every_room_is_in_the_table_and_every_row_of_the_table_is_a_room() -> None:
    there = {path.stem for path in PACKAGE.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert sorted(rooms()) == sorted(there - {"__init__", "__main__", "__pycache__", "py"})


@pytest.mark.parametrize("room", rooms())
def test_a_room_imports_only_rooms_above_it(room: str) -> None:
    order = rooms()
    below = [
        f"{found.importer} imports {found.module}"
        for found in IMPORTS
        if room_of(found.importer) == room and order.index(room_of(found.module)) > order.index(room)
    ]
    assert not below


def test_no_modules_import_each_other_in_a_circle_not_even_lazily() -> None:
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for found in IMPORTS:
        if found.module not in (found.importer, *FRONT_DOORS):
            graph[found.importer].add(found.module)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' ▶ '.join(error.args[1])}")


def test_no_module_imports_a_private_name_of_another() -> None:
    private = [found for found in IMPORTS if any(part.startswith("_") for part in (found.name or "").split("."))]
    assert not [f"{found.importer}: {found.module}.{found.name}" for found in private]


def test_only_the_command_line_imports_benchmarks() -> None:
    users = {room_of(found.importer) for found in IMPORTS if room_of(found.module) == "bench"}
    assert users <= {"bench", "cli"}


def test_the_engines_do_not_see_each_other() -> None:
    def engine(module: str) -> str:
        return module.split(".")[2] if module.count(".") > 1 else ""

    seen = [
        f"{found.importer} imports {found.module}"
        for found in IMPORTS
        if room_of(found.importer) == room_of(found.module) == "engines"
        and engine(found.importer) != engine(found.module)
    ]
    assert not seen


def test_the_picture_is_the_one_that_the_script_draws() -> None:
    assert (ROOT / "docs" / "images" / "architecture.svg").read_text(encoding="utf-8") == DRAWING["picture"]()
