"""Other processes that play cells of a sweep, while this one plays cells, too.

This process plays groups of cells from the first one on, and the others play from the last one on. They start only when
the sweep turns out to take long. Who plays a group does not change its results: every process computes it in the same
way, with as many threads.
"""

from __future__ import annotations

import signal
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch

from varangian.core.errors import BadInput
from varangian.core.memory import machine_memory
from varangian.core.scene import Scene
from varangian.engine.compute.choice import shares_operations
from varangian.engine.device import chosen_device, seeds_at_once
from varangian.engine.process_pool import Lost, Tell, Workers, cores, interrupted_later
from varangian.engine.simulated import Result
from varangian.experiments.config import Plan
from varangian.experiments.groups import Group, groups_of, play_group, shared_scenes
from varangian.studies.own_task import hash_of, scene_of

PATIENCE = 1.5
"""After so many seconds it is decided whether other processes help."""
WORTH = 6.0
"""They help if this process would take so many seconds for the groups that wait. To start one takes two or three."""
LOOK = 0.2
"""Seconds between two looks at the other processes."""
MEMORY = 2**31
"""The memory of the machine, in bytes, that there should be for each process."""


def usual_jobs(plan: Plan, scene: Scene) -> int:
    """The default number of processes: one per core, if cells use one core each, and else one.

    Large networks use all cores anyway, and a GPU plays one cell at a time. Options that say how many threads or how
    much memory to use are about one process.

    Args:
        plan: What to run.
        scene: The network of the first seed.
    """
    options = plan.options
    if options.threads is not None or options.memory is not None:
        return 1
    groups = groups_of(plan, scenes=[scene])
    most = min(len(groups), cores(), machine_memory() // MEMORY)
    if most < 2:
        return 1
    return most if _use_one_core(plan, groups, scene) else 1


def _use_one_core(plan: Plan, groups: Sequence[Group], scene: Scene) -> bool:
    """Whether rounds of these groups use one core each."""
    networks = min(plan.seeds, seeds_at_once(scene)) * max(len(group.cells) for group in groups)
    on_cpu = chosen_device(plan.options.device, [scene] * networks).type == "cpu"
    return on_cpu and not shares_operations(scene.task, networks)


@dataclass(eq=False)
class Player:
    """Plays groups of cells in another process. An interrupt leaves a checkpoint, as it does in a run of its own."""

    plan: Plan
    folder: Path | None
    """Where checkpoints are saved."""
    resume: bool
    threads: int
    """How many threads torch may use in the process that started the sweep."""
    data: str
    """The hash of the first network of that process."""
    scenes: Sequence[Scene] = field(default=(), repr=False)
    """The networks of the first seeds, once they are made."""

    def __call__(self, group: Group, tell: Tell) -> list[Result] | None:
        """The results of the cells. None if something failed: whoever plays the group next will say what.

        None also if the study makes another network here, as one that draws without a seed does.
        """
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        torch.set_num_threads(1)  # threads of several processes wait for each other, also between rounds
        try:
            self.scenes = self.scenes or shared_scenes(self.plan, scene_of(self.plan.study, None, 0))
            if hash_of(self.scenes[0]) != self.data:
                return None
            if not _use_one_core(self.plan, [group], self.scenes[0]):
                torch.set_num_threads(self.threads)
            return play_group(self.plan, group, self.folder, self.resume, {}, Teller(tell), scenes=self.scenes)
        except Exception:
            return None


@dataclass
class Teller:
    """Counts rounds, and tells their number a few times a second."""

    tell: Tell
    rounds: int = 0
    last: float = field(default=float("-inf"), repr=False)

    def __call__(self, rounds: int) -> None:
        self.rounds += rounds
        if time.monotonic() - self.last >= LOOK:
            self.last = time.monotonic()
            self.tell(self.rounds)


class Players:
    """The processes that play a sweep, this one included.

    Args:
        play: Plays a group in another process.
        groups: The groups to play, in the order of the sweep.
        jobs: How many processes there may be.
        rounds: How many rounds a cell has, summed over seeds.
        begin: Called with every group that another process begins.
        finish: Called with every group that another process has finished, and its results.
        follow: Called a few times a second while several processes play, with the rounds of each group that is played.
    """

    def __init__(
        self,
        play: Callable[[Group, Tell], list[Result] | None],
        groups: Sequence[Group],
        jobs: int,
        rounds: int,
        begin: Callable[[Group], object],
        finish: Callable[[Group, list[Result]], object],
        follow: Callable[[Mapping[Group, int]], object],
    ) -> None:
        self._waiting, self._jobs, self._rounds = list(groups), jobs, rounds
        self._begin, self._finish, self._follow = begin, finish, follow
        self._others = Workers(play, jobs - 1, told=self._told)
        self._played: dict[Group, int] = {}
        """The rounds of groups that are being played."""
        self._own: Group | None = None
        self._own_rounds, self._helped = 0, False
        self._began = self._looked = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._collect(0.0)  # what is finished by now is kept, whatever ends the sweep
        finally:
            self._others.__exit__(*error)

    def take(self, group: Group) -> None:
        """This process wants to play a group. If another one plays it already, wait until that is over.

        If the other process has finished it, `finish` was called. If it has failed, this one has to play the group.
        """
        if self._own is not None:
            self._played.pop(self._own, None)
            self._own = None
        while group in self._others.pieces:
            self._collect(LOOK)
            self._give()
        if group in self._waiting:
            self._waiting.remove(group)
            self._own, self._played[group] = group, 0

    def advance(self, rounds: int) -> None:
        """Count rounds that this process has played, and look after the others."""
        if self._own is not None:
            self._own_rounds += rounds
            self._played[self._own] += rounds
        if self._jobs > 1 and time.monotonic() - self._looked >= LOOK:
            self._looked = time.monotonic()
            self._helped = self._helped or self._is_worth_it()
            if self._helped:
                self._collect(0.0)
                self._give()

    def _is_worth_it(self) -> bool:
        spent = time.monotonic() - self._began
        left = self._rounds * sum(len(group.cells) for group in self._waiting)
        return spent >= PATIENCE and spent / max(1, self._own_rounds) * left >= WORTH

    def _collect(self, seconds: float) -> None:
        """Take what the others have finished. If there is nothing new, wait for up to so many seconds.

        An interrupt waits until all of it is kept. So does an error, such as a full disk.
        """
        failed = list[Exception]()
        with interrupted_later():
            for group, came in self._others.look(seconds):
                self._played.pop(group, None)
                if came is not None and not isinstance(came, Lost):
                    try:
                        self._finish(group, came)
                    except Exception as error:
                        failed.append(error)
        if failed:
            raise failed[0]

    def _give(self) -> None:
        """Give the last of the groups that wait to the processes that are free."""
        while self._waiting and self._others.free and self._jobs > 1:
            try:
                self._others.give(self._waiting[-1])
                self._played[self._waiting[-1]] = 0
                self._begin(self._waiting.pop())
            except (OSError, BadInput) as error:  # no more processes are allowed, or the plan cannot be sent
                warnings.warn(f"this process plays all cells: {error}", stacklevel=2)
                self._jobs = 1
        self._follow(self._played)

    def _told(self, group: Group, rounds: Any) -> None:
        self._played[group] = rounds
