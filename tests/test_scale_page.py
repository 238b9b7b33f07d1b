"""The page on scale: its manifests, jobs and sweep are what they claim to be."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ternfed.sweep.grid import read_sweep

PAGE = (Path(__file__).parents[1] / "docs" / "scale.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_kubernetes_manifest_is_a_service_and_an_indexed_job_whose_ranks_are_as_many_as_its_pods() -> None:
    yaml = pytest.importorskip("yaml")
    (text,) = blocks("yaml")
    service, job = yaml.safe_load_all(text)
    spec: dict[str, Any] = job["spec"]
    pod = spec["template"]["spec"]
    (rank,) = pod["containers"]
    variables = {each["name"]: each["value"] for each in rank["env"]}
    assert (service["kind"], job["kind"], spec["completionMode"]) == ("Service", "Job", "Indexed")
    assert int(variables["WORLD_SIZE"]) == spec["completions"] == spec["parallelism"]
    assert variables["MASTER_ADDR"] == f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert {mount["name"] for mount in rank["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert rank["args"][0].startswith("export RANK=$JOB_COMPLETION_INDEX LOCAL_RANK=0; if [ -d /runs/one ]")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("text", blocks("bash"))
def test_a_job_for_slurm_is_a_shell_script(text: str) -> None:
    subprocess.run(["bash", "-n"], input=text.encode(), check=True, timeout=30)


def test_the_sweep_is_one(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    (tmp_path / "rates.toml").write_text(text)
    sweep = read_sweep(tmp_path / "rates.toml", tmp_path / "out")
    assert len(sweep.trials) == 18
    best = next(point for point in sweep.points if point.name == "rate-0.1_algorithm-tfedavg")
    assert best.values == {"training.rate": 0.1, "algorithm.name": "tfedavg"}
    assert f"--set data.hold_out={sweep.hold_out}" in PAGE
