"""A fleet of real processes against the simulation: accuracy, models, memory, and rounds a second.

    python -m bench.fleet --rounds 440

Ten agents of human activity: without an attack, with two Byzantine processes that send the paper's attack, and with two
that send garbage of all kinds. Prints one line per fleet. `--models` compares models after 50 rounds in place of that.
"""

from __future__ import annotations

import argparse
import time

import torch
import xarray as xr

from varangian.agent.config import learns, read_config
from varangian.agent.fleet import LOOK, FleetOptions, Member, launched
from varangian.agent.flood import FLOOD
from varangian.agent.peer_round import Peer
from varangian.agent.record import Tail
from varangian.agent.state import fingerprint, load
from varangian.attacks.simple import silent
from varangian.engine.results import final
from varangian.engine.round import play_round
from varangian.engine.run import suited
from varangian.engine.state import begin
from varangian.engine.world import prepare
from varangian.experiments.cells import Cell
from varangian.experiments.config import Plan, plan_for
from varangian.experiments.sweep import joined, sweep

AGENTS = {"agents": 10}


def plan(rounds: int, byzantine: int, rule: str = "loss-based") -> Plan:
    return plan_for("human-activity", rules=[rule], byzantine=[byzantine], rounds=rounds, settings=AGENTS)


def accuracy(result: xr.Dataset) -> float:
    return float(final(result.isel(cell=0), "accuracy").mean())


def compare_accuracy(rounds: int, deadline: float, only: str | None) -> None:
    """Accuracy at the end, fleet against simulation, and the most memory that an agent used."""
    for name, byzantine, hostile in (
        ("no attack", 0, None),
        ("uniform", 2, None),
        ("hostile", 2, "all"),
        ("flood", 2, "flood"),
    ):
        if only not in (None, name):
            continue
        began, chosen = time.monotonic(), plan(rounds, byzantine)
        with launched(chosen, FleetOptions(deadline=deadline, hostile=hostile)) as fleet:
            while fleet.look():
                time.sleep(LOOK)
            seconds, record = time.monotonic() - began, fleet.record
            flooded = [flood_of(member) for member in fleet.members if member.treason]
        found = joined(chosen, [(Cell(chosen.rules[0], chosen.attacks[0], byzantine), record.dataset(seconds))])
        simulated = sweep(chosen, None)
        statuses = [status for agent in record.names if (status := record.latest(agent))]
        rejected: dict[str, int] = {}
        for status in statuses:
            for reasons in status["rejected"].values():
                for reason, count in reasons.items():
                    rejected[reason] = rejected.get(reason, 0) + count
        first = [record.of[status["agent"]][1]["memory"] for status in statuses]
        print(
            f"{name}: fleet {accuracy(found):.4f}, simulation {accuracy(simulated):.4f}, {seconds:.0f} s, "
            f"memory {max(first) / 2**20:.0f} MiB after one round, "
            f"{max(status['memory'] for status in statuses) / 2**20:.0f} MiB at the end, rejected {rejected}",
            flush=True,
        )
        if hostile == "flood":
            for sent, lasted in flooded:
                print(
                    f"a flood of {sent} messages in {lasted:.0f} s: {sent / max(lasted, 1e-9):.0f} a second", flush=True
                )


def flood_of(member: Member) -> tuple[int, float]:
    """How many messages a process has flooded its neighbours with, and in how many seconds."""
    told = [(0, 0.0)]
    told += [(line["sent"], line["seconds"]) for line in Tail(member.tail.path).lines() if line.get("event") == FLOOD]
    return told[-1]


def compare_models(rounds: int, deadline: float) -> None:
    """The largest difference between a model of the fleet and of the simulation."""
    for name in ("loss-based", "trimmed-mean", "anchored"):
        chosen = plan(rounds, 0, name)
        scene = chosen.study.scene(0)
        rule = suited(chosen.rule(name), scene.task, rounds)
        world = prepare([scene], [0], 0)
        state = begin(world, rule, silent())
        with torch.no_grad():
            for _ in range(rounds):
                state, _ = play_round(world, rule, silent(), state)
        rows = []
        with launched(chosen, FleetOptions(deadline=deadline)) as fleet:
            while fleet.look():
                time.sleep(LOOK)
            fleet.end()
            for member in fleet.members:
                config = read_config(member.config)
                peer = Peer(*learns(config))
                found = load(config.path(config.state), peer, fingerprint(peer, config.name))
                assert found is not None and found.state.round == rounds
                rows.append(found.state.models)
        largest = float((torch.cat(rows) - state.models).abs().max())
        print(f"{name}: largest difference after {rounds} rounds {largest:.2e}", flush=True)


def sustained(agents: int, rounds: int) -> None:
    """How much CPU time agents need for one round a second."""
    chosen = plan_for("human-activity", rules=["loss-based"], byzantine=[0], rounds=rounds, settings={"agents": agents})
    with launched(chosen, FleetOptions(pace="free", period=1.0)) as fleet:
        while fleet.look():
            time.sleep(LOOK)
        late = [fleet.record.of[name][rounds]["time"] - fleet.record.of[name][1]["time"] for name in fleet.record.names]
        cpu = [(s := fleet.record.of[name])[rounds]["cpu"] - s[1]["cpu"] for name in fleet.record.names]
    each = sum(cpu) / agents / (rounds - 1)
    print(
        f"{agents} agents, one round a second: {each * 1000:.1f} ms of CPU time per agent and round, so {1 / each:.0f} "
        f"agents per core; {rounds - 1} rounds took {max(late):.1f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=440)
    parser.add_argument("--deadline", type=float, default=30.0)
    parser.add_argument("--models", action="store_true")
    parser.add_argument("--sustained", type=int)
    parser.add_argument("--only")
    given = parser.parse_args()
    if given.models:
        compare_models(given.rounds, given.deadline)
    elif given.sustained:
        sustained(given.sustained, given.rounds)
    else:
        compare_accuracy(given.rounds, given.deadline, given.only)


if __name__ == "__main__":
    main()
