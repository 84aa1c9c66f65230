"""An executor that works in blocks that fit into a processor's cache, one thread per block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from varangian.core.draws import Draws
from varangian.core.exchange import Exchange
from varangian.core.execution import Execution
from varangian.core.graph import Neighbourhoods
from varangian.core.layout import joined
from varangian.core.models.base import Sample
from varangian.core.task import Copyable, Divisible, Stream, part_of
from varangian.engine.compute.evaluator import Fast
from varangian.engine.executor import Combined, CombinedNetwork, CombineTable, Drawer, joined_tables
from varangian.rules.base import Rule

ROWS = 2**14
"""The number of agents in a block."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """Works on agents block by block if there are many, and computes inboxes with `Fast`."""

    execution: Execution

    def per_agent(self, function: Callable[..., Any], *parts: Any, whole: bool = False) -> Any:
        """See `Executor`.

        >>> Blocks(Execution()).per_agent(lambda a, b: (a + b, a - b), torch.tensor([1, 2]), torch.tensor([3, 4]))
        (tensor([4, 6]), tensor([-2, -2]))
        """
        if whole or len(parts[0]) <= ROWS or parts[0].device.type != "cpu":
            return function(*parts)
        leaves, given = tree_flatten(parts)
        blocks = self.execution.each(
            lambda *block: tree_flatten(function(*tree_unflatten(list(block), given))),
            *(leaf.split(ROWS) for leaf in leaves),
        )
        of_leaves = zip(*(block for block, _ in blocks), strict=True)
        return tree_unflatten([joined(of_leaf) for of_leaf in of_leaves], blocks[0][1])

    def per_table(
        self, rule: Rule[Any], combine: CombineTable, exchange: Exchange, memory: Sequence[Any]
    ) -> CombinedNetwork:
        wiring, delivered = exchange.wiring, exchange.delivered
        private_rows = len(delivered.rows) - wiring.graph.agents

        def of_table(table: Neighbourhoods, source: Int[Tensor, "agent slot"], memory: Any) -> Combined:
            same_messages = table.complete and not delivered.two_faced
            inbox = exchange.inbox(table, source, Fast(self.execution, table.dense, same_messages, private_rows))
            return combine(inbox, memory, table.rows_of(exchange.listening))

        return joined_tables(wiring, self.execution.each(of_table, wiring.tables, wiring.sources(delivered), memory))

    def drawer(self, streams: Sequence[Stream], draws: Sequence[Draws], dtype: torch.dtype) -> Drawer:
        pieces = [piece for stream, own in zip(streams, draws, strict=True) for piece in _pieces(stream, own)]
        some, of_some = zip(*pieces, strict=True)

        def draw(start: int, rounds: int) -> Sample:
            parts = self.execution.each(lambda stream, own: stream.samples(own, start, rounds, dtype), some, of_some)
            return tuple(joined(part, rows=1) for part in zip(*parts, strict=True))

        return draw


def _pieces(stream: Stream, draws: Draws) -> list[tuple[Stream, Draws]]:
    if not is_generated(stream) or draws.seed.device.type != "cpu":
        return [(stream, draws)]
    spans = [slice(first, first + ROWS) for first in range(0, stream.agents, ROWS)]
    return [(part_of(stream, span), draws.take(span)) for span in spans] if len(spans) > 1 else [(stream, draws)]


def is_generated(stream: Stream) -> bool:
    """Whether samples are computed from draws. Finite datasets are only read, so blocks and compilers do not help."""
    return isinstance(stream, Divisible) and not isinstance(stream, Copyable)
