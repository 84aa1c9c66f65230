"""What has arrived from each neighbour: bounded, thread-safe, and checked when it is collected.

A message is new if its (session, round) is larger than that of the last accepted message of its sender. A session
begins when a sender starts; its number grows with every start. So a restarted agent may go back to the round that it
saved, and a message of an earlier session is a replay. A neighbour's rounds are its own: it may be far ahead or behind.
But they cannot grow faster than `limits.pace` rounds a second by the receiver's clock. No other clock is used.

In lockstep, a message of the round that the agent waits for is also accepted after a later one, once: the first may
have been lost, and come again.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from varangian.agent.counted_log import CountedLog
from varangian.agent.envelope import OVERHEAD
from varangian.agent.message import Message, Reason, Rejected, Schema, decode
from varangian.core.errors import BadInput

log = logging.getLogger(__name__)


class Payload(Protocol):
    """Bytes, or something that has a length and becomes bytes on demand, such as Zenoh's buffers."""

    def __len__(self) -> int: ...

    def __bytes__(self) -> bytes: ...


Unseal = Callable[[str, bytes], bytes | memoryview]
"""From a sender and a payload to the signed body; raises `Rejected`. See `envelope.Verifier`."""

FAULTLESS = frozenset({Reason.REPLAYED, Reason.RATE, Reason.MUTED})
"""Reasons that do not count as faults. Senders repeat their last message, for those who could not hear it at first."""
STRANGER = ""
"""Counts messages of senders that are no neighbours: a stranger must not make the counters grow."""


@dataclass(frozen=True)
class Limits:
    """What a receiver accepts from each neighbour. The schema limits the sizes."""

    rate: float = 1_000.0
    """Messages a second, on average."""
    burst: float = 1_000.0
    """Messages at once."""
    pace: float = 10_000.0
    """Rounds a second that a sender can possibly do. A round beyond that, and `ahead`, is from the future."""
    ahead: int = 100_000
    """Rounds by which a sender may get ahead at once: messages in between may be lost, and the last one be late."""
    silence: float = 60.0
    """Seconds after which the last message of a neighbour no longer counts: the neighbour is absent."""
    patience: int = 5
    """Faults until a neighbour is muted. Every accepted message makes up for one fault."""
    mute: float = 1.0
    """Seconds of the first pause. Every further pause is twice as long."""
    longest_mute: float = 600.0
    """Seconds of the longest pause."""

    def __post_init__(self) -> None:
        for name, least in (("burst", 1), ("patience", 1), ("ahead", 0), ("mute", 0), ("longest_mute", 0)):
            if not least <= getattr(self, name) < math.inf:
                raise BadInput(f"{name} must be a number of at least {least}, but is {getattr(self, name)}")
        for name in ("rate", "pace", "silence"):
            if not getattr(self, name) > 0:
                raise BadInput(f"{name} must be a positive number, but is {getattr(self, name)}")


@dataclass(frozen=True)
class Received:
    """The newest accepted message of a neighbour."""

    message: Message
    age: float
    """Seconds since it arrived, by this agent's monotonic clock."""
    new: bool
    """Whether this call of `collect` is the first to return it."""


@dataclass
class _Accepted:
    arrived: float
    message: Message
    start: bytes
    """The first bytes of its payload. They hold the signature: a payload with the same is a repeat."""
    new: bool = True
    """Whether `collect` has not returned it yet."""


@dataclass
class _Neighbour:
    """What a mailbox knows of one neighbour."""

    allowance: float
    """Messages that it may send now. Grows with time."""
    counted_at: float = 0.0
    heard_at: float = 0.0
    """When the last accepted message arrived, or a repeat, which shows that the neighbour lives."""
    waiting: deque[tuple[float, bytes]] = field(default_factory=lambda: deque(maxlen=2))
    """The last two payloads, unread, with their times of arrival. Two, because in lockstep a neighbour may be one round
    ahead while this agent still waits for others."""
    accepted: tuple[_Accepted, ...] = ()
    """At most two accepted messages, the newest at the end. In lockstep the one of this round is among them."""
    faults: int = 0
    pauses: int = 0
    muted_until: float = 0.0

    def repeats(self, payload: bytes) -> bool:
        """Whether this is an accepted payload once more."""
        return any(payload[:OVERHEAD] == one.start for one in self.accepted)


class Mailbox:
    """The newest messages of every neighbour.

    `offer` is called from the transport's thread and is cheap: it checks length, rate and pauses, and keeps the last
    two payloads of a sender, unread. `collect` is called once per round from the agent's thread. It checks at most two
    payloads per neighbour. So a flood costs no more than its transport, and memory is at most two payloads and two
    models per neighbour.
    """

    def __init__(
        self, neighbours: Collection[str], schema: Schema, unseal: Unseal, limits: Limits | None = None
    ) -> None:
        """An empty mailbox.

        Args:
            neighbours: Whose messages to accept.
            schema: What a message must look like.
            unseal: Opens envelopes: `envelope.Verifier(identity, fleet)`.
            limits: How much, how fast and how long.
        """
        self._limits = limits or Limits()
        self._schema = schema
        self._unseal = unseal
        self._longest = schema.longest + OVERHEAD
        self._of = {name: _Neighbour(self._limits.burst) for name in neighbours}
        self._something = threading.Condition()
        """Its lock guards everything below, and what `_of` holds."""
        self._offered = False
        self._log = CountedLog(log)
        self._rejected: Counter[tuple[str, Reason]] = Counter()
        self._accepted: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def offer(self, sender: str, payload: Payload, now: float) -> None:
        """Keep a payload for the next `collect`, unless it is refused at once. Never raises.

        `now` is `time.monotonic()`.
        """
        size = len(payload)
        with self._something:
            of = self._of.get(sender)
            if of is None:
                self._count(STRANGER, Reason.SENDER, "no neighbour")
                return
            self._bytes[sender] += size
            reason = self._refusal(of, size, now)
            if reason is not None:
                self._reject(sender, reason, now)
                return
            kept = bytes(payload)
            if of.repeats(kept):
                of.heard_at = now
                return
            if any(kept[:OVERHEAD] == before[:OVERHEAD] for _, before in of.waiting):
                return
            of.waiting.append((now, kept))
            self._offered = True
            self._something.notify_all()

    def _refusal(self, of: _Neighbour, size: int, now: float) -> Reason | None:
        if now < of.muted_until:
            return Reason.MUTED
        grown = of.allowance + max(0.0, now - of.counted_at) * self._limits.rate
        of.allowance, of.counted_at = min(self._limits.burst, grown), now
        if of.allowance < 1:
            return Reason.RATE
        of.allowance -= 1
        return Reason.SIZE if size > self._longest else None

    def collect(self, now: float, round: int | None = None) -> dict[str, Received]:
        """The newest accepted message of every neighbour that has not been silent for longer than `limits.silence`.

        With `round` (lockstep), only messages of exactly this round, however old. Messages of later rounds stay for
        later calls. A neighbour whose message of this round is there is not read again until the next round.
        """
        with self._something:
            unheard = {sender: of for sender, of in self._of.items() if not _of_round(of, round)}
            arrived = {sender: list(of.waiting) for sender, of in unheard.items()}
            for of in unheard.values():
                of.waiting.clear()
            self._offered = False
        found: dict[str, Received] = {}
        for sender, payloads in arrived.items():
            # Without lockstep only the newest counts, and the one before it only if the newest is rejected.
            for when, payload in payloads if round is not None else reversed(payloads):
                if self._accept(sender, when, payload, now, round) and round is None:
                    break
        for sender, of in self._of.items():
            fitting = _of_round(of, round) if round is not None else of.accepted
            if fitting and (round is not None or now - of.heard_at <= self._limits.silence):
                newest = fitting[-1]
                found[sender] = Received(newest.message, now - newest.arrived, newest.new)
                newest.new = False
        return found

    def _accept(self, sender: str, arrived: float, payload: bytes, now: float, round: int | None) -> bool:
        """Check a payload, and keep its message. False if it is rejected."""
        of = self._of[sender]
        if of.repeats(payload):  # it was offered while the first of its kind was being checked
            return True
        try:
            message = decode(self._unseal(sender, payload), self._schema, sender)
            self._check_order(of, message, arrived, round)
        except Rejected as rejected:
            with self._something:
                self._reject(sender, rejected.reason, now, str(rejected))
            return False
        new = _Accepted(arrived, message, payload[:OVERHEAD])
        with self._something:
            of.accepted = _newest_two((*of.accepted, new), round)
            self._accepted[sender] += 1
            of.heard_at = max(of.heard_at, arrived)
            of.faults = max(0, of.faults - 1)
        return True

    def _check_order(self, of: _Neighbour, message: Message, arrived: float, round: int | None) -> None:
        """Reject what is not newer than the last accepted message, and what is too new to be true."""
        if not of.accepted:
            return
        last, header = of.accepted[-1], message.header
        before = last.message.header
        awaited = header.round == round and header.session == before.session and not _of_round(of, round)
        if (header.session, header.round) <= (before.session, before.round) and not awaited:
            raise Rejected(Reason.REPLAYED)
        if header.round > before.round + self._limits.ahead + self._limits.pace * max(0.0, arrived - last.arrived):
            raise Rejected(Reason.FUTURE)

    def _count(self, sender: str, reason: Reason, detail: str) -> None:
        self._rejected[sender, reason] += 1
        self._log.add(f"{sender} {reason.value}", f"message of {sender or 'a stranger'} rejected: {detail}")

    def _reject(self, sender: str, reason: Reason, now: float, detail: str = "") -> None:
        """Count, and mute the sender if this is one fault too many. The lock is held."""
        self._count(sender, reason, detail or reason.value)
        if reason in FAULTLESS:
            return
        of = self._of[sender]
        of.faults += 1
        if of.faults >= self._limits.patience:
            pause = min(self._limits.longest_mute, self._limits.mute * 2.0 ** min(of.pauses, 60))
            of.faults, of.pauses, of.muted_until = self._limits.patience - 1, of.pauses + 1, now + pause
            of.waiting.clear()
            log.warning("%s is muted for %g s after repeated faults, the last one: %s", sender, pause, reason.value)

    def newest(self) -> dict[str, int]:
        """For every neighbour that was heard, the round of its newest message.

        Like `collect`, this is for the agent's thread."""
        return {name: of.accepted[-1].message.header.round for name, of in self._of.items() if of.accepted}

    def wait(self, timeout: float) -> bool:
        """Wait until something has been offered since the last `collect`; False after `timeout` seconds."""
        with self._something:
            return self._something.wait_for(lambda: self._offered, timeout)

    @property
    def rejected(self) -> Mapping[tuple[str, Reason], int]:
        """How many messages were not accepted, by neighbour and reason. Strangers have the empty name."""
        with self._something:
            return dict(self._rejected)

    @property
    def accepted(self) -> Mapping[str, int]:
        """How many messages were accepted, by neighbour."""
        with self._something:
            return dict(self._accepted)

    @property
    def received_bytes(self) -> Mapping[str, int]:
        """How many bytes arrived, accepted or not, by neighbour."""
        with self._something:
            return dict(self._bytes)

    def muted_until(self, sender: str) -> float:
        """Until when, on the monotonic clock, everything from this sender is dropped. 0 if it was never muted."""
        with self._something:
            return self._of[sender].muted_until


def _of_round(of: _Neighbour, round: int | None) -> tuple[_Accepted, ...]:
    return tuple(one for one in of.accepted if one.message.header.round == round)


def _newest_two(accepted: Sequence[_Accepted], round: int | None) -> tuple[_Accepted, ...]:
    """The newest message, and before it that of `round` if there is one, else the second newest."""
    *older, newest = sorted(accepted, key=lambda one: (one.message.header.session, one.message.header.round))
    chosen = [one for one in older if one.message.header.round == round] or older
    return (*chosen[-1:], newest)
