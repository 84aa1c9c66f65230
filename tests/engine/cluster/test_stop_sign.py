"""What heeds a sign is interrupted when it goes up, and nothing is interrupted after its end."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

import pytest

from varangian.engine.cluster import stop_sign
from varangian.engine.cluster.stop_sign import StopSign, heeding


@dataclass(frozen=True)
class Painted(StopSign):
    """A sign without a cluster that goes up at a given time."""

    at: float

    def is_up(self) -> bool:
        return time.monotonic() >= self.at


def test_a_sign_interrupts_and_the_block_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_sign, "LOOK", 0.001)
    steps = []
    with heeding(Painted("", time.monotonic() + 0.01)):
        try:
            for step in itertools.count():
                steps.append(step)
                time.sleep(0.001)
        except KeyboardInterrupt:
            steps.append(-1)
            raise
    assert steps[-1] == -1, "what runs hears of it, and can write a checkpoint"


def test_no_interrupt_escapes_from_work_that_ends_while_the_sign_goes_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_sign, "LOOK", 1e-4)
    for trial in range(300):
        until = time.monotonic() + 0.001 + 1e-5 * (trial % 30)
        with heeding(Painted("", until)):
            while time.monotonic() < until + 1e-4:
                pass
        sum(range(1000))  # an interrupt that came too late would be raised here


def test_a_users_own_interrupt_is_passed_on() -> None:
    with pytest.raises(KeyboardInterrupt), heeding(Painted("", float("inf"))):
        raise KeyboardInterrupt
