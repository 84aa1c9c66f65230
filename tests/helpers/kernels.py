"""Worlds for the tests of kernels, and a comparison of a kernel with its rule."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from varangian import Graph, Task, attacks, rules, studies
from varangian.core.exchange import Exchange
from varangian.core.execution import DEFAULT, Execution
from varangian.core.messages import HonestMessages, deliver
from varangian.core.models.base import Formula
from varangian.core.scene import Scene
from varangian.engine.compute.compile import Compiled
from varangian.engine.kernels.registry import kernel_for
from varangian.engine.round import adapt, byzantine_messages, combine, next_sample, play_round
from varangian.engine.state import State, begin, exchange_of, with_second_adapted
from varangian.engine.world import World, prepare

ATTACKS = [
    attacks.uniform(15, 16),
    attacks.not_finite(),
    attacks.silent(),
    attacks.pulling(step=0.3),
    attacks.uniform(-3e38, 3e38),
]


def localized_scene(agents: int, **settings: Any) -> Scene:
    scene = studies.target_localization(agents=agents).scene(1)
    return replace(scene, task=replace(scene.task, **settings))


def localized(agents: int, dtype: torch.dtype, device: str = "cpu", **settings: Any) -> World:
    return prepare([localized_scene(agents, **settings)], [1], 0.3, Execution(torch.device(device)), dtype)


def with_hubs(agents: int = 600) -> World:
    """A few agents hear all others, and the rest hear two. They are in different tables, and not consecutive."""
    hubs = range(0, agents, 50)
    edges = [(sender, hub) for hub in hubs for sender in range(agents) if sender != hub]
    ring = [((k + step) % agents, k) for k in range(agents) for step in (1, agents - 1)]
    graph = Graph.from_edges(agents, sorted({*edges, *ring}))
    study = studies.target_localization(agents=agents)
    world = prepare([Scene(study.task(1), graph)], [1], 0.3, DEFAULT, torch.float64)
    assert any(table.span is None for table in world.wiring(0).tables)
    return world


def world_of(loss: Any, agents: int, start: Tensor, graph: Graph, samples: Tensor, step_size: float = 0.0) -> World:
    class Same:
        """All agents observe the same in every round."""

        def __init__(self) -> None:
            self.agents = agents

        def samples(self, draws: Any, first: int, rounds: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
            return (samples.to(dtype).expand(rounds, *samples.shape),)

        def to(self, device: torch.device) -> Same:
            return self

    model = Formula(start.shape[1], loss, first=lambda agents: start)
    task = Task(model=model, stream=Same(), step_size=step_size, forgetting=0.5)
    return prepare([Scene(task, graph)], [0], 0, DEFAULT, torch.float32)


def honest_exchange(world: World, state: State | None = None) -> Exchange:
    """What agents exchange in the next round without an attack."""
    return attacked_exchange(world, rules.loss_based(), attacks.silent(), state, honest=True)


def attacked_exchange(
    world: World, rule: Any, attack: Any, state: State | None = None, *, honest: bool = False
) -> Exchange:
    """What agents exchange in the next round."""
    state = state or begin(world, rule, attack)
    adapted, optimiser = adapt(world, state)
    state = with_second_adapted(world, state, adapted, optimiser, partial(adapt, world))
    messages, sent = HonestMessages(adapted, state.models), None
    if not honest:
        sent, _ = byzantine_messages(world, rule, state.rule, attack, state, adapted, messages, world.wiring(0))
    return exchange_of(world, state, adapted, deliver(adapted, sent, world.byzantine), *next_sample(world, state))


def both_ways(world: World, rule: Any, attack: Any, rounds: int, tolerance: float) -> State:
    """Run every round with the rule itself and with its kernel, from the same state. Returns the last state."""
    compiled = replace(world, executor=Compiled(world.execution))
    near: dict[str, Any] = {"rtol": tolerance, "atol": tolerance, "equal_nan": True}
    with torch.no_grad():
        state = begin(world, rule, attack)
        for _ in range(rounds):
            exchange = attacked_exchange(world, rule, attack, state)
            assert state.round or kernel_for(rule, exchange, world.execution) is not None
            models, weights, memory, _ = combine(world, rule, state.rule, exchange)
            ours = combine(compiled, rule, state.rule, exchange)
            torch.testing.assert_close(ours[0], models, **near)
            torch.testing.assert_close(list(ours[1]), list(weights), **near)
            torch.testing.assert_close(tree_leaves(ours[2]), tree_leaves(memory), **near)
            for one, other in zip(ours[1], weights, strict=True):
                assert ((one > 0) == (other > 0)).all()
            state, _ = play_round(world, rule, attack, state)
    return state
