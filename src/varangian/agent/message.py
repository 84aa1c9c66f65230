"""What agents send each other: a model as a safetensors file, checked completely before any number is used.

The receiver knows the names, shapes and types to expect. So this module reads the header of the file by itself: as JSON
of limited length, without duplicates, and equal to what the schema says in every entry. Then the data are one block of
numbers in the order of the schema. No other parser sees bytes from outside.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import time
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from varangian.core.models.base import Model
from varangian.core.models.stacked import Stacked

WireDtype = Literal["float32", "bfloat16", "float64"]
FORMAT = "varangian-1"
_LENGTH = struct.Struct("<Q")
_METADATA = "__metadata__"
_FIELDS = ("format", "sender", "session", "round", "sent_at", "schema")


class Reason(Enum):
    """Why something that arrived was not accepted. The values are labels of metrics."""

    SIZE = "size"
    """Longer than the limit, or not as long as the model needs."""
    ENVELOPE = "envelope"
    """No certificate and signature around the model."""
    CERTIFICATE = "certificate"
    """Not issued by the fleet's authority."""
    EXPIRED = "expired"
    """The certificate is not valid now."""
    REVOKED = "revoked"
    """The certificate is on the revocation list."""
    SIGNATURE = "signature"
    """Not signed with the certificate's key, or changed afterwards, or for another fleet."""
    HEADER = "header"
    """The header is too long, or not JSON of the expected form."""
    NAMES = "names"
    """Other tensors than expected."""
    SHAPE = "shape"
    """A tensor has another shape than expected."""
    DTYPE = "dtype"
    """A tensor has another type of numbers than expected."""
    OFFSETS = "offsets"
    """A tensor is not where it should be in the data."""
    NOT_FINITE = "not-finite"
    """A number is infinite or not a number."""
    SENDER = "sender"
    """From someone who is no neighbour, or who speaks under another's name."""
    SCHEMA = "schema"
    """The sender has another model or another wire dtype."""
    REPLAYED = "replayed"
    """Not newer than what was heard from this sender before."""
    FUTURE = "future"
    """A round that the sender cannot have reached."""
    RATE = "rate"
    """More messages a second than allowed."""
    MUTED = "muted"
    """The sender is muted for a while, after too many faults."""


class Rejected(Exception):
    """A message that is not accepted. No other exception leaves the checks."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason = reason


@dataclass(frozen=True)
class Schema:
    """Names, shapes and types of the parameters that travel. All agents of a fleet must agree on it.

    >>> schema = Schema(("weight", "bias"), ((2, 3), (2,)))
    >>> schema.numbers, schema.data_bytes
    (8, 32)
    >>> schema.fingerprint == Schema(("weight", "bias"), ((3, 2), (2,))).fingerprint
    False
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    wire: WireDtype = "float32"
    """The type of numbers on the wire."""
    dtype: torch.dtype = torch.float32
    """The type of this agent's own numbers: a local matter, and no part of the fingerprint."""

    @staticmethod
    def of(model: Model, wire: WireDtype = "float32", dtype: torch.dtype = torch.float32) -> Schema:
        """The schema of what `model` shares."""
        if not isinstance(model, Stacked):
            return Schema(("parameters",), ((model.shared,),), wire, dtype)
        count = len(model.sizes)
        return Schema(model.names[:count], tuple(tuple(shape) for shape in model.shapes[:count]), wire, dtype)

    @cached_property
    def numbers(self) -> int:
        """How many numbers a message has."""
        return sum(map(math.prod, self.shapes))

    @cached_property
    def data_bytes(self) -> int:
        """How many bytes its numbers take on the wire."""
        return self.numbers * _WIRES[self.wire].width

    @cached_property
    def fingerprint(self) -> str:
        """A hash of names, shapes and wire dtype, in hexadecimal."""
        return hashlib.sha256(json.dumps(self.entries, sort_keys=True).encode()).hexdigest()

    @cached_property
    def entries(self) -> dict[str, dict[str, Any]]:
        """The tensors' entries in the header of every message."""
        wire, found, start = _WIRES[self.wire], {}, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            end = start + math.prod(shape) * wire.width
            found[name] = {"dtype": wire.label, "shape": list(shape), "data_offsets": [start, end]}
            start = end
        return found

    @cached_property
    def longest_header(self) -> int:
        """The most bytes that the header of a valid message has."""
        return len(json.dumps(self.entries)) + 1024

    @cached_property
    def longest(self) -> int:
        """The most bytes that a valid message has."""
        return _LENGTH.size + self.longest_header + self.data_bytes


@dataclass(frozen=True)
class Header:
    """Who sent a model, and when by the sender's count."""

    sender: str
    session: int
    """Grows with every start of the sender. Rounds may go back only in a new session."""
    round: int
    """Grows with every new model of a session."""
    sent_at: float
    """The sender's wall clock. For people who read logs: nothing is decided by it."""
    schema: str
    """The fingerprint of the sender's schema."""


@dataclass(frozen=True, eq=False)
class Message:
    """A model and its header."""

    header: Header
    vector: Float[Tensor, " shared"]
    """The shared parameters in the order of the schema: a row of the engine's matrix."""


@dataclass(frozen=True)
class _Wire:
    label: str
    """What safetensors calls it."""
    width: int
    dtype: torch.dtype
    buffer: np.dtype[Any] = field(repr=False)
    """How numpy reads it. numpy has no bfloat16, so its bits are read as integers."""


_WIRES: dict[WireDtype, _Wire] = {
    "float32": _Wire("F32", 4, torch.float32, np.dtype("<f4")),
    "bfloat16": _Wire("BF16", 2, torch.bfloat16, np.dtype("<i2")),
    "float64": _Wire("F64", 8, torch.float64, np.dtype("<f8")),
}


def new_session(previous: int = 0) -> int:
    """A session number for an agent that starts now, larger than `previous`, that of its last start.

    It is the wall clock in nanoseconds. An agent whose clock was set back needs its last number to be heard again.

    >>> new_session(previous=2**62)
    4611686018427387905
    """
    return max(time.time_ns(), previous + 1)


def encode(message: Message, schema: Schema) -> bytes:
    """The message as a safetensors file, with the header's fields in its metadata.

    >>> schema = Schema(("weight",), ((2,),))
    >>> sent = Message(Header("a", 1, 7, 0.0, schema.fingerprint), torch.tensor([1.0, 2.0]))
    >>> decode(encode(sent, schema), schema, "a").vector
    tensor([1., 2.])
    """
    about, wire = message.header, _WIRES[schema.wire]
    if message.vector.shape != (schema.numbers,):
        raise ValueError(f"a message has {schema.numbers} numbers, but got {tuple(message.vector.shape)}")
    values = (FORMAT, about.sender, about.session, about.round, repr(about.sent_at), about.schema)
    metadata = {name: str(value) for name, value in zip(_FIELDS, values, strict=True)}
    header = json.dumps({_METADATA: metadata, **schema.entries}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # as safetensors does, so that the data are aligned
    data = message.vector.detach().to("cpu", wire.dtype).contiguous()
    bits = data.view(torch.int16) if wire.dtype == torch.bfloat16 else data
    block = bits.numpy().astype(wire.buffer, copy=False).view(np.uint8).data
    return b"".join((_LENGTH.pack(len(header)), header, block))


def decode(body: bytes | memoryview, schema: Schema, sender: str) -> Message:
    """Check everything about a message, then return it. Raises nothing but `Rejected`.

    Besides the input it allocates the numbers once, their bits where the wire has another type, and the header.

    Args:
        body: A safetensors file, out of its envelope.
        schema: What this agent expects.
        sender: Who the message must be from.
    """
    view = memoryview(body)
    if len(view) > schema.longest:
        raise Rejected(Reason.SIZE, f"{len(view)} bytes, at most {schema.longest}")
    if len(view) < _LENGTH.size:
        raise Rejected(Reason.SIZE, "truncated")
    (length,) = _LENGTH.unpack_from(view)
    if length > schema.longest_header:
        raise Rejected(Reason.HEADER, f"{length} bytes, at most {schema.longest_header}")
    start = _LENGTH.size + length
    if len(view) != start + schema.data_bytes:
        raise Rejected(Reason.SIZE, f"{len(view)} bytes instead of {start + schema.data_bytes}")
    entries = _parsed(bytes(view[_LENGTH.size : start]))
    header = _header(entries.pop(_METADATA, None), schema, sender)
    _check_entries(entries, schema)
    return Message(header, _numbers(view[start:], schema))


def _parsed(text: bytes) -> dict[str, Any]:
    """The header as JSON objects and lists of strings and small integers, without duplicate names."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name appears twice")
        return found

    def integer(digits: str) -> int:
        if len(digits) > 18:
            raise ValueError("a number is too large")
        return int(digits)

    def refuse(what: str) -> Any:
        raise ValueError(f"{what[:20]} does not belong here")

    try:
        found = json.loads(
            text.decode("ascii"),
            object_pairs_hook=unique,
            parse_int=integer,
            parse_float=refuse,
            parse_constant=refuse,
        )
    except (ValueError, RecursionError) as error:
        raise Rejected(Reason.HEADER, str(error)[:80]) from None
    if not isinstance(found, dict):
        raise Rejected(Reason.HEADER, "not an object")
    return found


def _header(metadata: object, schema: Schema, sender: str) -> Header:
    if not isinstance(metadata, dict) or metadata.keys() != set(_FIELDS):
        raise Rejected(Reason.HEADER, "other metadata than expected")
    if not all(isinstance(value, str) and len(value) <= 80 for value in metadata.values()):
        raise Rejected(Reason.HEADER, "metadata are short strings")
    if metadata["format"] != FORMAT:
        raise Rejected(Reason.HEADER, "another format")
    if metadata["sender"] != sender:
        raise Rejected(Reason.SENDER)
    if metadata["schema"] != schema.fingerprint:
        raise Rejected(Reason.SCHEMA)
    session, round = _count(metadata["session"], 2**63), _count(metadata["round"], 2**53)
    try:
        sent_at = float(metadata["sent_at"])
    except ValueError:
        raise Rejected(Reason.HEADER, "sent_at is no number") from None
    if not math.isfinite(sent_at):
        raise Rejected(Reason.HEADER, "sent_at is not finite")
    return Header(sender, session, round, sent_at, schema.fingerprint)


def _count(text: str, bound: int) -> int:
    """A whole number from 0 up to the bound, in plain digits."""
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) < bound):
        raise Rejected(Reason.HEADER, "a count is no number in its range")
    return int(text)


def _check_entries(entries: dict[str, Any], schema: Schema) -> None:
    """Every tensor must be where the schema has it, with the same shape and type."""
    if entries == schema.entries and list(entries) == list(schema.entries) and not _has_booleans(entries):
        return
    raise Rejected(_difference(entries, schema))


def _has_booleans(entries: dict[str, Any]) -> bool:
    """Whether true or false stands for 1 or 0, which Python takes as equal."""
    return any(isinstance(n, bool) for e in entries.values() for key in ("shape", "data_offsets") for n in e[key])


def _difference(entries: dict[str, Any], schema: Schema) -> Reason:
    """In what entries differ from the schema's."""
    if list(entries) != list(schema.names):
        return Reason.NAMES
    keys = {"dtype": Reason.DTYPE, "shape": Reason.SHAPE, "data_offsets": Reason.OFFSETS}
    for name, expected in schema.entries.items():
        entry = entries[name]
        if not isinstance(entry, dict) or entry.keys() != keys.keys():
            return Reason.HEADER
        for key, reason in keys.items():
            if entry[key] != expected[key]:
                return reason
    return Reason.HEADER


def _numbers(data: memoryview, schema: Schema) -> Float[Tensor, " shared"]:
    """The numbers as this agent's type. All must be finite, also after a conversion to a smaller type."""
    wire = _WIRES[schema.wire]
    bits = torch.from_numpy(np.frombuffer(data, wire.buffer).astype(wire.buffer.newbyteorder("="), copy=True))
    numbers = (bits.view(torch.bfloat16) if wire.dtype == torch.bfloat16 else bits).to(schema.dtype)
    # nan < inf is false, and two numbers tell of all without a vector of truth values.
    smallest, largest = numbers.aminmax() if schema.numbers else (0.0, 0.0)
    if not (-math.inf < smallest and largest < math.inf):
        raise Rejected(Reason.NOT_FINITE)
    return numbers
