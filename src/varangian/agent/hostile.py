"""What a hostile sender may put on the wire in place of a model: to test that nothing that arrives can hurt."""

from __future__ import annotations

import gzip
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from varangian.agent.message import Header, Message, Schema, encode
from varangian.core.errors import unknown


@dataclass(frozen=True)
class Workshop:
    """What a hostile sender has: valid keys, and a valid message to start from."""

    schema: Schema
    seal: Callable[[bytes], bytes]
    header: Header
    first: bytes
    """A valid payload that it has sent before."""

    def message(self, **changes: object) -> Message:
        """A valid message, with some fields of its header changed."""
        return Message(replace(self.header, **changes), torch.zeros(self.schema.numbers, dtype=self.schema.dtype))  # type: ignore[arg-type]

    def payload(self, **changes: object) -> bytes:
        return self.seal(encode(self.message(**changes), self.schema))


def _random_bytes(shop: Workshop) -> Iterator[bytes]:
    yield os.urandom(len(shop.first))
    yield shop.seal(os.urandom(len(shop.first)))


def _truncated(shop: Workshop) -> Iterator[bytes]:
    whole = encode(shop.message(), shop.schema)
    yield shop.payload()[: len(shop.first) // 2]
    yield shop.seal(whole[: len(whole) // 2])
    yield b""


def _oversized(shop: Workshop) -> Iterator[bytes]:
    yield shop.first + bytes(2**24)
    yield shop.seal(encode(shop.message(), shop.schema) + bytes(2**22))


def _wrong_shapes(shop: Workshop) -> Iterator[bytes]:
    other = replace(shop.schema, names=("x",), shapes=((7, 3),))
    vector = torch.zeros(21, dtype=shop.schema.dtype)
    yield shop.seal(encode(Message(shop.header, vector), other))


def _not_finite(shop: Workshop) -> Iterator[bytes]:
    for value in (math.nan, math.inf):
        message = shop.message()
        yield shop.seal(encode(Message(message.header, message.vector + value), shop.schema))


def _zip_bomb(shop: Workshop) -> Iterator[bytes]:
    bomb = gzip.compress(bytes(2**26))
    yield bomb
    yield shop.seal(bomb)


def _replay(shop: Workshop) -> Iterator[bytes]:
    yield shop.first
    yield shop.payload(session=max(0, shop.header.session - 1))


def _future(shop: Workshop) -> Iterator[bytes]:
    yield shop.payload(round=shop.header.round + 10**12)
    yield shop.payload(round=2**62)


def _impostor(shop: Workshop) -> Iterator[bytes]:
    yield shop.payload(sender="somebody-else")


MODES: dict[str, Callable[[Workshop], Iterator[bytes]]] = {
    "random-bytes": _random_bytes,
    "truncated": _truncated,
    "oversized": _oversized,
    "wrong-shapes": _wrong_shapes,
    "not-finite": _not_finite,
    "zip-bomb": _zip_bomb,
    "replay": _replay,
    "future": _future,
    "impostor": _impostor,
}
"""What each mode sends in one round."""
EVERY = ("all", "flood", *MODES)
"""All modes: one of the above, all of them in turn, or a flood of all of them."""


def check_mode(mode: str) -> str:
    """The mode, if there is one of this name."""
    if mode not in EVERY:
        raise unknown("hostile mode", mode, EVERY)
    return mode


def hostile_payloads(mode: str, shop: Workshop) -> list[bytes]:
    """What a hostile sender sends in this round."""
    if mode in MODES:
        return list(MODES[mode](shop))
    every = list(MODES.values())
    chosen = every if mode == "flood" else [every[shop.header.round % len(every)]]
    return [payload for make in chosen for payload in make(shop)]


def flooding_payloads(shop: Workshop) -> list[bytes]:
    """What a flood consists of: small payloads, so that as many as possible fit through the network."""
    return [b"", os.urandom(64), *_wrong_shapes(shop)]
