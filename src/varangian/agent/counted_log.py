"""Log lines about things that anyone outside can make happen: each is counted, but few are written."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass
class CountedLog:
    """Counts events by kind. Writes the first of a kind, then at most one line per `every` seconds with the count.

    Kinds must come from a fixed set: a stranger must not make the counters grow.

    >>> refused = CountedLog(logging.getLogger("example"))
    >>> for _ in range(3):
    ...     refused.add("expired", "connection refused: the certificate has expired")
    >>> refused.counts
    {'expired': 3}
    """

    log: logging.Logger
    every: float = 60.0
    clock: Callable[[], float] = time.monotonic
    _counts: Counter[str] = field(default_factory=Counter)
    _written: dict[str, tuple[float, int]] = field(default_factory=dict)
    """When a line of this kind was last written, and the count then."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, kind: str, line: str, times: int = 1) -> None:
        """Count an event, and write `line` if one of its kind is due."""
        with self._lock:
            self._counts[kind] += times
            count, now = self._counts[kind], self.clock()
            last, before = self._written.get(kind, (-float("inf"), 0))
            if now - last < self.every:
                return
            self._written[kind] = now, count
        more = f" ({count - before} times since the last such line, {count} in all)" if count > before + 1 else ""
        self.log.warning("%s%s", line, more, extra={"kind": kind, "count": count})

    @property
    def counts(self) -> Mapping[str, int]:
        """How often each kind happened."""
        with self._lock:
            return dict(self._counts)
