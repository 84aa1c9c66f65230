"""A kernel for the paper's rule: one loop over a table of agents, in `loss_based.cpp`.

Whole-tensor operations pass over a table about thirty times; compiled by torch, about five times. This loop passes over
it once. It supports `loss_based` with a `Formula` of few parameters. Torch compiles everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from varangian.core.exchange import Exchange
from varangian.core.execution import Execution
from varangian.core.graph import Neighbourhoods
from varangian.core.inbox import Table
from varangian.core.models.base import Models
from varangian.engine.kernels.registry import register
from varangian.engine.kernels.table_loop import Addresses, TableLoop, by_slot, table_loop
from varangian.rules.evidence import Smoothed
from varangian.rules.paper import loss_based


@dataclass(frozen=True, eq=False)
class Loop:
    """`loss_based.combine` in C++, for one formula."""

    loop: TableLoop
    rule: loss_based
    forgetting: Float[Tensor, "agent 1"]

    def __call__(
        self, exchange: Exchange, memory: Sequence[Smoothed]
    ) -> tuple[Models, Sequence[Table], Sequence[Smoothed]]:
        """The models of all agents (Byzantine agents keep their own); the weights and φ of each table."""
        after = list[Smoothed]()

        def fields(table: Neighbourhoods, before: Smoothed, addresses: Addresses) -> list[int]:
            """In the order of the fields of `Table` in loss_based.cpp."""
            before = Smoothed(*map(by_slot, before))
            after.append(Smoothed(*map(torch.empty_like, before)))
            return [addresses.of_rows(self.forgetting, table)[0], *addresses.of(*before, *after[-1])]

        models, weights = self.loop(exchange, self.rule.judge or exchange.judged_on, memory, fields)
        return models, weights, after


def loop_for(rule: loss_based, exchange: Exchange, execution: Execution) -> Loop | None:
    """The loop that computes the rule for exchanges like this one, or None if there is none."""
    everyone = f"constexpr bool EVERYONE = {'true' if rule.keep == 'all' else 'false'};"
    loop = table_loop("loss-based", "loss_based.cpp", everyone, exchange, execution) if rule.weigh == "risk" else None
    nu = exchange.forgetting
    return Loop(loop, rule, nu if rule.smoothing is None else torch.full_like(nu, rule.smoothing)) if loop else None


register(loss_based, loop_for)
