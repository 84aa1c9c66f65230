"""How payloads travel between neighbours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from varangian.agent.identity import Identity
from varangian.agent.mailbox import Payload

Deliver = Callable[[str, Payload], None]
"""Called from the transport's thread with the sender's name and what it sent."""


class Transport(Protocol):
    """Sends an agent's newest payload to its neighbours, and hands over what they send. Never blocks on them."""

    def publish(self, payload: bytes) -> None:
        """Send this to every neighbour. It replaces what has not been sent yet."""
        ...

    def publish_to(self, neighbour: str, payload: bytes) -> None:
        """Send this to one neighbour only (two-faced senders)."""
        ...

    def connected(self) -> frozenset[str]:
        """The neighbours that are connected now."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Addresses:
    """Where an agent listens, and where its neighbours do."""

    listen: str
    """`host:port`."""
    neighbours: Mapping[str, str]
    """From a neighbour's name to its `host:port`."""


class ZenohTransport:
    """Zenoh in peer mode over TLS with mutual authentication, to the given neighbours only."""

    def __init__(self, identity: Identity, fleet: str, addresses: Addresses, deliver: Deliver) -> None:
        """Open the session. Neighbours need not be there yet.

        Args:
            identity: This agent's certificate and whom it trusts.
            fleet: The name of the fleet; agents of different fleets do not hear each other.
            addresses: Where to listen and connect.
            deliver: What to do with what arrives.
        """
        raise NotImplementedError

    def publish(self, payload: bytes) -> None:
        raise NotImplementedError

    def publish_to(self, neighbour: str, payload: bytes) -> None:
        raise NotImplementedError

    def connected(self) -> frozenset[str]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
