"""A kernel for `anchored`: one loop over a table of agents, in `anchored.cpp`.

It supports `anchored` without another rule inside, with a `Formula` of few parameters. Torch compiles everything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from varangian.core.exchange import Exchange
from varangian.core.execution import Execution
from varangian.core.graph import Neighbourhoods
from varangian.core.inbox import Table
from varangian.core.models.base import Models
from varangian.engine.compute.cpp.build import stored_by_column
from varangian.engine.kernels.registry import register
from varangian.engine.kernels.table_loop import Addresses, TableLoop, by_slot, table_loop
from varangian.rules.anchored import DISTANCE_FORGETS, OWN_SHARE, UNIT_FORGETS, Memory, anchored
from varangian.rules.comparison import LARGEST, TIE, Compared, Unit
from varangian.rules.leash import Leash


@dataclass(frozen=True, eq=False)
class Loop:
    """`anchored.combine` in C++, for one formula."""

    loop: TableLoop
    rule: anchored
    settings: Float[Tensor, " setting"]
    """In the order of the fields of `Settings` in anchored.cpp."""

    def __call__(
        self, exchange: Exchange, memory: Sequence[Memory]
    ) -> tuple[Models, Sequence[Table], Sequence[Memory]]:
        """The models of all agents (Byzantine agents keep their own); the weights and the memory of each table."""
        assert exchange.second is not None
        after = list[Memory]()
        anchors = [stored_by_column(models) for models in exchange.second]

        def fields(table: Neighbourhoods, before: Memory, addresses: Addresses) -> Iterator[int]:
            """In the order of the fields of `Table` in anchored.cpp."""
            unit, leash, distance, compared, _ = before
            given = [by_slot(part) for part in (*unit, *leash, distance, *compared)]
            age, loss, slope, bend, usual, *rest = new = [torch.empty_like(part) for part in given]
            after.append(Memory(Unit(age, loss), Leash(slope, bend), usual, Compared(*rest), ()))
            yield from addresses.of(self.settings)
            for models in anchors:
                yield from addresses.of_rows(models, table)
            yield from addresses.of(*given, *new)

        models, weights = self.loop(exchange, self.rule.judge, memory, fields)
        return models, weights, after


def loop_for(rule: anchored, exchange: Exchange, execution: Execution) -> Loop | None:
    """The loop that computes the rule for exchanges like this one, or None if there is none."""
    memories = f"constexpr int MEMORIES = {len(rule.scales) + 1};"
    loop = table_loop("anchored", "anchored.cpp", memories, exchange, execution) if rule.rule is None else None
    return Loop(loop, rule, _settings(rule, exchange.adapted)) if loop else None


register(anchored, loop_for)


def _settings(rule: anchored, like: Tensor) -> Float[Tensor, " setting"]:
    scales = *rule.scales, rule.scales[-1], *rule.significance, rule.own_significance
    fixed = LARGEST, TIE, -1 / UNIT_FORGETS, UNIT_FORGETS, DISTANCE_FORGETS, OWN_SHARE
    return like.new_tensor((*scales, *fixed, rule.sudden, 1 - rule.leash, rule.trust, rule.reach**2))
