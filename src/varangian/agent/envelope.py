"""The envelope of a message: the sender's certificate and its signature of the body."""

from __future__ import annotations

from varangian.agent.identity import Identity


class Signer:
    """Puts bodies into signed envelopes."""

    def __init__(self, identity: Identity, fleet: str) -> None:
        raise NotImplementedError

    def seal(self, body: bytes) -> bytes:
        """The body with this agent's certificate and signature."""
        raise NotImplementedError


class Verifier:
    """Opens envelopes: `Verifier(identity, fleet)(sender, payload)` is the body, or raises `Rejected`."""

    def __init__(self, identity: Identity, fleet: str) -> None:
        raise NotImplementedError

    def __call__(self, sender: str, payload: bytes) -> bytes:
        raise NotImplementedError
