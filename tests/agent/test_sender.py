"""What a neighbour is sent: the newest payloads in order, and again until something newer takes their place."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from varangian.agent.sender import Resend, Sender, lockstep_resend

PATIENCE = 120.0
NEVER = 3600.0


class Link:
    """Keeps what is put on it. While it is full, `put` waits."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.free = threading.Event()
        self.free.set()
        self.waits = threading.Event()
        self._changed = threading.Condition()

    def put(self, payload: bytes) -> None:
        self.waits.set()
        assert self.free.wait(PATIENCE)
        with self._changed:
            self.sent.append(payload)
            self._changed.notify_all()

    def until(self, count: int) -> list[bytes]:
        """The first payloads, when so many have been sent."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.sent) >= count, PATIENCE)
            return self.sent[:count]


@contextmanager
def sending(link: Link, resend: Resend) -> Iterator[Sender]:
    sender = Sender("somebody", link.put, resend)
    try:
        yield sender
    finally:
        sender.close()
        link.free.set()
        sender.join()


@pytest.mark.parametrize(("kept", "left"), [(1, [b"3"]), (2, [b"2", b"3"])])
def test_what_waits_for_a_full_link_is_bounded_and_stays_in_order(kept: int, left: list[bytes]) -> None:
    link = Link()
    link.free.clear()
    with sending(link, Resend(kept, first=NEVER)) as sender:
        sender.send(b"0")
        assert link.waits.wait(PATIENCE)
        for payload in (b"1", b"2", b"3"):
            sender.send(payload)
        link.free.set()
        assert link.until(1 + kept) == [b"0", *left]


def test_the_last_payloads_come_again_until_something_newer_takes_their_place() -> None:
    link = Link()
    with sending(link, Resend(2, first=0.01, longest=0.02)) as sender:
        for payload in (b"0", b"1"):
            sender.send(payload)
        found = link.until(8)
        assert found[:2] == [b"0", b"1"] or found[:3] == [b"0", b"0", b"1"], "the first may come again at once"
        assert found[-2:] in ([b"0", b"1"], [b"1", b"0"])
        sender.send(b"2")
        before = len(link.sent)
        assert link.until(before + 8)[-4:] in ([b"1", b"2"] * 2, [b"2", b"1"] * 2)


def test_all_is_sent_again_when_asked() -> None:
    link = Link()
    with sending(link, Resend(2, first=NEVER)) as sender:
        sender.repeat()
        for number, payload in enumerate((b"0", b"1")):
            sender.send(payload)
            link.until(number + 1)
        sender.repeat()
        assert link.until(4) == [b"0", b"1"] * 2


@pytest.mark.parametrize("deadline", [0.0, 0.5, 5.0, 1e9])
def test_in_lockstep_a_live_neighbour_speaks_several_times_before_a_deadline(deadline: float) -> None:
    resend = lockstep_resend(deadline)
    assert resend.payloads == 2
    assert 0 < resend.first <= resend.longest <= max(0.1, deadline / 4)
