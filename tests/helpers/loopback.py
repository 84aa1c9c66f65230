"""A network in one process: what one agent publishes is handed to its neighbours at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from varangian.agent.sender import Resend, Sender

Deliver = Callable[[str, bytes], None]


@dataclass
class Hub:
    """Who hears whom now. A link that is cut loses what is sent."""

    members: dict[str, Deliver] = field(default_factory=dict[str, Deliver])
    cut: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Pairs (sender, receiver) that do not hear each other."""

    def join(self, name: str, deliver: Deliver) -> Loopback:
        self.members[name] = deliver
        return Loopback(self, name)

    def hand_over(self, sender: str, receiver: str, payload: bytes) -> None:
        if (sender, receiver) not in self.cut and receiver in self.members:
            self.members[receiver](sender, payload)


@dataclass
class Loopback:
    """The transport of one agent."""

    hub: Hub
    name: str

    def publish(self, payload: bytes, to: str | None = None) -> None:
        for other in [to] if to is not None else [name for name in self.hub.members if name != self.name]:
            self.hub.hand_over(self.name, other, payload)

    def connected(self) -> frozenset[str]:
        return frozenset(name for name in self.hub.members if name != self.name)

    def close(self) -> None:
        self.hub.members.pop(self.name, None)


class Lossy:
    """The transport of one agent that loses messages at random, and sends them again as the real one does."""

    def __init__(self, hub: Hub, name: str, others: list[str], loss: float, resend: Resend) -> None:
        self._lots = random.Random(name)

        def put(other: str, payload: bytes) -> None:
            if self._lots.random() >= loss:
                hub.hand_over(name, other, payload)

        self._senders = {other: Sender(other, partial(put, other), resend) for other in others}

    def publish(self, payload: bytes, to: str | None = None) -> None:
        for name in self._senders if to is None else (to,):
            self._senders[name].send(payload)

    def connected(self) -> frozenset[str]:
        return frozenset(self._senders)

    def close(self) -> None:
        for sender in self._senders.values():
            sender.close()
        for sender in self._senders.values():
            sender.join()
