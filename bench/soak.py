"""A fleet with random faults for as long as you like: does it go on, and does its memory stay flat?

    python -m bench.soak --minutes 60

Agents are killed, stopped for a while, and flooded by a hostile sender. Every minute it prints the rounds, the most
memory that any agent has used since it started, and what happened. The exit status is 1 if an agent made no progress.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from pathlib import Path

from varangian.agent.fleet import LOOK, Fleet, FleetOptions, Member, launched
from varangian.experiments.config import plan_for

ENDLESS = 10**9
FAULT = 5.0
"""Seconds between two faults, on average."""
STUCK = 300.0
"""Seconds without a round after which an agent has failed."""


def resident(member: Member) -> int:
    """The bytes of memory that a process uses now."""
    pid = member.process.pid if member.process is not None else None
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def round_of(fleet: Fleet, member: Member) -> int:
    return int((fleet.record.latest(member.name) or {"round": 0})["round"])


def fault(fleet: Fleet, lot: random.Random, since: dict[str, int]) -> str:
    """Do something bad to an agent that has gone on since its last fault, and say what.

    Otherwise a slow machine would never get past the start of an agent that is killed again and again.
    """
    agents = [one for one in fleet.members if one.treason is None and round_of(fleet, one) > since.get(one.name, 0)]
    if not agents:
        return "nothing"
    member = lot.choice(agents)
    since[member.name] = round_of(fleet, member)
    process = member.process
    if process is None or process.pid is None or process.exitcode is not None:
        return "nothing"
    member.starts = 1  # this fault must not count towards giving up
    if lot.random() < 0.5:
        os.kill(process.pid, signal.SIGKILL)
        return f"{member.name} killed"
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(lot.uniform(0.5, 3.0))
    os.kill(process.pid, signal.SIGCONT)
    return f"{member.name} stopped for a while"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--agents", type=int, default=6)
    parser.add_argument("--period", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    settings = {"agents": given.agents, "radius": 5.0, "max_degree": given.agents}
    plan = plan_for("target-localization", rules=["loss-based"], byzantine=[1], rounds=ENDLESS, settings=settings)
    options = FleetOptions(pace="free", period=given.period, save_every=1.0, hostile="flood")
    lot, end = random.Random(given.seed), time.monotonic() + 60 * given.minutes
    with launched(plan, options) as fleet:
        agents = [member for member in fleet.members if member.treason is None]
        told, faults, before = time.monotonic(), list[str](), {member.name: 0 for member in agents}
        moved = {member.name: time.monotonic() for member in agents}
        due, since = time.monotonic() + 30.0, dict[str, int]()
        while time.monotonic() < end:
            fleet.look()
            if time.monotonic() >= due:
                faults.append(fault(fleet, lot, since))
                due = time.monotonic() + lot.expovariate(1 / FAULT)
            if time.monotonic() - told >= 60.0:
                rounds = {one.name: round_of(fleet, one) for one in agents}
                memory, done = max(map(resident, agents)) / 2**20, sum(one != "nothing" for one in faults)
                load = os.getloadavg()[0]
                print(f"rounds {sorted(rounds.values())}, {memory:.0f} MiB, {done} faults, load {load:.0f}", flush=True)
                for name, round in rounds.items():
                    if round != before[name]:
                        moved[name] = time.monotonic()
                stuck = [name for name, at in moved.items() if time.monotonic() - at > STUCK]
                if stuck:
                    print(f"no progress: {', '.join(stuck)}; last faults: {faults[-9:]}")
                    for member in agents:
                        if member.name in stuck:
                            print(
                                member.name, member.process, *member.tail.path.read_text().splitlines()[-5:], sep="\n"
                            )
                    sys.exit(1)
                told, before = time.monotonic(), rounds
                for of in fleet.record.of.values():  # a soak needs the last status only
                    for round in sorted(of)[:-1]:
                        del of[round]
            time.sleep(LOOK)


if __name__ == "__main__":
    main()
