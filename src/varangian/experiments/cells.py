"""The cells of a sweep: one for each combination of rule, attack and Byzantine agents."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import xarray as xr

from varangian.core.scene import Byzantine
from varangian.engine import results
from varangian.engine.callbacks import Callback, Progress
from varangian.engine.cluster import RayCluster
from varangian.engine.recorder import Recorder
from varangian.engine.run import simulate
from varangian.engine.state import State
from varangian.engine.world import World
from varangian.experiments.config import Plan


@dataclass(frozen=True)
class Cell:
    """One combination of rule, attack and Byzantine agents."""

    rule: str
    attack: str
    byzantine: Byzantine

    def __str__(self) -> str:
        attack = f": {self.attack}" if self.byzantine and self.attack else ""
        return f"{self.rule}, {count_of(self.byzantine)} Byzantine{attack}"

    @property
    def key(self) -> str:
        """A file name; without Byzantine agents all attacks coincide."""
        about = (self.rule, self.attack, self.byzantine) if self.byzantine else (self.rule,)
        plain = "".join(c if (c.isascii() and c.isalnum()) or c in "-=." else "_" for c in str(self))
        # Long lists do not fit into a file name, and not every character may stand in one.
        return f"{plain[:80]}-{hashlib.sha256(repr(about).encode()).hexdigest()[:12]}"


def count_of(byzantine: Byzantine) -> str:
    return str(byzantine) if isinstance(byzantine, int | float) else "+".join(map(str, byzantine)) or "0"


def cells(plan: Plan) -> list[Cell]:
    """All combinations, in the order they were asked for."""
    return [Cell(r, a, b) for b in plan.byzantine for a in plan.attacks for r in plan.rules]


class SeedsProgress(Progress):
    """Reports a round once for every seed that plays it: small networks play all seeds at once."""

    def start(self, world: World, state: State, rounds: int) -> None:
        self.advance(state.round * len(world.seeds))

    def round(self, world: World, state: State, recorder: Recorder) -> None:
        self.advance(len(world.seeds))


class Watcher(Protocol):
    """Follows a sweep from cell to cell."""

    def begin(self, cell: Cell) -> Sequence[Callback]:
        """A cell begins; returns who watches its rounds."""
        ...

    def follow(self, running: Mapping[Cell, int]) -> None:
        """Cells are running elsewhere, several at once; the numbers are rounds played so far, all seeds counted."""
        ...

    def finish(self, cell: Cell, result: xr.Dataset) -> None:
        """A cell is done: just run, or found finished."""
        ...


def play(
    plan: Plan,
    cell: Cell,
    folder: Path | None,
    resume: bool,
    callbacks: Sequence[Callback],
    cluster: RayCluster | None = None,
) -> xr.Dataset:
    """Run one cell.

    Args:
        plan: The study, the seeds and the options.
        cell: Which rule, attack and Byzantine agents.
        folder: Where an interrupt leaves a checkpoint.
        resume: Go on from a checkpoint in the folder.
        callbacks: Who watches the rounds.
        cluster: Spread the network over the shards of this cluster.
    """
    return simulate(
        plan.study,
        rule=plan.rule(cell.rule),
        attack=plan.attack(cell.attack),
        byzantine=cell.byzantine,
        seeds=plan.seeds,
        checkpoint=folder and folder / cell.key,
        resume=resume,
        callbacks=callbacks,
        engine=cluster,
        **asdict(plan.options),
    )


def file_of(folder: Path, cell: Cell) -> Path:
    """Where a finished cell is kept."""
    return folder / f"{cell.key}.nc"


def keep(result: xr.Dataset, folder: Path, cell: Cell) -> None:
    """Put a finished cell into the folder, in place of its checkpoints."""
    results.save(result, file_of(folder, cell))
    shutil.rmtree(folder / cell.key, ignore_errors=True)
