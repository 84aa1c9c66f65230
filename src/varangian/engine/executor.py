"""How a round is computed. What is computed stands in `round.py`, which knows nothing of this.

An executor does three things with functions that it is given: it applies one to every agent, one to every table of
neighbourhoods, and it draws samples. `Plain` does so as directly as possible, and says what the others must give, up
to rounding. The others are in `compute/`: `Blocks` works in cache-sized blocks with several threads, `Compiled` gives
the functions to a compiler first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from jaxtyping import Bool
from torch import Tensor

from varangian.core.draws import Draws
from varangian.core.exchange import Exchange
from varangian.core.inbox import Inbox, Table
from varangian.core.models.base import Models, Sample
from varangian.core.task import Stream
from varangian.rules.base import Rule

Combined: TypeAlias = tuple[Models, Table | None, Any]
"""The models of some agents, their weights, and what the rule remembers."""
CombineTable = Callable[[Inbox, Any, Bool[Tensor, "agent 1"]], Combined]
"""From an inbox, what the rule remembers, and who is normal."""
CombinedNetwork: TypeAlias = tuple[Models, Sequence[Table | None], Sequence[Any]]
"""Everyone's models; the weights and the rule's memory of each table."""

Drawer = Callable[[int, int], Sample]
"""From the first round and a number of rounds to the samples of these rounds."""


class Executor(Protocol):
    """Computes a round's functions."""

    def per_agent(self, function: Callable[..., Any], *parts: Any, whole: bool = False) -> Any:
        """`function(*parts)`, where parts and results are tensors, or tuples of them, with one row per agent.

        Each row of the result depends on the same agent's rows alone, so that agents may be split into blocks; with
        `whole` they must not be, because the function draws random numbers in the order of the rows.
        """
        ...

    def per_table(
        self, rule: Rule[Any], combine: CombineTable, exchange: Exchange, memory: Sequence[Any]
    ) -> CombinedNetwork:
        """`combine` for every table of the exchange, as `rule` does it; `memory` is what the rule remembers of each."""
        ...

    def drawer(self, streams: Sequence[Stream], draws: Sequence[Draws], dtype: torch.dtype) -> Drawer:
        """What arrives from several networks' streams, joined over agents: tensors of (round, agent, …)."""
        ...


class Plain:
    """Every function as it is, on everyone at once."""

    def per_agent(self, function: Callable[..., Any], *parts: Any, whole: bool = False) -> Any:
        return function(*parts)

    def per_table(
        self, rule: Rule[Any], combine: CombineTable, exchange: Exchange, memory: Sequence[Any]
    ) -> CombinedNetwork:
        wiring, normal = exchange.wiring, exchange.normal
        tables = zip(wiring.tables, wiring.sources(exchange.delivered), memory, strict=True)
        done = [combine(exchange.inbox(table, source), of, table.rows_of(normal)) for table, source, of in tables]
        models, weights, states = zip(*done, strict=True)
        return wiring.join_tables(models), weights, states

    def drawer(self, streams: Sequence[Stream], draws: Sequence[Draws], dtype: torch.dtype) -> Drawer:
        def draw(start: int, rounds: int) -> Sample:
            parts = [stream.samples(own, start, rounds, dtype) for stream, own in zip(streams, draws, strict=True)]
            return tuple(torch.cat(part, dim=1) for part in zip(*parts, strict=True))

        return draw
