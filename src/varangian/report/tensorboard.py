"""Writes the metrics of a run for TensorBoard, while it is running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xarray as xr

from varangian.engine.callbacks import Callback
from varangian.experiments.cells import Cell
from varangian.report.scalars import Log, Scalars


@dataclass(frozen=True)
class TensorBoard:
    """Follows a sweep. Writes one folder per cell and seed: mean and worst over normal agents."""

    folder: Path

    def begin(self, cell: Cell) -> Sequence[Callback]:
        return [self.run(cell.key)]

    def run(self, name: str) -> Scalars:
        """A callback for `simulate` that writes below the folder `name`."""
        return Scalars(lambda seed, done: self._opened(name, seed, done))

    def _opened(self, name: str, seed: int, done: int) -> Log:
        from torch.utils.tensorboard import SummaryWriter

        # A resumed run replaces what an earlier attempt wrote for later rounds.
        return _Board(SummaryWriter(str(self.folder / name / f"seed-{seed}"), purge_step=done + 1 if done else None))

    def follow(self, running: Mapping[Cell, int]) -> None: ...

    def finish(self, cell: Cell, result: xr.Dataset) -> None: ...


@dataclass(frozen=True)
class _Board:
    writer: Any

    def write(self, values: Mapping[str, float], round: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, round)

    def close(self, finished: bool) -> None:
        self.writer.close()
