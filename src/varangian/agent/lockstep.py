"""Waiting for the neighbours' messages of one round, with a deadline, so that a fleet repeats a simulation."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from threading import Event

from varangian.agent.mailbox import Mailbox, Received
from varangian.agent.message import Reason
from varangian.agent.transport import Transport

LOOK = 0.05
"""Seconds between looks at who has connected, and at whether to stop."""
NOT_ANSWERS = (Reason.REPLAYED, Reason.RATE)
"""Rejections that may be followed by the message that an agent waits for."""


@dataclass
class Lockstep:
    """Waits for messages of the same round.

    A neighbour that was late is not waited for until it is on time again. So a neighbour that has left delays others
    once. One whose messages are refused is not waited for at all.
    """

    mailbox: Mailbox
    transport: Transport
    deadline: float
    """Seconds to wait for messages."""
    start_deadline: float
    """Seconds to wait for neighbours to connect, before the first round."""
    late: frozenset[str] = frozenset()

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
        began = time.monotonic()
        refused = self._refused()
        while True:
            heard = self.mailbox.collect(time.monotonic(), round)
            answered = {name for name, count in self._refused().items() if count > refused.get(name, 0)}
            missing = set(neighbours) - self.late - heard.keys() - answered
            if not missing or stop.is_set() or time.monotonic() - began > self.deadline:
                break
            self.mailbox.wait(LOOK)
        self.late = frozenset(set(neighbours) - heard.keys())
        return heard

    def round_of_most(self) -> int | None:
        """The round that at least half of the neighbours heard lately have reached. None if nobody was heard.

        Byzantine neighbours can move it only if they are half of those that were heard.
        """
        rounds = sorted(one.message.header.round for one in self.mailbox.collect(time.monotonic()).values())
        return rounds[(len(rounds) - 1) // 2] if rounds else None

    def _refused(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for (name, reason), count in self.mailbox.rejected.items():
            if reason not in NOT_ANSWERS:
                counts[name] = counts.get(name, 0) + count
        return counts
