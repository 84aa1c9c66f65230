"""What heeds a sign is interrupted when it goes up, and nothing is interrupted after its end."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

import pytest

from varangian.engine.cluster import stop_sign
from varangian.engine.cluster.stop_sign import StopSign, until


@dataclass(frozen=True)
class Painted(StopSign):
    """A sign without a cluster that goes up at a given time."""

    at: float

    def is_up(self) -> bool:
        return time.monotonic() >= self.at


def test_work_hears_of_the_sign_and_can_write_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_sign, "LOOK", 0.001)
    heard = []

    def work() -> int:
        try:
            for _ in itertools.count():
                time.sleep(0.001)
        except KeyboardInterrupt:
            heard.append("the sign")
            raise
        return 1

    assert until(Painted("", time.monotonic() + 0.01), work) is None
    assert heard == ["the sign"]


def test_no_interrupt_escapes_from_work_that_ends_while_the_sign_goes_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_sign, "LOOK", 1e-4)

    def work() -> str:
        while time.monotonic() < at + 1e-4:
            pass
        return "done"

    for trial in range(1000):
        at = time.monotonic() + 5e-4 + 1e-5 * (trial % 30)
        assert until(Painted("", at), work) in ("done", None)
        sum(range(1000))  # an interrupt that came too late would be raised here


def test_a_users_own_interrupt_is_passed_on() -> None:
    def work() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        until(Painted("", float("inf")), work)


def test_an_interrupt_that_a_destructor_drops_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_sign, "LOOK", 0.01)

    class Slow:
        def __del__(self) -> None:
            time.sleep(0.2)

    def work() -> None:
        slow = Slow()
        del slow  # the sign goes up now
        for _ in itertools.count():
            time.sleep(0.001)

    assert until(Painted("", time.monotonic() + 0.05), work) is None
