"""What has arrived from each neighbour: bounded, thread-safe, and checked when it is collected."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from varangian.agent.message import Limits, Message, Reason, Schema


class Payload(Protocol):
    """Bytes, or something that has a length and becomes bytes on demand (Zenoh's buffers)."""

    def __len__(self) -> int: ...

    def __bytes__(self) -> bytes: ...


Unseal = Callable[[str, bytes], bytes]
"""From a sender and a payload to the signed body; raises `Rejected`. See `envelope.Verifier`."""


@dataclass(frozen=True)
class Received:
    """The newest accepted message of a neighbour."""

    message: Message
    age: float
    """Seconds since it arrived, by this agent's monotonic clock."""
    new: bool
    """Whether it was collected now for the first time."""


class Mailbox:
    """The newest messages of every neighbour.

    `offer` is called from the transport's thread and is cheap: it checks length, rate and pauses, and keeps the last
    two payloads of a sender, unread. `collect` is called once per round from the agent's thread. It reads at most two
    payloads per neighbour.
    """

    def __init__(self, neighbours: Collection[str], schema: Schema, unseal: Unseal, limits: Limits = Limits()) -> None:
        raise NotImplementedError

    def offer(self, sender: str, payload: Payload, now: float) -> None:
        """Keep a payload for the next `collect`, if it is not refused at once. Never raises, never blocks for long.

        `now` is `time.monotonic()`.
        """
        raise NotImplementedError

    def collect(self, now: float, round: int | None = None) -> dict[str, Received]:
        """The newest accepted message of every neighbour that is not silent for longer than `limits.silence`.

        With `round` (lockstep), only messages of exactly this round; one of the next round is kept for the next call.
        """
        raise NotImplementedError

    def wait(self, timeout: float) -> bool:
        """Wait until something has been offered since the last `collect`; False after `timeout` seconds."""
        raise NotImplementedError

    @property
    def rejected(self) -> Mapping[tuple[str, Reason], int]:
        """How many messages were not accepted, by neighbour and reason. Non-neighbours count as sender ''."""
        raise NotImplementedError

    @property
    def accepted(self) -> Mapping[str, int]:
        """How many messages were accepted, by neighbour."""
        raise NotImplementedError

    @property
    def received_bytes(self) -> Mapping[str, int]:
        """How many bytes arrived, accepted or not, by neighbour."""
        raise NotImplementedError

    def muted_until(self, sender: str) -> float:
        """Until when, on the monotonic clock, everything from this sender is dropped; 0 if it is not muted."""
        raise NotImplementedError
