"""A small fleet for tests: an authority, agents with keys, and messages between them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from varangian.agent import keys
from varangian.agent.certificates import agent_certificate, new_key
from varangian.agent.envelope import seal
from varangian.agent.identity import Credentials, Identity
from varangian.agent.message import Header, Message, Schema, encode

FLEET = "test"
SCHEMA = Schema(("weight", "bias"), ((2, 3), (2,)))


def fleet(folder: Path, names: Sequence[str]) -> dict[str, Identity]:
    """A new authority in `folder`, and an identity for each name."""
    keys.create_authority(folder)
    return {name: Identity.load(keys.issue(folder, name)) for name in names}


def with_certificate(like: Credentials, authority: Path, name: str, lifetime: timedelta) -> Credentials:
    """Credentials with a certificate for `name` from another authority or with another lifetime."""
    signer = load_pem_private_key((authority / "ca.key").read_bytes(), None)
    above = x509.load_pem_x509_certificate((authority / "ca.crt").read_bytes())
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = new_key()
    return replace(like, key=key, certificate=agent_certificate(key, (signer, above), name, ["localhost"], lifetime))


class Someone:
    """An identity made of given credentials."""

    def __init__(self, credentials: Credentials) -> None:
        self.now = credentials


def message(sender: str, round: int, session: int = 1, schema: Schema = SCHEMA, value: float = 0.5) -> Message:
    header = Header(sender, session, round, 0.0, schema.fingerprint)
    return Message(header, torch.full((schema.numbers,), value, dtype=schema.dtype))


def sealed(identity: Identity, sender: str, round: int, session: int = 1, schema: Schema = SCHEMA) -> bytes:
    """A payload as `sender` would send it, signed by `identity`."""
    return seal(encode(message(sender, round, session, schema), schema), identity, FLEET)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
