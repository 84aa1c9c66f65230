"""The cells of a sweep: one for each combination of rule, attack and Byzantine agents."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from varangian.core.scene import Byzantine, Scene
from varangian.engine.callbacks import Callback, Progress
from varangian.engine.cluster import RayCluster
from varangian.engine.part_file import ENDING, load_part, save_part
from varangian.engine.recorder import Recorder
from varangian.engine.run import simulate
from varangian.engine.simulated import Result
from varangian.engine.state import State
from varangian.engine.trained import AgentModels
from varangian.engine.world import World
from varangian.experiments.config import Plan

MODELS = "models"
"""The folder for the final models of all cells."""


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
        # File names have a limited length, and not every character is allowed in them.
        return f"{plain[:80]}-{hashlib.sha256(repr(about).encode()).hexdigest()[:12]}"


def count_of(byzantine: Byzantine) -> str:
    return str(byzantine) if isinstance(byzantine, int | float) else "+".join(map(str, byzantine)) or "0"


def cells(plan: Plan) -> list[Cell]:
    """All combinations, in the order of the plan."""
    return [Cell(r, a, b) for b in plan.byzantine for a in plan.attacks for r in plan.rules]


class SeedsProgress(Progress):
    """Counts a round once for every seed that runs it: for small networks, all seeds run at once."""

    def start(self, world: World, state: State, rounds: int) -> None:
        self.advance(state.round * len(world.seeds))

    def round(self, world: World, state: State, recorder: Recorder) -> None:
        self.advance(len(world.seeds))


class Watcher(Protocol):
    """Follows a sweep from cell to cell."""

    def begin(self, cell: Cell) -> Sequence[Callback]:
        """Called when a cell begins; returns callbacks for its rounds."""
        ...

    def follow(self, running: Mapping[Cell, int]) -> None:
        """Called while cells run in other processes, with the rounds computed so far, summed over seeds."""
        ...

    def finish(self, cell: Cell, result: Result) -> None:
        """Called when a cell is done: it has just been run, or its result was found in the folder."""
        ...


def play(
    plan: Plan,
    cell: Cell,
    folder: Path | None,
    resume: bool,
    callbacks: Sequence[Callback],
    cluster: RayCluster | None = None,
    scene: Scene | None = None,
) -> Result:
    """Run one cell.

    Args:
        plan: The study, the seeds and the options.
        cell: Which rule, attack and Byzantine agents.
        folder: Where a checkpoint is saved after an interrupt.
        resume: Continue from a checkpoint in the folder.
        callbacks: Called after each round.
        cluster: Spread the network over the shards of this cluster.
        scene: The network of seed 0, if it is made already.
    """
    return simulate(
        plan.study,
        rule=plan.rule(cell.rule),
        attack=plan.attack(cell.attack),
        byzantine=cell.byzantine,
        seeds=plan.seeds,
        scene=scene,
        checkpoint=folder and folder / cell.key,
        resume=resume,
        callbacks=callbacks,
        engine=cluster,
        # By default `simulate` keeps small models. Those of all cells together may be large.
        **{**asdict(plan.options), "save_models": bool(plan.options.save_models)},
    )


def file_of(folder: Path, cell: Cell) -> Path:
    """The file of a finished cell."""
    return folder / f"{cell.key}{ENDING}"


def models_file(folder: Path, cell: Cell, seed: int) -> Path:
    """The file for the final models of one seed of a cell. Its name is safe on every system."""
    return folder / MODELS / f"{cell.key}-seed-{seed}.safetensors"


def save_models(models: Mapping[int, AgentModels], folder: Path, cell: Cell) -> None:
    """Save the final models of a cell, one file per seed."""
    about = {"rule": cell.rule, "attack": cell.attack, "byzantine": count_of(cell.byzantine)}
    for seed, own in models.items():
        own.save(models_file(folder, cell, seed), about)


def load_models(folder: Path, cell: Cell) -> dict[int, AgentModels]:
    """The final models of a cell in a run folder, by seed."""
    files = (folder / MODELS).glob(f"{cell.key}-seed-*.safetensors")
    return {models.seed: models for models in sorted(map(AgentModels.load, files), key=lambda models: models.seed)}


def is_kept(folder: Path | None, cell: Cell) -> bool:
    """Whether the folder has the file of the finished cell."""
    return folder is not None and file_of(folder, cell).exists()


def found(plan: Plan, folder: Path | None, cell: Cell) -> Result | None:
    """The finished cell in the folder. None if it is not there, or if its models should be there and are not."""
    if folder is None or not is_kept(folder, cell):
        return None
    models = load_models(folder, cell) if plan.options.save_models else {}
    if plan.options.save_models and len(models) < plan.seeds:
        return None
    return Result.of(load_part(file_of(folder, cell)), models)


def keep(result: Result, folder: Path, cell: Cell) -> None:
    """Save a finished cell in the folder, its models first, and remove its checkpoints."""
    save_models(result.kept_models, folder, cell)
    save_part(result, file_of(folder, cell))
    shutil.rmtree(folder / cell.key, ignore_errors=True)
