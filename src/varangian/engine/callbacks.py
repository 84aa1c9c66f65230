"""Three hooks for those who watch a run: at its start, after every round, at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from varangian.engine.recorder import Recorder
from varangian.engine.state import State
from varangian.engine.world import World


class Callback(Protocol):
    def start(self, world: World, state: State, rounds: int) -> None:
        """Before the first round played; `state.round` is not 0 when a run is resumed."""
        ...

    def round(self, world: World, state: State, recorder: Recorder) -> None:
        """After each round. Reading a tensor's value here makes a GPU wait; do so rarely."""
        ...

    def end(self, world: World, state: State) -> None:
        """After the last round, or when the run is interrupted."""
        ...


@dataclass(frozen=True)
class Progress:
    """Tells how many rounds have been played, one by one."""

    advance: Callable[[int], object]

    def start(self, world: World, state: State, rounds: int) -> None:
        self.advance(state.round)

    def round(self, world: World, state: State, recorder: Recorder) -> None:
        self.advance(1)

    def end(self, world: World, state: State) -> None: ...
