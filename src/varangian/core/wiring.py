"""A graph prepared for a run: tables of neighbourhoods, and the slots in which Byzantine messages arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from varangian.core.errors import BadInput
from varangian.core.graph import MAX_ENTRIES, Graph, Neighbourhoods, TimeVarying
from varangian.core.layout import is_by_column
from varangian.core.messages import Delivered


@dataclass(frozen=True, eq=False)
class Wiring:
    """A graph prepared for a run: tables of neighbourhoods, and the slots in which Byzantine messages arrive."""

    graph: Graph
    tables: Sequence[Neighbourhoods]
    places: Sequence[Int[Tensor, " edge_of_table"]]
    """For each table, the flat (agent, slot) indices of the slots that hear a Byzantine sender."""
    sender: Int[Tensor, " edge"]
    """The Byzantine sender of each of these slots, table after table …"""
    receiver: Int[Tensor, " edge"]
    """… and the receiver."""
    normal: Bool[Tensor, " agent"]
    known: Wiring | None = None
    """The wiring of the whole network, if this one has only some receivers and Byzantine agents know all of them."""

    @staticmethod
    def of(
        graph: Graph,
        byzantine: Bool[Tensor, " agent"],
        device: torch.device,
        receivers: Int[Tensor, " some"] | None = None,
        known: Wiring | None = None,
    ) -> Wiring:
        """The wiring of a graph.

        Args:
            graph: Who hears whom.
            byzantine: Which agents are Byzantine.
            device: Where to put the tables.
            receivers: Make tables of these agents only. By default all agents.
            known: The wiring that Byzantine agents know, if it is not this one.
        """
        tables = graph.neighbourhoods(None if device.type == "cpu" else MAX_ENTRIES, receivers)
        any_byzantine = bool(byzantine.any())
        places = [_byzantine_places(t, byzantine) if any_byzantine else t.receivers.new_empty(0) for t in tables]
        pairs = list(zip(tables, places, strict=True))
        sender = torch.cat([t.senders.flatten()[p] for t, p in pairs])
        receiver = torch.cat([t.receivers[p // t.senders.shape[1]] for t, p in pairs])
        return Wiring(
            graph,
            [t.to(device) for t in tables],
            [p.to(device) for p in places],
            sender.to(device),
            receiver.to(device),
            ~byzantine.to(device),
            known,
        )

    @property
    def uniform(self) -> bool:
        """Whether all tables have the same number of slots, so that their values can be joined into one table."""
        return len({table.senders.shape[1] for table in self.tables}) == 1

    def join_tables(self, parts: Sequence[Tensor]) -> Tensor:
        """One tensor with a row per agent, from the rows of each table."""
        if len(parts) == 1 and self.tables[0].everyone:
            return parts[0]
        shape = (sum(map(len, parts)), *parts[0].shape[1:])
        out = parts[0].new_empty(shape[::-1]).T if is_by_column(parts[0]) else parts[0].new_empty(shape)
        for table, part in zip(self.tables, parts, strict=True):
            out[table.rows if table.span is None else table.span] = part
        return out

    def sources(self, delivered: Delivered) -> Sequence[Int[Tensor, "agent slot"]]:
        """For each table, the row of `delivered` that every slot receives."""
        return self.two_faced_sources if delivered.two_faced else [table.senders for table in self.tables]

    @cached_property
    def among_normal(self) -> tuple[Int[Tensor, " honest_edge"], Int[Tensor, " honest_edge"]]:
        """Senders and receivers of the edges between normal agents, self-loops included."""
        sender, receiver = self.graph.senders.to(self.normal.device), self.graph.receivers.to(self.normal.device)
        both = self.normal[sender] & self.normal[receiver]
        return sender[both], receiver[both]

    @cached_property
    def from_byzantine(self) -> Sequence[Bool[Tensor, "agent slot"]]:
        """For each table, which slots hear a Byzantine sender."""
        return [
            torch.zeros_like(table.present.T).index_put_(_by_slot(place, table), place.new_ones((), dtype=torch.bool)).T
            for table, place in zip(self.tables, self.places, strict=True)
        ]

    @cached_property
    def two_faced_sources(self) -> Sequence[Int[Tensor, "agent slot"]]:
        """For each table, the row of the matrix of messages that every slot receives when senders are two-faced.

        The honest messages come first, then one row for every edge in `sender` and `receiver`.
        """
        edge = self._places_of_edges if self.known else torch.arange(len(self.sender), device=self.sender.device)
        rows = (self.graph.agents + edge).split([len(place) for place in self.places])
        return [
            table.senders.T.index_put(_by_slot(place, table), row).T
            for table, place, row in zip(self.tables, self.places, rows, strict=True)
        ]

    @property
    def _places_of_edges(self) -> Int[Tensor, " edge"]:
        """The positions of this wiring's edges among all edges that Byzantine agents know."""
        assert self.known is not None
        code, order = (self.known.receiver * self.graph.agents + self.known.sender).sort()
        return order[torch.searchsorted(code, self.receiver * self.graph.agents + self.sender)]


def _byzantine_places(table: Neighbourhoods, byzantine: Bool[Tensor, " agent"]) -> Int[Tensor, " some"]:
    """The flat (agent, slot) indices of the slots of a table that hear a Byzantine sender."""
    heard = byzantine[table.senders] & table.present & (table.senders != table.receivers[:, None])
    return torch.nonzero(heard.flatten())[:, 0]


def _by_slot(place: Int[Tensor, " some"], table: Neighbourhoods) -> tuple[Tensor, Tensor]:
    """Slot and agent of some flat indices into a table, in the order of a table's memory."""
    slots = table.senders.shape[1]
    return place % slots, place // slots


def wirer(
    graphs: Sequence[Graph | TimeVarying],
    agents: int,
    byzantine: Bool[Tensor, " agent"],
    device: torch.device,
    receivers: Int[Tensor, " some"] | None = None,
    all_known: bool = False,
) -> Callable[[int], Wiring]:
    """A function from the round to its wiring. A new wiring is made only when the graph changes.

    Args:
        graphs: The graphs of the networks side by side.
        agents: The number of agents of each network.
        byzantine: Which agents are Byzantine.
        device: Where to put the tables.
        receivers: Make tables of these agents only. By default all agents.
        all_known: Whether Byzantine agents know the wiring of all agents too.
    """
    static = [graph for graph in graphs if isinstance(graph, Graph)]

    def wired(now: Sequence[Graph]) -> Wiring:
        graph = now[0] if len(now) == 1 else Graph.disjoint_union(now)
        known = Wiring.of(graph, byzantine, device) if all_known else None
        return Wiring.of(graph, byzantine, device, receivers, known)

    if len(static) == len(graphs):
        only = wired(static)
        return lambda round: only
    # A round needs its own graph and the previous one, to carry over what rules remember.
    recent: dict[int, tuple[list[Graph], Wiring]] = {}

    def of_round(round: int) -> Wiring:
        if round not in recent:
            now = [_at(graph, round, agents) for graph in graphs]
            same = [w for graphs, w in recent.values() if all(a is b for a, b in zip(graphs, now, strict=True))]
            while len(recent) > 1:
                recent.pop(min(recent))
            recent[round] = now, same[0] if same else wired(now)
        return recent[round][1]

    return of_round


def _at(graph: Graph | TimeVarying, round: int, agents: int) -> Graph:
    now = graph if isinstance(graph, Graph) else graph(round)
    check_size(now, agents)
    return now


def check_size(graph: Graph, agents: int) -> None:
    if graph.agents != agents:
        raise BadInput(f"the graph has {graph.agents} agents, but the task has {agents}; both need the same number")
