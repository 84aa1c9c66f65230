"""How far cells are that run elsewhere: each writes on a board how many rounds it has played."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from varangian.engine.cluster.task_pool import LOOK


class Board:
    """The board itself, an actor on the cluster."""

    def __init__(self) -> None:
        self.rounds: dict[str, int] = {}

    def write(self, name: str, rounds: int) -> None:
        self.rounds[name] = rounds

    def read(self) -> dict[str, int]:
        return self.rounds


@dataclass
class Writer:
    """Counts the rounds of one cell, and writes them on the board about twice a second, without waiting for it."""

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
    """Reads the board without waiting for it; `advance` hears of every round of every cell once."""

    board: Any
    rounds: int
    """Of a whole cell, all seeds counted."""
    advance: Callable[[int], object]
    running: dict[str, int] = field(default_factory=dict[str, int])
    """The rounds that cells have played which have begun and not finished."""
    finished: set[str] = field(default_factory=set[str])
    _asked: Any = None

    def look(self) -> Mapping[str, int]:
        import ray as library

        if self._asked is None:
            self._asked = self.board.read.remote()
        ready, _ = library.wait([self._asked], timeout=0)
        if ready:
            self._asked = None
            with suppress(library.exceptions.RayError):  # its process has died; another takes its place
                self._learn(library.get(ready[0]))
        return self.running

    def _learn(self, told: Mapping[str, int]) -> None:
        for name, rounds in told.items():
            if name not in self.finished:
                # Less than before where a cell had to begin again.
                self.advance(rounds - self.running.get(name, 0))
                self.running[name] = rounds

    def finish(self, name: str) -> None:
        """A cell is done, whatever the board says of it."""
        self.finished.add(name)
        self.advance(self.rounds - self.running.pop(name, 0))


@contextmanager
def board(rounds: int, advance: Callable[[int], object]) -> Iterator[Reader]:
    """A board on the cluster that is connected to, and its reader."""
    import ray as library

    actor: Any = library.remote(Board).options(num_cpus=0, max_restarts=-1).remote()
    try:
        yield Reader(actor, rounds, advance)
    finally:
        library.kill(actor)
