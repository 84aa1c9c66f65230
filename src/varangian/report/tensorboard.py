"""Writes the metrics of a run for TensorBoard, while it is running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import xarray as xr
from torch import Tensor

from varangian.core.errors import BadInput
from varangian.engine.callbacks import Callback
from varangian.engine.recorder import Recorder
from varangian.engine.results import UNWEIGHED, higher_is_better
from varangian.engine.state import State
from varangian.engine.world import World
from varangian.experiments.cells import Cell

POINTS = 500
"""About how many rounds of a run are written. Reading a number makes a GPU wait, so there should be few."""


def check_installed() -> None:
    if find_spec("tensorboard") is None:
        raise BadInput("--tensorboard needs the package tensorboard; install it with: pip install tensorboard")


@dataclass(frozen=True)
class TensorBoard:
    """Follows a sweep. Writes one folder per cell: mean and worst over normal agents, for every seed."""

    folder: Path

    def begin(self, cell: Cell) -> Sequence[Callback]:
        return [Scalars(self.folder / cell.key)]

    def follow(self, running: Mapping[Cell, int]) -> None: ...

    def finish(self, cell: Cell, result: xr.Dataset) -> None: ...


@dataclass
class Scalars:
    """Writes the metrics of one cell: streaming metrics at some rounds, held-out metrics after every evaluation."""

    folder: Path
    writers: Sequence[Any] = ()
    rounds: int = 0

    def start(self, world: World, state: State, rounds: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.rounds = rounds
        # A resumed run replaces what an earlier attempt wrote for later rounds.
        purge = state.round + 1 if state.round else None
        self.writers = [SummaryWriter(str(self.folder / f"seed-{seed}"), purge_step=purge) for seed in world.seeds]

    def round(self, world: World, state: State, recorder: Recorder) -> None:
        done = state.round
        if recorder.rounds[-1:] == [done] and (done % max(1, self.rounds // POINTS) == 0 or done == self.rounds):
            self._write(world, recorder.streaming, done)
        if recorder.evaluated[-1:] == [done]:
            self._write(world, recorder.held_out, done)

    def _write(self, world: World, columns: Mapping[str, Sequence[Tensor]], done: int) -> None:
        normal = world.is_normal.view(len(self.writers), -1)
        for name, rows in columns.items():
            values = rows[-1].view(len(self.writers), -1).double()
            means = torch.where(normal, values, 0).sum(1) / normal.sum(1)
            least = higher_is_better(name)
            of_normal = torch.where(normal, values, torch.inf if least else -torch.inf)
            worst = of_normal.amin(1) if least else of_normal.amax(1)
            for writer, mean, extreme in zip(self.writers, means.tolist(), worst.tolist(), strict=True):
                writer.add_scalar(f"{name}/mean", mean, done)
                if name not in UNWEIGHED:
                    writer.add_scalar(f"{name}/worst", extreme, done)

    def end(self, world: World, state: State) -> None:
        for writer in self.writers:
            writer.close()
