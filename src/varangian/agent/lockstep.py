"""Waiting for the neighbours' messages of one round, with a deadline, so that a fleet repeats a simulation."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from threading import Event

from varangian.agent.mailbox import Mailbox, Received
from varangian.agent.message import Reason
from varangian.agent.transport import Transport

log = logging.getLogger(__name__)

LOOK = 0.05
"""Seconds between looks at who has connected, and at whether to stop."""
NOT_ANSWERS = (Reason.REPLAYED, Reason.RATE)
"""Rejections that may be followed by the message that an agent waits for."""


@dataclass
class Lockstep:
    """Waits for messages of the same round.

    Nobody is waited for who is more than one round ahead, or sends what is refused. A neighbour that was not heard
    before the deadline is not waited for until it is heard from that round or a later one. So a neighbour that has left
    delays the others once, and one that comes back is waited for again. A neighbour that is one round ahead sends its
    message of this round again until it is heard: see `lockstep_resend`.
    """

    mailbox: Mailbox
    transport: Transport
    deadline: float
    """Seconds to wait for messages."""
    start_deadline: float
    """Seconds to wait for neighbours to connect, before the first round."""
    missed: dict[str, int] = field(default_factory=dict[str, int])
    """For neighbours that were waited for in vain: in which round."""

    def meet(self, neighbours: Collection[str], stop: Event) -> None:
        """Wait until all neighbours hear this agent: one that could not would wait in vain for its first message."""
        end = time.monotonic() + self.start_deadline
        while not set(neighbours) <= self.transport.connected() and time.monotonic() < end and not stop.wait(LOOK):
            pass

    def wait(self, round: int, neighbours: Collection[str], stop: Event) -> dict[str, Received]:
        """The messages of this round that arrive in time.

        Args:
            round: Which round.
            neighbours: Whom to wait for. The others are heard if they are there.
            stop: Ends the waiting.
        """
        began, refused = time.monotonic(), self._refused()
        while True:
            heard = self.mailbox.collect(time.monotonic(), round)
            answered = {name for name, count in self._refused().items() if count > refused.get(name, 0)}
            silent = [name for name in neighbours if name not in heard and name not in answered]
            missing = [name for name in silent if self._may_come(name, round)]
            if not missing or stop.is_set():
                return heard
            if time.monotonic() - began > self.deadline:
                self.missed |= dict.fromkeys(missing, round)
                log.warning(
                    "goes on without %s in round %d: not heard for %g s",
                    ", ".join(missing),
                    round,
                    self.deadline,
                    extra={"event": "deadline", "round": round},
                )
                return heard
            self.mailbox.wait(LOOK)

    def round_of_most(self, neighbours: Collection[str]) -> int:
        """The last round that at least half of the neighbours have reached.

        Byzantine neighbours can raise it only if they are half of all.
        """
        newest = self.mailbox.newest()
        rounds = sorted((newest.get(name, -1) for name in neighbours), reverse=True)
        return rounds[(len(rounds) - 1) // 2] if rounds else -1

    def _may_come(self, name: str, round: int) -> bool:
        """Whether a neighbour may still send a message of this round."""
        newest = self.mailbox.newest().get(name, -1)
        return self.missed.get(name, -1) <= newest <= round + 1

    def _refused(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for (name, reason), count in self.mailbox.rejected.items():
            if reason not in NOT_ANSWERS:
                counts[name] = counts.get(name, 0) + count
        return counts
