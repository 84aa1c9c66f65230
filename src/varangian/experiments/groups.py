"""Cells that share one run: small networks with the same rule, side by side.

Which cells of a sweep share a run depends on the plan alone. So a sweep gives the same bits here and on a cluster,
watched or not, and after an interrupt. A tournament that goes on groups only the cells that are left.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from varangian.attacks.base import AnyAttack
from varangian.attacks.simple import silent
from varangian.core.errors import BadInput
from varangian.core.scene import Scene
from varangian.engine.callbacks import Callback, Progress
from varangian.engine.cluster import RayCluster
from varangian.engine.side_by_side import Case, OfCase, can_share, cases_at_once, simulate_cases
from varangian.engine.simulated import Result
from varangian.experiments.cells import Cell, SeedsProgress, cells, play
from varangian.experiments.config import Plan
from varangian.studies.own_task import scene_of


@dataclass(frozen=True)
class Group:
    """Some cells with the same rule."""

    cells: tuple[Cell, ...]

    @property
    def key(self) -> str:
        """A file name. A cell that is alone has the same one."""
        if len(self.cells) == 1:
            return self.cells[0].key
        return f"together-{hashlib.sha256(repr([cell.key for cell in self.cells]).encode()).hexdigest()[:12]}"

    def __str__(self) -> str:
        first, *others = self.cells
        return f"{first} and {len(others)} more" if others else str(first)


def groups_of(
    plan: Plan,
    some: Sequence[Cell] | None = None,
    attack: Callable[[str], AnyAttack] | None = None,
    scenes: Sequence[Scene] = (),
) -> list[Group]:
    """Cells in groups, each cell once. Large networks and attacks that know much are alone.

    Args:
        plan: The study, the seeds and the options.
        some: The cells. Those with the same key are the same. By default all of the plan.
        attack: From its name to an attack. By default as in the plan.
        scenes: The networks of the first seeds, if they are made already.
    """
    # Where Byzantine agents listen, what they hear from themselves counts. Side by side it may differ.
    together = 1 if plan.options.byzantine_listen else cases_at_once(plan.study, plan.seeds, *scenes[:1])
    found: dict[str, list[list[Cell]]] = {}
    alike: dict[str, Cell] = {}
    for cell in cells(plan) if some is None else some:
        alike.setdefault(cell.key, cell)
    for cell in alike.values():
        made = attack_of(attack or plan.attack, cell) if together > 1 else None
        of_rule = found.setdefault(cell.rule if made is not None and can_share(made) else cell.key, [])
        if not of_rule or len(of_rule[-1]) >= together:
            of_rule.append([])
        of_rule[-1].append(cell)
    return [Group(tuple(group)) for of_rule in found.values() for group in of_rule]


def shared_scenes(plan: Plan, first: Scene) -> list[Scene]:
    """The networks for all runs of a sweep: those of all seeds, if they are small enough, or else the first one."""
    groups = groups_of(plan, scenes=[first])
    several = len(groups) > 1 and any(len(group.cells) > 1 for group in groups)
    return [first, *(scene_of(plan.study, None, seed) for seed in range(1, plan.seeds if several else 1))]


def attack_of(made: Callable[[str], AnyAttack], cell: Cell) -> AnyAttack | None:
    """The attack of a cell; None if it cannot be made."""
    if not cell.byzantine or not cell.attack:
        return silent()
    try:
        return made(cell.attack)
    except BadInput:
        return None


def play_group(
    plan: Plan,
    group: Group,
    folder: Path | None,
    resume: bool,
    callbacks: Mapping[Cell, Sequence[Callback]],
    advance: Callable[[int], object],
    cluster: RayCluster | None = None,
    scenes: Sequence[Scene] = (),
) -> list[Result]:
    """Run the cells of a group. If they fail together, each runs alone, so that an error concerns its cell only.

    Args:
        plan: The study, the seeds and the options.
        group: The cells.
        folder: Where a checkpoint is saved after an interrupt.
        resume: Continue from a checkpoint in the folder.
        callbacks: For each cell, what follows its rounds.
        advance: Called with the number of rounds computed since the last call, summed over seeds.
        cluster: Spread the networks over the shards of this cluster.
        scenes: The networks of the first seeds, if they are made already.
    """

    def alone(cell: Cell) -> Result:
        count = Progress(advance) if cluster else SeedsProgress(advance)
        return play(plan, cell, folder, resume, [count, *callbacks.get(cell, ())], cluster, *scenes[:1])

    begun_alone = folder is not None and resume and any((folder / cell.key).exists() for cell in group.cells)
    if len(group.cells) == 1 or begun_alone:
        return list(map(alone, group.cells))
    counted = Counted(advance)
    made = [(cell, attack_of(plan.attack, cell)) for cell in group.cells]
    try:
        return simulate_cases(
            plan.study,
            plan.rule(group.cells[0].rule),
            [Case(attack, cell.byzantine) for cell, attack in made if attack is not None],
            seeds=plan.seeds,
            scenes=scenes,
            checkpoint=folder and folder / group.key,
            resume=resume,
            callbacks=[SeedsProgress(counted)],
            of_cases=[OfCase(place, one) for place, cell in enumerate(group.cells) for one in callbacks.get(cell, ())],
            **{**asdict(plan.options), "save_models": bool(plan.options.save_models)},
        )
    except Exception:
        counted.undo()
        if folder is not None:
            shutil.rmtree(folder / group.key, ignore_errors=True)
        return list(map(alone, group.cells))


@dataclass
class Counted:
    """Counts rounds, so that they can be taken back."""

    advance: Callable[[int], object]
    rounds: int = 0

    def __call__(self, rounds: int) -> None:
        self.rounds += rounds
        self.advance(rounds)

    def undo(self) -> None:
        self.advance(-self.rounds)
        self.rounds = 0
