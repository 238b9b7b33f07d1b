"""`examples/lora.py` runs as it is: adapters alone are trained, and little travels."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_adapters_learn_what_the_model_could_not_read() -> None:
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn, the extra [data]")
    command = [sys.executable, str(ROOT / "examples" / "lora.py"), "2"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    scores = [float(score) for score in re.findall(r"round \d+: +([\d.]+)%", lines)]
    sent = [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) bytes", lines)]
    assert scores[-1] > 70
    assert 50 * sent[-2] < sent[-1]
