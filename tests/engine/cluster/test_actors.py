"""Waiting for a cluster: one without room is told apart from one whose processes are slow to start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from varangian.core.errors import BadInput
from varangian.engine.cluster import actors
from varangian.engine.cluster.actors import LostShard

ray = pytest.importorskip("ray", reason="needs Ray")
NEED = {"CPU": 1.0}


class Clock:
    """Time that passes only while somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Room:
    """A reservation that the cluster makes after some seconds."""

    def __init__(self, clock: Clock, after: float) -> None:
        self.clock, self.after = clock, after

    def wait(self, seconds: float) -> bool:
        self.clock.now = min(self.clock.now + seconds, max(self.clock.now, self.after))
        return self.clock.now >= self.after


class Slow:
    """Actors whose processes answer after some seconds."""

    def __init__(self, clock: Clock, after: float) -> None:
        self.clock, self.after = clock, after
        self.ready = self

    def remote(self) -> Slow:
        return self

    def answers(self, asked: Sequence[Any], timeout: float | None = None) -> list[Any]:
        assert timeout is not None
        if self.clock.now + timeout < self.after:
            self.clock.now += timeout
            raise ray.exceptions.GetTimeoutError
        self.clock.now = max(self.clock.now, self.after)
        return [None for _ in asked]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(actors, "time", clock)
    return clock


def has(monkeypatch: pytest.MonkeyPatch, total: dict[str, float], free: dict[str, float] | None = None) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: total)
    monkeypatch.setattr(ray, "available_resources", lambda: total if free is None else free)


def test_room_is_waited_for(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, {"CPU": 2.0}, {})
    actors._wait_for_room(Room(clock, after=59), NEED, 2)
    assert clock.now == 59


def test_a_full_cluster_is_said_with_what_is_needed_and_what_is_free(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(monkeypatch, {"CPU": 4.0, "GPU": 1.0}, {"CPU": 0.5})
    said = (
        "^the cluster has had no room for 2 shards for 60 seconds: each needs 1 CPUs and 0.5 GPUs, "
        "and 0.5 of its 4 CPUs and 0 of its 1 GPUs are free$"
    )
    with pytest.raises(BadInput, match=said):
        actors._wait_for_room(Room(clock, after=10_000), {"CPU": 1.0, "GPU": 0.5}, 2)
    assert clock.now == 60


@pytest.mark.parametrize(
    ("left", "noticed"),
    [(1.0, 31), (3.0, 60)],
    ids=["too small for all shards: at once", "still large enough: after the usual patience"],
)
def test_a_cluster_that_has_become_smaller_has_lost_a_shard(
    left: float, noticed: float, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": left if clock.now > 30 else 4.0})
    with pytest.raises(LostShard, match="smaller"):
        actors._wait_for_room(Room(clock, after=10_000), NEED, 2)
    assert clock.now == noticed


def test_processes_that_are_slow_to_start_are_waited_for_with_a_warning(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(clock, after=590)
    has(monkeypatch, {"CPU": 2.0})
    monkeypatch.setattr(actors, "_got", slow.answers)
    with pytest.warns(UserWarning, match="2 shards have their cores, but .* slow to start") as warned:
        actors._wait_for_processes([slow, slow])
    assert clock.now == 590
    assert len(warned) == 1


@pytest.mark.filterwarnings("error")
def test_processes_that_start_within_a_minute_give_no_warning(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(clock, after=59)
    has(monkeypatch, {"CPU": 2.0})
    monkeypatch.setattr(actors, "_got", slow.answers)
    actors._wait_for_processes([slow, slow])


@pytest.mark.filterwarnings("ignore:2 shards have their cores")
def test_processes_that_never_start_are_no_lack_of_room(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(clock, after=10_000)
    has(monkeypatch, {"CPU": 2.0})
    monkeypatch.setattr(actors, "_got", slow.answers)
    said = "^the cluster has room for 2 shards, but their processes have not started within 600 seconds"
    with pytest.raises(BadInput, match=said):
        actors._wait_for_processes([slow, slow])
    assert clock.now == 600


def test_a_machine_that_is_lost_while_processes_start_is_a_lost_shard(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(clock, after=10_000)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 1.0 if clock.now > 20 else 2.0})
    monkeypatch.setattr(actors, "_got", slow.answers)
    with pytest.raises(LostShard, match="smaller"):
        actors._wait_for_processes([slow, slow])
    assert clock.now == 21
