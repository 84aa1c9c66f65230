"""Estimates the memory of a run before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from varangian.attacks.base import AnyAttack
from varangian.core.checks import shown
from varangian.core.execution import Execution
from varangian.core.memory import check_fits
from varangian.core.scene import Scene
from varangian.rules.base import Rule, companion_of, folds_of, workspace_of

LEAST_PER_AGENT = 600
"""The fewest bytes that a network needs for an agent."""


def check_memory(
    scenes: Sequence[Scene],
    rule: Rule[Any],
    attack: AnyAttack | None,
    recorded: int,
    dtype: torch.dtype,
    execution: Execution,
) -> None:
    """Refuse a run that does not fit into memory, before it starts.

    Args:
        scenes: The networks that run side by side.
        rule: How agents combine what they hear.
        attack: What Byzantine agents send. None if there are none.
        recorded: How many rounds are recorded.
        dtype: The number type.
        execution: The device and the memory that the run may use.
    """
    needed = estimate(scenes, rule, recorded, dtype, attack is not None)
    check_fits(needed, "this run", execution.device, execution.memory)
    most, shared = largest_hub(scenes), scenes[0].task.model.shared
    for who in (rule, attack):
        what = f"{shown(who, 100)} compares all pairs of the {most} models that one agent hears, and"
        more = workspace_of(who, most, shared)
        check_fits(needed + more, what, execution.device, execution.memory, "use another one, or smaller hubs")


def largest_hub(scenes: Sequence[Scene]) -> int:
    """How many models the agent with the most neighbours hears, its own included."""
    graphs = [scene.graph(0) if callable(scene.graph) else scene.graph for scene in scenes]
    return 1 + max(int(graph.degrees.max()) for graph in graphs)


def estimate(scenes: Sequence[Scene], rule: Rule[Any], recorded: int, dtype: torch.dtype, any_byzantine: bool) -> int:
    """About how many bytes a run takes, not counting the scenes themselves.

    These are the tables of neighbourhoods with the memory of the rule, before and after a round; the models and copies
    of them, second models included; the samples; and the record.

    Args:
        scenes: The networks that run side by side.
        rule: What it remembers per neighbour counts.
        recorded: How many rounds are recorded.
        dtype: The number type.
        any_byzantine: Whether there are Byzantine agents. Their messages need memory too.
    """
    task, size = scenes[0].task, dtype.itemsize
    graphs = [scene.graph(0) if callable(scene.graph) else scene.graph for scene in scenes]
    agents = sum(graph.agents for graph in graphs)
    entries = sum(_entries(graph.degrees + 1) for graph in graphs)
    memory = [leaf for leaf in tree_leaves(rule.init(torch.zeros(1, 2, dtype=dtype))) if isinstance(leaf, Tensor)]
    per_entry = sum(leaf.element_size() * leaf.numel() // 2 for leaf in memory if leaf.ndim >= 2)
    table = entries * (8 + 1 + 1 + 2 * per_entry + size)
    byzantine = 24 * entries if any_byzantine else 0
    optimiser = len(task.optimiser.init(torch.zeros(1, 1)))
    second = 0 if companion_of(rule) is None else 4 + 2 * optimiser
    second += folds_of(rule) * (1 + optimiser)
    models = agents * task.model.parameters * size * (6 + 2 * optimiser + second)
    sample = 3 * size * len(scenes) * task.sample_size
    dense = 6 * size * max(graph.agents**2 if 2 * len(graph.senders) > graph.agents**2 else 0 for graph in graphs)
    record = 8 * agents * size * recorded
    total: int = table + byzantine + models + sample + dense + record
    return total


def _entries(slots: torch.Tensor) -> int:
    """About how many entries the tables have, padding included."""
    return min(int(slots.max()) * len(slots), 2 * int(slots.sum()))
