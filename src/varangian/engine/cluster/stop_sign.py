"""A sign, kept by the cluster, at which running tasks stop.

`ray.cancel` also interrupts a task. But if the task ends at that moment, Ray aborts the process that asked.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from uuid import uuid4

LOOK = 0.5
"""Seconds between two looks at the sign."""
NAMESPACE = "varangian"


@dataclass(frozen=True)
class StopSign:
    """The name of a sign in the key-value store of the cluster; a task can be given it."""

    name: str

    @classmethod
    def new(cls) -> StopSign:
        """A sign that is down, and that nobody else has."""
        return cls(f"stop-{uuid4()}")

    def put_up(self) -> None:
        """Tell all tasks that have this sign to stop."""
        from ray.experimental.internal_kv import _internal_kv_put

        _internal_kv_put(self.name, b"stop", namespace=NAMESPACE)

    def take_down(self) -> None:
        """Forget the sign."""
        from ray.experimental.internal_kv import _internal_kv_del

        _internal_kv_del(self.name, namespace=NAMESPACE)

    def is_up(self) -> bool:
        """Whether tasks have to stop."""
        from ray.experimental.internal_kv import _internal_kv_exists

        return bool(_internal_kv_exists(self.name, namespace=NAMESPACE))


@contextmanager
def heeding(sign: StopSign) -> Iterator[None]:
    """Interrupt what runs inside, as Ctrl-C does, when the sign goes up. Ends quietly then. Main thread only."""
    over = threading.Event()
    ending = threading.Lock()
    interrupted = False

    def look() -> None:
        nonlocal interrupted
        from ray.exceptions import RayError

        up = False
        while not up:
            if over.wait(LOOK):
                return
            with suppress(RayError):  # the cluster does not answer now
                up = sign.is_up()
        with ending:
            if not over.is_set():
                interrupted = True
                _thread.interrupt_main()

    threading.Thread(target=look, name="stop sign", daemon=True).start()
    try:
        try:
            yield
        finally:
            with ending:  # an interrupt comes before this line, or not at all
                over.set()
    except KeyboardInterrupt:
        if not interrupted:
            raise
