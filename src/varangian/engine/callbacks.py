"""Three hooks to watch a run: at its start, after every round, and at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from varangian.engine.recorder import Recorder
from varangian.engine.state import State
from varangian.engine.world import World


class Callback(Protocol):
    def start(self, world: World, state: State, rounds: int) -> None:
        """Called before the first round. In a resumed run, `state.round` is not 0."""
        ...

    def round(self, world: World, state: State, recorder: Recorder) -> None:
        """Called after each round. Reading the value of a tensor here waits for the GPU; do so rarely."""
        ...

    def end(self, world: World, state: State) -> None:
        """Called after the last round, or when the run is interrupted."""
        ...


@dataclass(frozen=True)
class Progress:
    """Calls `advance` with the number of rounds just played."""

    advance: Callable[[int], object]

    def start(self, world: World, state: State, rounds: int) -> None:
        self.advance(state.round)

    def round(self, world: World, state: State, recorder: Recorder) -> None:
        self.advance(1)

    def end(self, world: World, state: State) -> None: ...
