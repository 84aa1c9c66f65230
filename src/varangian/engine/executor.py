"""How a round is computed. `round.py` says what is computed, and does not depend on this.

An executor applies functions to all agents, applies rules to all tables of neighbourhoods, and draws samples. `Plain`
does so in the simplest way. It defines the results that the other executors must give, up to rounding. Those are in
`compute/`: `Blocks` works in cache-sized blocks with several threads, and `Compiled` compiles the functions first.
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
from varangian.core.wiring import Wiring
from varangian.rules.base import Rule

Combined: TypeAlias = tuple[Models, Table | None, Any, Models | None]
"""The models of some agents, their weights, the memory of the rule, and their personal models, if they have any."""
CombineTable = Callable[[Inbox, Any, Bool[Tensor, "agent 1"]], Combined]
"""A function of an inbox, the memory of the rule, and which agents are normal."""
CombinedNetwork: TypeAlias = tuple[Models, Sequence[Table | None], Sequence[Any], Models | None]
"""The models of all agents; for each table the weights and the memory of the rule; and the personal models."""

Drawer = Callable[[int, int], Sample]
"""From the first round and a number of rounds to the samples of these rounds."""


class Executor(Protocol):
    """Computes the functions of a round."""

    def per_agent(self, function: Callable[..., Any], *parts: Any, whole: bool = False) -> Any:
        """`function(*parts)`, where parts and results are tensors, or tuples of them, with one row per agent.

        Each row of the result must depend only on the rows of the same agent, so that agents can be split into blocks.
        With `whole`, agents are not split. This is needed if the function draws random numbers in the order of rows.
        """
        ...

    def per_table(
        self, rule: Rule[Any], combine: CombineTable, exchange: Exchange, memory: Sequence[Any]
    ) -> CombinedNetwork:
        """`combine` for every table of the exchange.

        Args:
            rule: The rule that `combine` applies.
            combine: From the inbox of a table to the new models of its agents.
            exchange: The messages of the round.
            memory: The memory of the rule, one entry per table.
        """
        ...

    def drawer(self, streams: Sequence[Stream], draws: Sequence[Draws], dtype: torch.dtype) -> Drawer:
        """A function that draws from the streams of several networks, joined over agents: tensors (round, agent, …)."""
        ...


def joined_tables(wiring: Wiring, done: Sequence[Combined]) -> CombinedNetwork:
    """The results of all tables as those of one network."""
    models, weights, states, personal = zip(*done, strict=True)
    return wiring.join_tables(models), weights, states, None if personal[0] is None else wiring.join_tables(personal)


class Plain:
    """Calls every function directly, on all agents at once."""

    def per_agent(self, function: Callable[..., Any], *parts: Any, whole: bool = False) -> Any:
        return function(*parts)

    def per_table(
        self, rule: Rule[Any], combine: CombineTable, exchange: Exchange, memory: Sequence[Any]
    ) -> CombinedNetwork:
        wiring, listening = exchange.wiring, exchange.listening
        tables = zip(wiring.tables, wiring.sources(exchange.delivered), memory, strict=True)
        done = [combine(exchange.inbox(table, source), of, table.rows_of(listening)) for table, source, of in tables]
        return joined_tables(wiring, done)

    def drawer(self, streams: Sequence[Stream], draws: Sequence[Draws], dtype: torch.dtype) -> Drawer:
        def draw(start: int, rounds: int) -> Sample:
            parts = [stream.samples(own, start, rounds, dtype) for stream, own in zip(streams, draws, strict=True)]
            return tuple(torch.cat(part, dim=1) for part in zip(*parts, strict=True))

        return draw
