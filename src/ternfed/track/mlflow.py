"""MLflow: to MLFLOW_TRACKING_URI, or into mlflow.db beside the run folder. The experiment is `ternfed` unless
MLFLOW_EXPERIMENT_NAME says otherwise."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from ternfed.track.tracker import Start, need

LONGEST = 500
"""Letters of a parameter that every MLflow server takes."""


def check() -> Any:
    """The package; ImportError where it is absent."""
    return need("mlflow", "mlflow", MLFLOW_DISABLE_TELEMETRY="true")


class Mlflow:
    """One run, by a client of its own: MLflow's global state stays the user's."""

    def __init__(self, start: Start) -> None:
        check()
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        here = f"sqlite:///{(start.folder.resolve().parent / 'mlflow.db').as_posix()}"
        self._client: Any = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or here)
        self._metric = Metric
        if start.resumed:
            self.identity = start.identity
            self._client.update_run(self.identity, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "ternfed"
        found = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if found is None else found.experiment_id
        run = self._client.create_run(experiment, run_name=start.name)
        self.identity = str(run.info.run_id)
        for key, value in start.settings.items():
            self._client.log_param(self.identity, key, str(value)[:LONGEST])

    def log(self, round: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        self._client.log_batch(self.identity, [self._metric(key, value, now, round) for key, value in values.items()])

    def close(self, result: Mapping[str, float], finished: bool) -> None:
        for key, value in result.items():
            self._client.set_tag(self.identity, f"result.{key}", value)
        self._client.set_terminated(self.identity, "FINISHED" if finished else "KILLED")


def open_tracker(start: Start) -> Mlflow:
    return Mlflow(start)
