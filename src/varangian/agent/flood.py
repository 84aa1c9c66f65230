"""A flood: a hostile member of a fleet sends as much as it can, over a session of its own.

The usual transport sends the newest messages one by one, so it is too slow for this. Here, messages are made before,
and Zenoh sends many of them at once.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from itertools import cycle
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from varangian.agent.identity import Identity
from varangian.agent.transport import Addresses, key, zenoh_settings

if TYPE_CHECKING:
    import zenoh

RATE = 10_000
"""Messages a second, to all neighbours together."""
BURST = 100
"""Messages between looks at the clock."""
LOOK = 0.05
"""Seconds between looks at whether the neighbours are connected."""
TELL = 5.0
"""Seconds between log lines."""
FLOOD = "flood"
"""The event of a log line that says how many messages were sent, and in how many seconds."""

log = logging.getLogger("varangian.agent")


def start_flood(identity: Identity, fleet: str, addresses: Addresses, stop: Event, payloads: Sequence[bytes]) -> Thread:
    """Send these payloads to all neighbours in turn, again and again, until `stop` is set.

    Args:
        identity: The keys of the sender.
        fleet: The name of the fleet.
        addresses: Where the neighbours are.
        stop: Ends the flood.
        payloads: What to send.
    """
    arguments = (identity, fleet, addresses, stop, tuple(payloads))
    thread = Thread(target=_flood, args=arguments, name="flood", daemon=True)
    thread.start()
    return thread


def _flood(identity: Identity, fleet: str, addresses: Addresses, stop: Event, payloads: tuple[bytes, ...]) -> None:
    import zenoh

    settings = zenoh_settings(identity.now, identity.name, fleet, addresses, max(map(len, payloads)))
    settings["listen"]["endpoints"] = []
    block = zenoh.CongestionControl.BLOCK
    with zenoh.open(zenoh.Config.from_json5(json.dumps(settings))) as session:
        keys = [key(fleet, identity.name, name) for name in addresses.neighbours]
        publishers = [session.declare_publisher(one, congestion_control=block) for one in keys]
        while not all(_has_receiver(one) for one in publishers) and not stop.wait(LOOK):
            pass
        each = cycle([(publisher, zenoh.ZBytes(payload)) for payload in payloads for publisher in publishers])
        began, sent, told = time.monotonic(), 0, 0.0
        while not stop.is_set():
            for _, (publisher, payload) in zip(range(BURST), each, strict=False):
                publisher.put(payload)
            sent += BURST
            seconds = time.monotonic() - began
            if seconds >= told:
                told = seconds + TELL
                log.info("sent %d messages", sent, extra={"event": FLOOD, "sent": sent, "seconds": seconds})
            stop.wait(max(0.0, sent / RATE - seconds))


def _has_receiver(publisher: zenoh.Publisher) -> bool:
    status: Any = publisher.matching_status  # Zenoh's type stubs call it a bool
    return bool(status.matching)
