"""What a rule remembers about neighbours, and how it is carried over when the graph changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from varangian.core.wiring import Wiring
from varangian.rules.base import Rule


def initial_memory(rule: Rule[Any], wiring: Wiring, dtype: torch.dtype) -> list[Any]:
    """The memory of the rule before the first round, one entry per table."""
    return [rule.init(table.blank(dtype)) for table in wiring.tables]


def carried_over(rule: Rule[Any], states: Sequence[Any], old: Wiring, new: Wiring, dtype: torch.dtype) -> Sequence[Any]:
    """The memory of the rule for a new graph. What it knows about old neighbours is kept; new ones start blank.

    Args:
        rule: The rule.
        states: Its memory, one entry per table of the old graph.
        old: The wiring of the old graph.
        new: The wiring of the new graph.
        dtype: The number type.
    """
    if old is new:
        return states
    leaves = [tree_flatten(state)[0] for state in states]
    fresh = initial_memory(rule, new, dtype)
    known, place = _edges(old)
    code, order = known.sort()
    out: list[Any] = []
    for table, state in zip(new.tables, fresh, strict=True):
        wanted = table.receivers[:, None] * new.graph.agents + table.senders
        spot = torch.searchsorted(code, wanted.flatten()).clamp(max=len(code) - 1)
        found = (code[spot] == wanted.flatten()).view_as(wanted) & table.present
        edge = order[spot].view_as(wanted)
        blank, spec = tree_flatten(state)
        filled = [
            _filled(first, [of_table[i] for of_table in leaves], place, old, edge, found, table.receivers)
            for i, first in enumerate(blank)
        ]
        out.append(tree_unflatten(filled, spec))
    return out


def _edges(wiring: Wiring) -> tuple[Int[Tensor, " edge"], list[Bool[Tensor, "agent slot"]]]:
    """A unique number for every edge, table after table, and which slots of each table are used."""
    n = wiring.graph.agents
    codes = [(t.receivers[:, None] * n + t.senders)[t.present] for t in wiring.tables]
    return torch.cat(codes), [t.present for t in wiring.tables]


def _filled(
    blank: Tensor,
    old_leaves: list[Tensor],
    place: list[Bool[Tensor, "agent slot"]],
    old: Wiring,
    edge: Int[Tensor, "agent slot"],
    found: Bool[Tensor, "agent slot"],
    receivers: Int[Tensor, " agent"],
) -> Tensor:
    if blank.ndim == 1:
        everyone = blank.new_empty(old.graph.agents)
        for table, leaf in zip(old.tables, old_leaves, strict=True):
            everyone[table.receivers] = leaf
        return everyone[receivers]
    values = torch.cat([leaf[present] for leaf, present in zip(old_leaves, place, strict=True)])
    filled = torch.where(found.view(*found.shape, *[1] * (blank.ndim - 2)), values[edge], blank)
    return torch.empty_like(blank).copy_(filled)  # in the memory order of a new state
