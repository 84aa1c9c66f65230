"""A sign, kept by the cluster, at which running tasks stop.

`ray.cancel` also interrupts a task. But if the task ends at that moment, Ray aborts the process that asked.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar
from uuid import uuid4

Done = TypeVar("Done")

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


def until(sign: StopSign, work: Callable[[], Done]) -> Done | None:
    """What `work` returns. When the sign goes up, `work` is interrupted, as by Ctrl-C, and this returns None.

    For the main thread only. No interrupt comes after the end.
    """
    over = threading.Event()
    ending = threading.Lock()
    interrupted = False

    def look() -> None:
        up = False
        while not up:
            with suppress(Exception):  # the cluster does not answer now
                up = sign.is_up()
            if not up and over.wait(LOOK):
                return
        interrupt()

    def interrupt() -> None:
        nonlocal interrupted
        with ending:
            if not over.is_set():
                interrupted = True
                _thread.interrupt_main()

    def not_dropped(what: sys.UnraisableHookArgs) -> None:
        # Python drops an exception that is raised in a destructor. Then interrupt again.
        if what.exc_type is KeyboardInterrupt and interrupted:
            threading.Timer(LOOK, interrupt).start()
        else:
            before(what)

    before, sys.unraisablehook = sys.unraisablehook, not_dropped
    # Not a context manager: an interrupt could hit its code, before or after what it protects.
    try:
        try:
            threading.Thread(target=look, name="stop sign", daemon=True).start()
            return work()
        finally:
            with ending:  # an interrupt comes before the next line, or not at all
                over.set()
    except KeyboardInterrupt:
        if not interrupted:
            raise
        return None
    finally:
        over.set()  # also if the interrupt came just before the line above
        sys.unraisablehook = before
