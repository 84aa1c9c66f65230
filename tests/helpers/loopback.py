"""A network in one process: what one agent publishes is handed to its neighbours at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

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


@dataclass
class Loopback:
    """The transport of one agent."""

    hub: Hub
    name: str
    last: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def publish(self, payload: bytes, to: str | None = None) -> None:
        for other in [to] if to is not None else [name for name in self.hub.members if name != self.name]:
            if (self.name, other) not in self.hub.cut and other in self.hub.members:
                self.hub.members[other](self.name, payload)

    def connected(self) -> frozenset[str]:
        return frozenset(name for name in self.hub.members if name != self.name)

    def close(self) -> None:
        self.hub.members.pop(self.name, None)
