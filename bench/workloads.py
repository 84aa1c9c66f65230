"""The networks to measure, each with the least arithmetic and memory traffic that a round needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from varangian import attacks, rules, studies
from varangian.core.execution import Execution
from varangian.core.graph import Graph
from varangian.core.scene import Scene
from varangian.core.task import Task
from varangian.engine.round import play_round
from varangian.engine.state import begin
from varangian.engine.world import World, prepare
from varangian.studies.digits import cnn

FLOAT = 4
"""The bytes of a number."""


@dataclass(frozen=True)
class Workload:
    """A network, and the least operations and bytes that one round needs."""

    name: str
    make: Callable[[Execution], World]
    attack: Any
    flops: float
    bytes: float
    convolves: bool = False
    device: str = "cpu"

    @cached_property
    def world(self) -> World:
        return self.make(Execution(torch.device(self.device)))

    @property
    def edges(self) -> int:
        return len(self.world.wiring(0).graph.senders)

    @contextmanager
    def rounds(
        self, rule: Any = None, compile: bool = False, threads: int | None = None
    ) -> Iterator[Callable[[], None]]:
        """A function that runs the next round. With `compile`, the first round compiles."""
        rule, world = rule or rules.loss_based(), self.world
        if compile or threads is not None:
            world = self.make(Execution(torch.device(self.device), threads, compile=compile))
        with torch.no_grad(), world.execution.applied():
            state = begin(world, rule, self.attack)

            def play() -> None:
                nonlocal state
                state, _ = play_round(world, rule, self.attack, state)

            yield play


def localization(agents: int, device: str = "cpu", seeds: int = 1) -> Workload:
    """Target localization with at most ten neighbours per agent; a fifth of the agents are Byzantine.

    For every edge, a message of two numbers is read, and φ is read and written. Judging, weighing and mixing take
    4 · 2 + 10 operations. The agents' own work is small compared with this.
    """
    study = studies.target_localization(agents=agents)
    if find_spec("scipy") is None:  # without scipy there are no geometric graphs
        scenes = [Scene(study.task(seed), Graph.ring(agents, 5)) for seed in range(seeds)]
    else:
        scenes = [study.scene(seed) for seed in range(seeds)]
    edges = sum(len(scene.graph.senders) for scene in scenes if isinstance(scene.graph, Graph))
    return Workload(
        f"localization, {agents:,} agents" + (f", {seeds} seeds" if seeds > 1 else ""),
        lambda execution: prepare(scenes, range(seeds), 0.2, execution),
        attacks.uniform(15, 16),
        flops=edges * (4 * 2 + 10),
        bytes=edges * (2 * FLOAT + 2 * FLOAT),
        device=device,
    )


def softmax(agents: int, degree: int | None = None, device: str = "cpu") -> Workload:
    """Softmax regression, 561 features, 6 labels, batches of 10, on a complete graph or a ring of that degree."""
    features, labels, batch = 561, 6, 10
    generator = torch.Generator().manual_seed(0)
    data = [
        (torch.randn(40, features, generator=generator), torch.randint(0, labels, (40,), generator=generator))
        for _ in range(agents)
    ]
    task = Task.supervised(nn.Linear(features, labels), nn.functional.cross_entropy, data, batch=batch, step_size=0.01)
    graph = Graph.complete(agents) if degree is None else Graph.ring(agents, degree // 2)
    edges, parameters = len(graph.senders), (features + 1) * labels
    one_pass = 2 * batch * features * labels
    # On a complete graph, a model is read once for all agents.
    messages = agents if degree is None else edges
    return Workload(
        f"softmax, {agents:,} agents, " + ("complete" if degree is None else f"degree {degree}"),
        lambda execution: prepare([Scene(task, graph)], [0], 0.2, execution),
        attacks.uniform(0, 0.1),
        flops=one_pass * (edges + 2 * agents) + 2 * parameters * edges,
        bytes=FLOAT * (parameters * (messages + 3 * agents) + 2 * agents * batch * features),
        device=device,
    )


def convolutional(agents: int, device: str = "cpu", judge_dtype: str | None = None) -> Workload:
    """The paper's CNN, batches of 64, on a complete graph."""
    batch = 64
    task = _digits(agents, batch)
    forward, parameters = flops_of_cnn(), task.model.parameters
    return Workload(
        f"CNN, {agents} agents, complete" + (f", judged in {judge_dtype}" if judge_dtype else ""),
        lambda execution: prepare([Scene(task, Graph.complete(agents))], [0], 0.2, execution, judge_dtype=judge_dtype),
        attacks.uniform(0, 0.1),
        flops=batch * forward * (agents**2 + 3 * agents) + 2 * parameters * agents**2,
        bytes=FLOAT * (4 * agents * parameters + 2 * agents * batch * 784),
        convolves=True,
        device=device,
    )


def _digits(agents: int, batch: int) -> Task:
    generator = torch.Generator().manual_seed(0)
    data = [
        (torch.rand(batch, 1, 28, 28, generator=generator), torch.randint(0, 10, (batch,), generator=generator))
        for _ in range(agents)
    ]
    return Task.supervised(cnn(), nn.functional.cross_entropy, data, batch=batch, step_size=0.001)


@cache
def flops_of_cnn() -> int:
    """The operations of the paper's CNN for one image, as torch counts them."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        cnn()(torch.zeros(1, 1, 28, 28))
    return counter.get_total_flops()
