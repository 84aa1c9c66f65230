"""What one neighbour is sent: the newest payloads, and again from time to time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

SHORTEST = 0.1
"""Seconds of the shortest pause before payloads are sent again in lockstep, also if the deadline is 0."""


@dataclass(frozen=True)
class Resend:
    """What is sent again, and when, for neighbours that could not hear it: nobody stores a payload for them."""

    payloads: int = 1
    """How many of the last payloads."""
    first: float = 1.0
    """Seconds until they are sent again. Every further pause is twice as long."""
    longest: float = 15.0
    """Seconds of the longest pause."""


def lockstep_resend(deadline: float) -> Resend:
    """The last two payloads, often enough that a neighbour which waits for `deadline` seconds hears them.

    Two are enough: an agent goes on to a round only after it has heard all neighbours in the round before. So a
    neighbour waits for the last payload or for the one before it.
    """
    longest = min(Resend.longest, max(SHORTEST, deadline / 4))
    return Resend(payloads=2, first=min(Resend.first, longest), longest=longest)


class Sender:
    """Sends the newest payloads to one neighbour, in a thread of its own: a slow neighbour delays only itself.

    A payload that is too old to be sent again is dropped, also if it has not been sent yet.
    """

    def __init__(self, name: str, put: Callable[[bytes], None], resend: Resend) -> None:
        """Start the thread.

        Args:
            name: Of the neighbour.
            put: Sends a payload. It may block.
            resend: How many payloads to keep, and when to send them again.
        """
        self._put, self._resend = put, resend
        self._last: deque[bytes] = deque(maxlen=resend.payloads)
        self._unsent = 0
        """How many of the last payloads are to be sent now."""
        self._open = True
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"tell-{name}", daemon=True)
        self._thread.start()

    def send(self, payload: bytes) -> None:
        """Send this as soon as possible, after what has not been sent yet."""
        with self._changed:
            self._last.append(payload)
            self._unsent = min(self._unsent + 1, len(self._last))
            self._changed.notify()

    def repeat(self) -> None:
        """Send the last payloads again now."""
        with self._changed:
            self._unsent = len(self._last)
            self._changed.notify()

    def close(self) -> None:
        """Send nothing more."""
        with self._changed:
            self._open = False
            self._changed.notify()

    def join(self) -> None:
        """Wait for the end of the thread, after `close`."""
        self._thread.join()

    def _run(self) -> None:
        pause = self._resend.first
        while True:
            with self._changed:
                new = self._changed.wait_for(lambda: self._unsent or not self._open, pause)
                if not self._open:
                    return
                last = list(self._last)
                payloads = last[len(last) - self._unsent :] if new else last
                self._unsent = 0
            pause = self._resend.first if new else min(2 * pause, self._resend.longest)
            for payload in payloads:
                self._put(payload)
