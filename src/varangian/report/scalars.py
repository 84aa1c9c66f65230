"""The metrics of a run for programs that follow experiments: mean and worst over normal agents, for every seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol

import torch
from torch import Tensor

from varangian.core.errors import BadInput
from varangian.engine.recorder import Recorder
from varangian.engine.results import UNWEIGHED, higher_is_better
from varangian.engine.state import State
from varangian.engine.world import World

POINTS = 500
"""About how many rounds of a run are written. Reading a number makes a GPU wait, so there should be few."""


def check_installed(package: str, install: str) -> None:
    """Whether a package that is not always there can be imported."""
    if find_spec(package) is None:
        raise BadInput(f"this needs the package {package}; install it with: pip install {install}")


class Log(Protocol):
    """Where the metrics of one seed are written."""

    def write(self, values: Mapping[str, float], round: int) -> None: ...

    def close(self, finished: bool) -> None:
        """Called at the end of a run; `finished` is false if it was interrupted."""
        ...


@dataclass
class Scalars:
    """Writes the metrics of a run: streaming metrics at some rounds, held-out metrics after every evaluation."""

    open: Callable[[int, int], Log]
    """Opens the log of a seed, from its number and the rounds that are done already."""
    logs: Sequence[Log] = ()
    rounds: int = 0

    def start(self, world: World, state: State, rounds: int) -> None:
        self.rounds = rounds
        self.logs = [self.open(seed, state.round) for seed in world.seeds]

    def round(self, world: World, state: State, recorder: Recorder) -> None:
        done = state.round
        columns: dict[str, Sequence[Tensor]] = {}
        if recorder.rounds[-1:] == [done] and (done % max(1, self.rounds // POINTS) == 0 or done == self.rounds):
            columns |= recorder.streaming
        if recorder.evaluated[-1:] == [done]:
            columns |= recorder.held_out
        if columns:
            self._write(world, columns, done)

    def _write(self, world: World, columns: Mapping[str, Sequence[Tensor]], done: int) -> None:
        normal = world.is_normal.view(len(self.logs), -1)
        values: list[dict[str, float]] = [{} for _ in self.logs]
        for name, rows in columns.items():
            of_seeds = rows[-1].view(len(self.logs), -1).double()
            means = torch.where(normal, of_seeds, 0).sum(1) / normal.sum(1)
            least = higher_is_better(name)
            of_normal = torch.where(normal, of_seeds, torch.inf if least else -torch.inf)
            worst = of_normal.amin(1) if least else of_normal.amax(1)
            for own, mean, extreme in zip(values, means.tolist(), worst.tolist(), strict=True):
                own[f"{name}/mean"] = mean
                if name not in UNWEIGHED:
                    own[f"{name}/worst"] = extreme
        for log, own in zip(self.logs, values, strict=True):
            log.write(own, done)

    def end(self, world: World, state: State) -> None:
        for log in self.logs:
            log.close(state.round == self.rounds)
