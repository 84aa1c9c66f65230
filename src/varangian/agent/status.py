"""What an agent says about itself after every round: to its log, to its metrics, and to whoever asks."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from varangian.agent.mailbox import Mailbox, Received


@dataclass(frozen=True)
class Status:
    """An agent after a round. All values are plain, so that the status can be written as JSON."""

    agent: str
    round: int
    """How many rounds are finished."""
    time: float
    """By the agent's wall clock."""
    seconds: float
    """How long the round took, without the pause after it."""
    measured: Mapping[str, float]
    """What is measured in every round, such as the loss."""
    evaluated: Mapping[str, float]
    """What held-out data said last, such as the accuracy …"""
    evaluated_at: int
    """… and after which round."""
    weights: Mapping[str, float] | None
    """The weight of the agent and of every neighbour. None if the rule has no weights."""
    ages: Mapping[str, float]
    """Seconds since the message of each neighbour arrived that was judged in this round."""
    accepted: Mapping[str, int]
    """How many messages of each neighbour were accepted …"""
    bytes: Mapping[str, int]
    """… how many bytes arrived …"""
    rejected: Mapping[str, Mapping[str, int]]
    """… and how many messages were rejected, by reason. Strangers have the empty name."""
    muted: Mapping[str, float]
    """For how many more seconds neighbours are muted."""
    refused: Mapping[str, int]
    """How many connections and messages the network layer refused, by reason."""
    unsaved: int
    """How many times the state could not be saved."""
    memory: int
    """The most bytes of memory that the process has used."""
    cpu: float
    """The seconds of CPU time that the process has used."""


Watcher = Callable[[Status], None]


def peak_memory() -> int:
    """The most bytes of memory that this process has used."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def of_mailbox(mailbox: Mailbox, heard: Mapping[str, Received], neighbours: list[str]) -> dict[str, Any]:
    """The part of a status that the mailbox knows."""
    rejected: dict[str, dict[str, int]] = {}
    for (name, reason), count in mailbox.rejected.items():
        rejected.setdefault(name, {})[reason.value] = count
    now = time.monotonic()
    muted = {name: round(mailbox.muted_until(name) - now, 3) for name in neighbours}
    return {
        "ages": {name: round(one.age, 3) for name, one in heard.items()},
        "accepted": dict(mailbox.accepted),
        "bytes": dict(mailbox.received_bytes),
        "rejected": rejected,
        "muted": {name: seconds for name, seconds in muted.items() if seconds > 0},
    }
