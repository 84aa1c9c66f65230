"""A flood from one neighbour: it arrives, it is limited, and the others are heard."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from small_fleets import FLEET, SCHEMA, fleet, free_port, sealed

from varangian.agent.envelope import OVERHEAD, Verifier
from varangian.agent.flood import start_flood
from varangian.agent.mailbox import Limits, Mailbox
from varangian.agent.message import Reason
from varangian.agent.transport import Addresses, ZenohTransport

PATIENCE = 120.0
LONGEST = SCHEMA.longest + OVERHEAD


@pytest.mark.parametrize("kind", ["garbage", "replays"])
def test_a_flood_arrives_and_another_neighbour_is_heard(kind: str, tmp_path: Path) -> None:
    of, port, stop = fleet(tmp_path, ["me", "a", "b"]), free_port(), threading.Event()
    box = Mailbox(["a", "b"], SCHEMA, Verifier(of["me"], FLEET), Limits(rate=50.0, burst=50.0))
    mine = Addresses(f"127.0.0.1:{port}", {"a": None, "b": None})
    theirs = Addresses(None, {"me": f"localhost:{port}"})
    me = ZenohTransport(of["me"], FLEET, mine, lambda who, sent: box.offer(who, sent, time.monotonic()), LONGEST)
    b = ZenohTransport(of["b"], FLEET, theirs, lambda *_: None, LONGEST)
    replays = [sealed(of["a"], "a", 1), sealed(of["a"], "a", 2)]
    flood = start_flood(of["a"], FLEET, theirs, stop, [b"", b"garbage"] if kind == "garbage" else replays)
    limited = Reason.MUTED if kind == "garbage" else Reason.RATE
    end, round = time.monotonic() + PATIENCE, 0
    try:
        while round < 3 or box.rejected.get(("a", limited), 0) < 500:
            assert time.monotonic() < end, box.rejected
            b.publish(sealed(of["b"], "b", round))
            while "b" not in box.collect(time.monotonic(), round):
                assert time.monotonic() < end
                box.wait(0.05)
            round += 1
            stop.wait(0.05)  # b keeps to its rate
    finally:
        stop.set()
        flood.join()
        b.close()
        me.close()
    assert box.accepted["b"] == round
    assert box.accepted.get("a", 0) <= 2
    assert not any(who == "b" for who, _ in box.rejected)
