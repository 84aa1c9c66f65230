"""What happens to real fleets: killed processes, cut links, wrong clocks, slow and hostile neighbours."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from bad_hearing import run_with_bad_hearing
from cut_links import Links

pytest.importorskip("zenoh", reason="needs eclipse-zenoh")
from skewed_clock import run_an_hour_late

from varangian.agent.fleet import Fleet, FleetOptions, Member, launched
from varangian.agent.hostile import MODES
from varangian.agent.mailbox import Limits
from varangian.agent.record import Tail
from varangian.experiments.config import Plan, plan_for

LONG = 1200.0
ENDLESS = 1_000_000


def plan(agents: int, byzantine: Any = 0, rounds: int = ENDLESS) -> Plan:
    settings = {"agents": agents, "radius": 5.0, "max_degree": agents}
    return plan_for(
        "target-localization", rules=["loss-based"], byzantine=[byzantine], rounds=rounds, settings=settings
    )


FREE = FleetOptions(pace="free", period=0.05, save_every=0.1)


def until(fleet: Fleet, wanted: Callable[[], bool]) -> None:
    last = time.monotonic() + LONG
    while not wanted():
        assert fleet.look()
        assert time.monotonic() < last
        time.sleep(0.05)


def round_of(fleet: Fleet, name: str) -> int:
    status = fleet.record.latest(name)
    return 0 if status is None else int(status["round"])


def heard_by(fleet: Fleet, name: str) -> set[str]:
    status = fleet.record.latest(name)
    return set() if status is None else set(status["ages"])


def starts_of(member: Member) -> list[int]:
    """The rounds at which the process of a member has started."""
    return [line["round"] for line in Tail(member.tail.path).lines() if line.get("event") == "start"]


def everybody_goes_on(fleet: Fleet, members: list[Member] | None = None) -> None:
    chosen = fleet.members if members is None else members
    fleet.look()  # what they have written so far does not count
    now = {member.name: round_of(fleet, member.name) for member in chosen}
    until(fleet, lambda: all(round_of(fleet, name) > round + 2 for name, round in now.items()))


def test_three_of_ten_are_killed_and_come_back_where_they_were() -> None:
    with launched(plan(10), FREE) as fleet:
        until(fleet, lambda: all(round_of(fleet, member.name) > 10 for member in fleet.members))
        killed = [fleet.members[number] for number in (2, 5, 7)]
        for member in killed:
            assert member.process is not None and member.process.pid is not None
            os.kill(member.process.pid, signal.SIGKILL)
            member.process.join()
        until(fleet, lambda: all(len(starts_of(member)) == 2 for member in killed))
        assert all(starts_of(member)[0] == 0 and starts_of(member)[1] > 0 for member in killed)
        everybody_goes_on(fleet)
        others = {member.name for member in fleet.members}
        until(fleet, lambda: all(heard_by(fleet, one) == others - {one} for one in others))


def test_in_lockstep_one_that_was_killed_is_soon_in_step_again() -> None:
    with launched(plan(4), FleetOptions(deadline=5.0, save_every=0.1)) as fleet:
        names = {member.name for member in fleet.members}
        until(fleet, lambda: all(round_of(fleet, name) > 20 for name in names))
        killed = fleet.members[2]
        assert killed.process is not None and killed.process.pid is not None
        os.kill(killed.process.pid, signal.SIGKILL)
        until(fleet, lambda: len(starts_of(killed)) == 2)
        until(fleet, lambda: all(heard_by(fleet, name) == names - {name} for name in names))
        everybody_goes_on(fleet)
        assert starts_of(killed)[1] > 0


def test_in_lockstep_nobody_goes_on_without_a_message_that_was_lost() -> None:
    rounds = 4
    with launched(plan(4, rounds=rounds), FleetOptions(deadline=LONG), life=run_with_bad_hearing) as fleet:
        names = {member.name for member in fleet.members}
        last = time.monotonic() + LONG
        while fleet.look():
            assert time.monotonic() < last
            time.sleep(0.05)
        for name in names:
            statuses = fleet.record.of[name]
            assert list(statuses) == list(range(1, rounds + 1))
            assert all(set(status["ages"]) == names - {name} for status in statuses.values())
            assert not statuses[rounds]["rejected"], "a repeat is no fault"


def test_two_halves_go_on_without_each_other_and_meet_again() -> None:
    options = replace(FREE, limits=Limits(silence=2.0))
    with Links() as links, launched(plan(4), options, links.between({0, 1}, {2, 3})) as fleet:
        names = [member.name for member in fleet.members]
        until(fleet, lambda: all(len(heard_by(fleet, name)) == 3 for name in names))
        links.cut()
        until(fleet, lambda: all(len(heard_by(fleet, name)) == 1 for name in names))
        everybody_goes_on(fleet)
        links.heal()
        until(fleet, lambda: all(len(heard_by(fleet, name)) == 3 for name in names))


def test_a_clock_that_is_an_hour_late_changes_nothing() -> None:
    with launched(plan(3), FREE, life=run_an_hour_late) as fleet:
        names = {member.name for member in fleet.members}
        until(fleet, lambda: all(heard_by(fleet, name) == names - {name} for name in names))
        everybody_goes_on(fleet)
        late, right = (fleet.record.latest(f"agent-{number}") for number in (0, 1))
        assert late is not None and right is not None
        assert 3000 < right["time"] - late["time"] < 4200
        assert not any(status["rejected"] for status in (late, right))


def test_nobody_waits_for_a_slow_neighbour() -> None:
    with launched(plan(3), FREE) as fleet:
        until(fleet, lambda: all(round_of(fleet, member.name) > 3 for member in fleet.members))
        slow = fleet.members[1]
        assert slow.process is not None and slow.process.pid is not None
        os.kill(slow.process.pid, signal.SIGSTOP)
        try:
            fleet.look()
            before = round_of(fleet, slow.name)
            everybody_goes_on(fleet, [fleet.members[0], fleet.members[2]])
            assert round_of(fleet, slow.name) <= before + 1
        finally:
            os.kill(slow.process.pid, signal.SIGCONT)
        everybody_goes_on(fleet)


@pytest.mark.parametrize("pace", ["free", "lockstep"])
def test_nothing_that_a_hostile_sender_sends_is_used(pace: Any) -> None:
    options = replace(FREE, pace=pace, deadline=5.0, hostile="all")
    rounds = 3 * len(MODES)
    with launched(plan(4, byzantine=(3,), rounds=rounds), options) as fleet:
        while fleet.look():
            time.sleep(0.05)
        for name in ("agent-0", "agent-1", "agent-2"):
            status = fleet.record.latest(name)
            assert status is not None and status["round"] == rounds
            # A replay begins with one valid message, and comes three times. Most of them are muted by then.
            assert status["accepted"].get("agent-3", 0) <= 3
            assert sum(status["rejected"]["agent-3"].values()) > 0
            assert not set(status["rejected"]) - {"agent-3"}
            late = [of["weights"] for round, of in fleet.record.of[name].items() if round > 2 * len(MODES)]
            assert late and all(weights["agent-3"] == 0 for weights in late)
