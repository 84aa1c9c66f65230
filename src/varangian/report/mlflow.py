"""Writes the metrics of runs to MLflow, while they are running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import time
from typing import Any

import xarray as xr

from varangian.core.version import __version__
from varangian.engine.callbacks import Callback
from varangian.experiments.cells import Cell, count_of
from varangian.report.scalars import Log, Scalars, check_installed


@dataclass(frozen=True)
class MLflow:
    """Follows a sweep, or a single run: one MLflow run for every cell and seed.

    >>> log = MLflow("landmines", uri="sqlite:///mlflow.db")
    >>> callback = log.run("first try")  # for simulate(..., callbacks=[callback])
    """

    experiment: str = "varangian"
    uri: str | None = None
    """Where MLflow keeps its data: a server, a database. By default what `MLFLOW_TRACKING_URI` says."""

    def begin(self, cell: Cell) -> Sequence[Callback]:
        return [self.run(str(cell), {"rule": cell.rule, "attack": cell.attack, "byzantine": count_of(cell.byzantine)})]

    def run(self, name: str, about: Mapping[str, str] | None = None) -> Scalars:
        """A callback for `simulate` that makes runs of this name, with these parameters."""
        return Scalars(lambda seed, done: self._opened(name, seed, about or {}))

    def _opened(self, name: str, seed: int, about: Mapping[str, str]) -> Log:
        check_installed("mlflow", "mlflow")
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=self.uri)
        found = client.get_experiment_by_name(self.experiment)
        number = client.create_experiment(self.experiment) if found is None else found.experiment_id
        made = client.create_run(number, run_name=f"{name}, seed {seed}", tags={"version": __version__})
        for key, value in {**about, "seed": seed}.items():
            client.log_param(made.info.run_id, key, value)
        return _Run(client, made.info.run_id)

    def follow(self, running: Mapping[Cell, int]) -> None: ...

    def finish(self, cell: Cell, result: xr.Dataset) -> None: ...


@dataclass(frozen=True)
class _Run:
    client: Any
    number: str

    def write(self, values: Mapping[str, float], round: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time())
        self.client.log_batch(self.number, [Metric(name, value, now, round) for name, value in values.items()])

    def close(self, finished: bool) -> None:
        self.client.set_terminated(self.number, "FINISHED" if finished else "KILLED")
