"""How long each phase of a run takes: one value that is passed along."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

PHASES = ("set-up", "compile", "rounds", "recording", "writing", "figures", "report")
"""All phases of a command, in the order in which people read them."""


class Stopwatch:
    """The seconds of each phase. Time in a phase inside another phase counts for the inner one only.

    >>> watch = Stopwatch()
    >>> with watch.phase("rounds"):
    ...     watch.add({"compile": 2.0})
    >>> list(watch.seconds), watch.seconds["compile"]
    (['compile', 'rounds'], 2.0)
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @staticmethod
    def clock() -> float:
        """What phases are measured by: the time that passes."""
        return time.perf_counter()

    @property
    def total(self) -> float:
        """The seconds of all phases together."""
        return sum(self.seconds.values())

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add what was measured elsewhere, such as in another process."""
        for phase, spent in seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + spent

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a phase."""
        began, before = self.clock(), self.total
        try:
            yield
        finally:
            inner = self.total - before
            # Inner phases that ran side by side in other processes may be longer than this one.
            self.add({name: max(0.0, self.clock() - began - inner)})
