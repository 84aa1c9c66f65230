"""What agents send each other: a model as a safetensors file, checked completely before any number is used."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from varangian.core.models.base import Model

WireDtype = Literal["float32", "bfloat16", "float64"]


class Reason(Enum):
    """Why something that arrived was not accepted. The values are labels of metrics."""

    SIZE = "size"
    """Longer than the limit, or not as long as its header says."""
    ENVELOPE = "envelope"
    """No certificate and signature around the model."""
    CERTIFICATE = "certificate"
    """Not issued by the fleet's authority, or not for the name that it speaks for."""
    EXPIRED = "expired"
    REVOKED = "revoked"
    SIGNATURE = "signature"
    HEADER = "header"
    """The header is too long or no JSON of the expected form."""
    NAMES = "names"
    SHAPE = "shape"
    DTYPE = "dtype"
    OFFSETS = "offsets"
    NOT_FINITE = "not-finite"
    SENDER = "sender"
    """The message names another sender, or comes from someone who is no neighbour."""
    SCHEMA = "schema"
    """The sender has another model or another wire dtype."""
    REPLAYED = "replayed"
    """Not newer than what was heard from this sender before."""
    FUTURE = "future"
    """A round that the sender cannot have reached."""
    RATE = "rate"
    """More messages a second than allowed."""
    MUTED = "muted"
    """The sender is muted for a while after too many faults."""


class Rejected(Exception):
    """A message that is not accepted. The only exception that checking a message raises."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason = reason


@dataclass(frozen=True)
class Limits:
    """What a receiver accepts from each neighbour."""

    bytes: int = 256 * 2**20
    """The longest payload, whatever the model is. The schema's own length is a limit too."""
    header: int = 2**20
    """The longest safetensors header."""
    rate: float = 1_000.0
    """Messages a second, on average."""
    burst: float = 1_000.0
    """Messages at once."""
    pace: float = 10_000.0
    """Rounds a second that a sender can possibly do. A message further ahead than this is from the future."""
    silence: float = 60.0
    """Seconds after which the last message of a neighbour no longer counts: the neighbour is absent."""
    patience: int = 5
    """Faults in a row until a neighbour is muted."""
    mute: float = 1.0
    """Seconds of the first pause. Every further pause is twice as long."""
    longest_mute: float = 600.0


@dataclass(frozen=True)
class Schema:
    """Names, shapes and dtypes of the parameters that travel. All agents of a fleet must agree on it."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    wire: WireDtype
    """The type of numbers on the wire."""
    dtype: torch.dtype
    """The type of numbers of this agent's models. A local matter: it is no part of the fingerprint."""

    @staticmethod
    def of(model: Model, wire: WireDtype = "float32", dtype: torch.dtype = torch.float32) -> Schema:
        """The schema of what `model` shares."""
        raise NotImplementedError

    @property
    def numbers(self) -> int:
        """How many numbers a message has."""
        raise NotImplementedError

    @property
    def fingerprint(self) -> str:
        """A hash of names, shapes and wire dtype, in hexadecimal."""
        raise NotImplementedError


@dataclass(frozen=True)
class Header:
    """Who sent a model, and when by the sender's count."""

    sender: str
    session: int
    """Grows with every start of the sender (see `agent.session`). Rounds may go back only in a new session."""
    round: int
    """Grows with every message of a session."""
    sent_at: float
    """The sender's wall clock. For people who read logs only: nothing is decided by it."""
    schema: str
    """The fingerprint of the sender's schema."""


@dataclass(frozen=True, eq=False)
class Message:
    header: Header
    vector: Float[Tensor, " shared"]
    """The shared parameters, in the order of the schema: a row of the engine's matrix."""


def encode(message: Message, schema: Schema) -> bytes:
    """The message as a safetensors file. The header's fields are in its metadata."""
    raise NotImplementedError


def decode(body: bytes, schema: Schema, sender: str, limits: Limits) -> Message:
    """Check everything about a message, then return it. Raises nothing but `Rejected`.

    Args:
        body: The safetensors file, out of its envelope.
        schema: What this agent expects.
        sender: Who the message must be from.
        limits: Sizes to accept.
    """
    raise NotImplementedError
