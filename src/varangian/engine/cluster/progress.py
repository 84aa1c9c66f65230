"""The progress of cells that run on a cluster: each writes to a shared board how many rounds it has computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from varangian.engine.cluster.task_pool import LOOK


class ProgressBoard:
    """The number of rounds that each cell has computed; an actor on the cluster."""

    def __init__(self) -> None:
        self.rounds: dict[str, int] = {}

    def write(self, name: str, rounds: int) -> None:
        self.rounds[name] = rounds

    def read(self) -> dict[str, int]:
        return self.rounds


@dataclass
class Writer:
    """Counts the rounds of one cell and writes them to the board about twice a second, without waiting for it."""

    board: Any
    name: str
    played: int = 0
    written: float = field(default=float("-inf"), repr=False)

    def __call__(self, rounds: int) -> None:
        self.played += rounds
        if time.monotonic() - self.written >= LOOK:
            self.written = time.monotonic()
            self.board.write.remote(self.name, self.played)


@dataclass
class Reader:
    """Reads the board without waiting for it. `advance` is called with each round of each cell once."""

    board: Any
    rounds: int
    """The rounds of a whole cell, summed over its seeds."""
    advance: Callable[[int], object]
    running: dict[str, int] = field(default_factory=dict[str, int])
    """Rounds computed so far, for cells that have begun and are not finished."""
    finished: set[str] = field(default_factory=set[str])
    _asked: Any = None

    def look(self) -> Mapping[str, int]:
        """Request the board's numbers, use those of the last request if they have arrived, return the running cells."""
        import ray as library

        if self._asked is None:
            self._asked = self.board.read.remote()
        ready, _ = library.wait([self._asked], timeout=0)
        if ready:
            self._asked = None
            with suppress(library.exceptions.RayError):  # the board's process died; Ray starts it again
                self._learn(library.get(ready[0]))
        return self.running

    def _learn(self, answer: Mapping[str, int]) -> None:
        for name, rounds in answer.items():
            if name not in self.finished:
                # The difference is negative if a cell's process died and the cell starts again.
                self.advance(rounds - self.running.get(name, 0))
                self.running[name] = rounds

    def finish(self, name: str, cells: int = 1) -> None:
        """Mark a cell, or several that share a run, as finished, even if the board has older numbers."""
        self.finished.add(name)
        self.advance(self.rounds * cells - self.running.pop(name, 0))


@contextmanager
def progress_board(rounds: int, advance: Callable[[int], object]) -> Iterator[Reader]:
    """Create a board on the connected cluster; yields its reader."""
    import ray as library

    actor: Any = library.remote(ProgressBoard).options(num_cpus=0, max_restarts=-1).remote()
    try:
        yield Reader(actor, rounds, advance)
    finally:
        library.kill(actor)
