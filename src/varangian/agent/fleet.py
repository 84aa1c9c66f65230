"""A fleet of real processes on this machine: fresh keys, one process per agent, real sockets on loopback.

Processes are forked from a server that has already imported everything, so that ten of them start in a few seconds.
One that dies is started again and goes on from its last state.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Literal

import torch
import xarray as xr
from jaxtyping import Int
from torch import Tensor

from varangian.agent import keys
from varangian.agent.byzantine import check_attack
from varangian.agent.config import AgentConfig, Neighbour, TaskConfig, as_toml
from varangian.agent.hostile import check_mode
from varangian.agent.mailbox import Limits
from varangian.agent.member import FOLDER, Treason, run_member
from varangian.agent.message import WireDtype
from varangian.agent.record import FleetRecord, Tail
from varangian.core.draws import Draws
from varangian.core.errors import BadInput
from varangian.core.graph import Graph
from varangian.core.scene import Scene, choose_byzantine
from varangian.experiments.cells import Cell
from varangian.experiments.config import Plan
from varangian.experiments.spec import settings_of
from varangian.experiments.sweep import joined

LONGEST = 70
"""The longest name of a temporary folder. A socket in it may have about a hundred letters in all."""
PORTS = range(20_000, 32_768)
"""Where ports of a fleet are looked for."""
LOOK = 0.2
"""Seconds between looks at the processes and their logs."""
STARTS = 5
"""How often a process that was killed is started before the fleet gives up."""
PATIENCE = 10.0
"""Seconds that a process has to end by itself."""

Watch = Callable[[FleetRecord], None]
Life = Callable[[Path, Path, Treason | None], None]


@dataclass(frozen=True)
class FleetOptions:
    """How a fleet runs."""

    seed: int = 0
    pace: Literal["free", "lockstep"] = "lockstep"
    period: float = 1.0
    """Seconds between rounds at a free pace."""
    deadline: float = 10.0
    """Seconds to wait for neighbours in lockstep."""
    hostile: str | None = None
    """A hostile mode: Byzantine processes send this in place of the attack."""
    wire_dtype: WireDtype = "float32"
    save_every: float = 10.0
    limits: Limits = field(default_factory=Limits)


@dataclass
class Member:
    """One process of a fleet."""

    name: str
    config: Path
    treason: Treason | None
    tail: Tail
    process: ForkServerProcess | None = None
    starts: int = 0


@dataclass
class Fleet:
    """All processes of a fleet, and what they have said so far."""

    members: Sequence[Member]
    record: FleetRecord
    life: Life
    """What each process does."""
    _context: ForkServerContext

    def start(self, member: Member) -> None:
        """Start the process of a member, or start it again."""
        path = member.tail.path
        process = self._context.Process(
            target=self.life, args=(member.config, path, member.treason), name=member.name, daemon=True
        )
        process.start()  # interrupted in here, a process that is not known yet ends with this one
        member.process = process
        member.starts += 1

    def look(self) -> bool:
        """Read the logs, and start processes again that have died. False when all agents have finished."""
        for member in self.members:
            for line in member.tail.lines():
                self.record.add(line)
        agents = [member for member in self.members if member.treason is None]
        if all((self.record.latest(one.name) or {}).get("round") == self.record.rounds for one in agents):
            return False
        for member in self.members:
            process = member.process
            if process is not None and process.exitcode not in (None, 0):
                if process.exitcode > 0 or member.starts >= STARTS:
                    raise BadInput(f"{member.name} has stopped with status {process.exitcode}: {_last_words(member)}")
                self.start(member)
        return True

    def end(self) -> None:
        """Tell all processes to stop, and wait until they have gone."""
        processes = [member.process for member in self.members if member.process is not None]
        for process in processes:
            process.terminate()
        last = time.monotonic() + PATIENCE
        for process in processes:
            process.join(max(0.0, last - time.monotonic()))
            if process.exitcode is None:
                process.kill()
                process.join()


def fly(plan: Plan, options: FleetOptions, watch: Watch = lambda record: None) -> xr.Dataset:
    """Run a fleet until all its agents have finished all rounds. Returns the result of the run.

    Args:
        plan: The study with its number of rounds, one rule, one attack, and one number of Byzantine agents.
        options: How the fleet runs.
        watch: Called now and then with what the agents have said so far.
    """
    began = time.monotonic()
    with launched(plan, options) as fleet:
        while fleet.look():
            watch(fleet.record)
            time.sleep(LOOK)
        watch(fleet.record)
        result = fleet.record.dataset(time.monotonic() - began)
    attack = plan.attacks[0] if options.hostile is None else f"hostile-{options.hostile}"
    return joined(plan, [(Cell(plan.rules[0], attack, plan.byzantine[0]), result)])


@contextmanager
def launched(
    plan: Plan,
    options: FleetOptions,
    change: Callable[[AgentConfig], AgentConfig] = lambda config: config,
    life: Life = run_member,
) -> Iterator[Fleet]:
    """Start all processes of a fleet, and end them at the end of the block, whatever happens in it.

    Args:
        plan: The study, one rule, one attack, and one number of Byzantine agents.
        options: How the fleet runs.
        change: Changes the configuration of an agent before it is written.
        life: What each process does. It must be importable.
    """
    check_fleet(plan, options)
    scene = plan.study.scene(options.seed)
    byzantine, names = _byzantine(plan, options, scene), _names(scene.task.agents)
    is_byzantine = torch.zeros(len(names), dtype=torch.bool).index_fill(0, byzantine, True)
    record = FleetRecord(names, scene, is_byzantine, options.seed, plan.study.rounds)
    treason = Treason(plan.attacks[0], tuple(byzantine.tolist()), options.hostile)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["varangian.agent.member"])
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=FOLDER)))
        assert isinstance(scene.graph, Graph)
        configs = configurations(plan, options, scene.graph, folder, change)
        members = [
            Member(name, path, treason if bad else None, Tail(path.with_suffix(".log")))
            for name, path, bad in zip(names, configs, is_byzantine.tolist(), strict=True)
        ]
        fleet = Fleet(members, record, life, context)
        stack.callback(fleet.end)
        for member in members:
            fleet.start(member)
        yield fleet


def names_of(plan: Plan, options: FleetOptions) -> tuple[list[str], frozenset[str]]:
    """The names of all agents, and of those that are Byzantine."""
    scene = plan.study.scene(options.seed)
    names = _names(scene.task.agents)
    return names, frozenset(names[number] for number in _byzantine(plan, options, scene).tolist())


def _names(agents: int) -> list[str]:
    return [f"agent-{number}" for number in range(agents)]


def _byzantine(plan: Plan, options: FleetOptions, scene: Scene) -> Int[Tensor, " byzantine"]:
    return choose_byzantine(plan.byzantine[0], scene, Draws.of(options.seed, scene.task.agents))


def check_fleet(plan: Plan, options: FleetOptions) -> None:
    """Refuse what a fleet cannot do, before anything is written or started."""
    for kind, values in (
        ("rule", plan.rules),
        ("attack", plan.attacks),
        ("number of Byzantine agents", plan.byzantine),
    ):
        if len(values) != 1:
            raise BadInput(f"a fleet runs with one {kind}, but got {len(values)}")
    temporary = tempfile.gettempdir()
    if len(os.fsencode(temporary)) > LONGEST:
        raise BadInput(f"sockets in the temporary folder {temporary} get too long a name; set TMPDIR to a shorter one")
    if options.hostile is not None:
        check_mode(options.hostile)
    else:
        check_attack(plan.attack(plan.attacks[0]))
    if not isinstance(plan.study.scene(options.seed).graph, Graph):
        raise BadInput(f"the graph of {plan.study.name} changes from round to round, but agents have fixed neighbours")


def configurations(
    plan: Plan,
    options: FleetOptions,
    graph: Graph,
    folder: Path,
    change: Callable[[AgentConfig], AgentConfig] = lambda config: config,
) -> list[Path]:
    """Fresh keys and an `agent.toml` for every agent, in a folder.

    Args:
        plan: The study and the rule.
        options: How the fleet runs.
        graph: Who hears whom.
        folder: Where to write.
        change: Changes the configuration of an agent before it is written.
    """
    authority = folder / "authority"
    keys.create_authority(authority)
    names = _names(graph.agents)
    ports = free_ports(graph.agents)
    heard = [set(graph.neighbours(number)) for number in range(graph.agents)]
    settings = {name: value for name, value in settings_of(plan.study).items() if value is not None}
    paths: list[Path] = []
    for number, name in enumerate(names):
        own_keys = keys.issue(authority, name, hosts=("localhost", "127.0.0.1"))
        task = TaskConfig(study=plan.named or plan.study.name, agent=number, settings=settings, seed=options.seed)
        config = AgentConfig(
            name=name,
            listen=f"127.0.0.1:{ports[number]}",
            keys=str(own_keys),
            state=str(folder / f"state-{number}"),
            task=task,
            neighbours=tuple(
                Neighbour(names[other], f"127.0.0.1:{ports[other]}", other) for other in sorted(heard[number])
            ),
            fleet="fleet",
            rule=plan.rules[0],
            wire_dtype=options.wire_dtype,
            pace=options.pace,
            period=options.period,
            deadline=options.deadline,
            start_deadline=max(120.0, options.deadline),
            rounds=plan.study.rounds,
            save_every=options.save_every,
            metrics="none",
            log="json",
            log_rounds=True,
            limits=options.limits,
            folder=str(Path.cwd()),  # where files of one's own are
        )
        paths.append(folder / f"{name}.toml")
        paths[-1].write_text(as_toml(change(config)), encoding="utf-8")
    return paths


def free_ports(count: int) -> list[int]:
    """Ports on loopback that nobody uses now.

    They lie below those that systems give to outgoing connections, so that no connection takes one before its agent
    listens.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise BadInput(f"a fleet needs {count} free ports on loopback, but only {len(found)} are free")


def with_agents(plan: Plan, agents: int) -> Plan:
    """The plan with this number of agents."""
    settings = settings_of(plan.study)
    if "agents" in settings:
        return replace(plan, study=replace(plan.study, agents=agents))  # type: ignore[type-var]
    if "agents_per_group" in settings and agents % 2 == 0:
        return replace(plan, study=replace(plan.study, agents_per_group=agents // 2))  # type: ignore[type-var]
    raise BadInput(f"{plan.study.name} cannot have {agents} agents; leave --agents out, or use an even number")


def _last_words(member: Member) -> str:
    text = member.tail.path.read_text(encoding="utf-8", errors="replace").strip()
    return text.splitlines()[-1] if text else "it said nothing"
