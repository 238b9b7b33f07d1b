"""The short examples run as their first lines say: one command each."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def scores(*command: str) -> list[float]:
    """What it prints after each round."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ran = subprocess.run(
        [sys.executable, *command], cwd=EXAMPLES.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    found = [re.fullmatch(r"round \d+: +(?:r2 )?(-?[\d.e-]+)%?, [\d,]+ bytes sent up", line) for line in lines]
    assert all(found), ran.stdout
    return [float(line[1]) for line in found if line is not None]


def test_digits() -> None:
    found = scores("examples/digits.py", "3")
    assert len(found) == 3
    assert found[-1] > 50  # of ten digits, 10 by chance


def test_facts() -> None:
    found = scores("examples/facts.py", "2")
    assert len(found) == 2
    assert found[-1] > max(found[0], 80)


def test_ink() -> None:
    found = scores("examples/ink.py", "2")
    assert len(found) == 2
    assert found[-1] > max(found[0], 60)


def test_own_task() -> None:
    found = scores("examples/own_task.py", "3")
    assert len(found) == 3
    assert found[-1] > 75  # below the mean, which an untrained network gives, lie about 60


def test_lora_peft() -> None:
    pytest.importorskip("peft", reason="an example for those who have it")
    found = scores("examples/lora_peft.py", "2")
    assert len(found) == 2
    assert found[-1] > 70


def test_diabetes() -> None:
    found = scores("examples/diabetes.py", "4")
    assert len(found) == 4
    assert found[-1] > max(found[0], 0.2)


def test_signals() -> None:
    found = scores("examples/signals.py", "3")
    assert len(found) == 3
    assert found[-1] > 40  # of four machines, 25 by chance


def test_next_character(real_data: Path) -> None:
    found = scores("examples/next_character.py", str(real_data / "shakespeare"), "2")
    assert len(found) == 2
    assert found[-1] > 18


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_each_says_how_it_is_run_and_stands_on_the_page(example: Path) -> None:
    assert f"python examples/{example.name}" in example.read_text(encoding="utf-8").partition("import")[0]
    assert f"examples/{example.name}" in (EXAMPLES.parent / "docs" / "tasks.md").read_text(encoding="utf-8")


def test_an_example_that_needs_something_says_what() -> None:
    ran = subprocess.run(
        [sys.executable, "examples/next_character.py"], cwd=EXAMPLES.parent, capture_output=True, text=True
    )
    assert ran.returncode == 1
    assert ran.stderr.startswith("python examples/next_character.py FOLDER [ROUNDS]: a folder")
    assert "Traceback" not in ran.stderr
