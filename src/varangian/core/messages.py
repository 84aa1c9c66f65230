"""What travels: everyone's adapted model, what Byzantine senders put in its place, and the check at the door."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from varangian.core.blocks import FEW, is_by_column, joined, replaced
from varangian.core.graph import MOST, Graph, Neighbourhoods
from varangian.core.models.base import Model, Models


class Told(NamedTuple):
    """What agents would tell each other were all of them honest."""

    adapted: Float[Tensor, "agent shared"]
    """θ̂ of everyone."""
    previous: Float[Tensor, "agent shared"]
    """θ of everyone, before adapting."""

    @staticmethod
    def by(model: Model, adapted: Models, previous: Models) -> Told:
        """By agents with these models: the part that travels."""
        shared = model.shared
        whole = shared == model.parameters
        return Told(adapted, previous) if whole else Told(adapted[:, :shared], previous[:, :shared])


class ToAll(NamedTuple):
    """One message from each Byzantine sender to all who hear it."""

    rows: Float[Tensor, "byzantine parameter"]
    silent: Bool[Tensor, " byzantine"] | None = None


class ToEach(NamedTuple):
    """A message of its own for every edge on which a Byzantine agent sends: two-faced senders."""

    rows: Float[Tensor, "edge parameter"]
    silent: Bool[Tensor, " edge"] | None = None


@dataclass(frozen=True, eq=False)
class Wiring:
    """A graph laid out for a run: tables of neighbourhoods, and where Byzantine messages arrive in them."""

    graph: Graph
    tables: Sequence[Neighbourhoods]
    places: Sequence[Int[Tensor, " edge_of_table"]]
    """For each table, the (agent, slot) places, flattened, that hear a Byzantine sender."""
    sender: Int[Tensor, " edge"]
    receiver: Int[Tensor, " edge"]
    normal: Bool[Tensor, " agent"]
    known: Wiring | None = None
    """Where only some receivers are laid out and Byzantine agents know about all of them: the wiring of all."""

    @staticmethod
    def of(
        graph: Graph,
        byzantine: Bool[Tensor, " agent"],
        device: torch.device,
        receivers: Int[Tensor, " some"] | None = None,
        known: Wiring | None = None,
    ) -> Wiring:
        tables = graph.neighbourhoods(None if device.type == "cpu" else MOST, receivers)
        places = [
            torch.nonzero((byzantine[t.senders] & t.present & (t.senders != t.receivers[:, None])).flatten())[:, 0]
            for t in tables
        ]
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
        """All tables have the same slots, so that what they hold can be one table."""
        return len({table.senders.shape[1] for table in self.tables}) == 1

    def everyones(self, parts: Sequence[Tensor]) -> Tensor:
        """What everyone has, from what the agents of each table have."""
        if len(parts) == 1 and self.tables[0].everyone:
            return parts[0]
        shape = (sum(map(len, parts)), *parts[0].shape[1:])
        out = parts[0].new_empty(shape[::-1]).T if is_by_column(parts[0]) else parts[0].new_empty(shape)
        for table, part in zip(self.tables, parts, strict=True):
            out[table.rows if table.span is None else table.span] = part
        return out

    def sources(self, delivered: Delivered) -> Sequence[Int[Tensor, "agent slot"]]:
        """For each table, the row of what was delivered that every slot receives."""
        return self.two_faced_sources if delivered.two_faced else [table.senders for table in self.tables]

    @cached_property
    def among_normal(self) -> tuple[Int[Tensor, " honest_edge"], Int[Tensor, " honest_edge"]]:
        """Senders and receivers of the edges between normal agents, everyone's own included."""
        sender, receiver = self.graph.senders.to(self.normal.device), self.graph.receivers.to(self.normal.device)
        both = self.normal[sender] & self.normal[receiver]
        return sender[both], receiver[both]

    @cached_property
    def lying(self) -> Sequence[Bool[Tensor, "agent slot"]]:
        """For each table, which slots hear a Byzantine sender."""
        return [
            torch.zeros_like(table.present.T).index_put_(_by_slot(place, table), place.new_ones((), dtype=torch.bool)).T
            for table, place in zip(self.tables, self.places, strict=True)
        ]

    @cached_property
    def two_faced_sources(self) -> Sequence[Int[Tensor, "agent slot"]]:
        """For each table, the row of the matrix of messages that every slot receives when senders are two-faced:
        honest rows come first, then one row for every edge of `sender` and `receiver`."""
        edge = self._places_of_edges if self.known else torch.arange(len(self.sender), device=self.sender.device)
        rows = (self.graph.agents + edge).split([len(place) for place in self.places])
        return [
            table.senders.T.index_put(_by_slot(place, table), row).T
            for table, place, row in zip(self.tables, self.places, rows, strict=True)
        ]

    @property
    def _places_of_edges(self) -> Int[Tensor, " edge"]:
        """Where those stand of all edges that Byzantine agents know about that end here."""
        assert self.known is not None
        code, order = (self.known.receiver * self.graph.agents + self.known.sender).sort()
        return order[torch.searchsorted(code, self.receiver * self.graph.agents + self.sender)]


def _by_slot(place: Int[Tensor, " some"], table: Neighbourhoods) -> tuple[Tensor, Tensor]:
    """Slot and agent of some places in a table, as it lies in memory."""
    slots = table.senders.shape[1]
    return place % slots, place // slots


class Delivered(NamedTuple):
    """The messages of a round after the check at the door."""

    rows: Float[Tensor, "row parameter"]
    """Everyone's message, then those of two-faced senders edge by edge; zeros where it was no message."""
    arrived: Bool[Tensor, " row"] | None
    """Which are messages; nothing where all are, and one can tell without making a GPU wait."""
    two_faced: bool

    def heard(self, source: Int[Tensor, "agent slot"], table: Neighbourhoods) -> Bool[Tensor, "agent slot"]:
        """Whether a message arrived in every slot of a table."""
        if self.arrived is None:
            return table.present
        by_slot = source.T
        return self.arrived.index_select(0, by_slot.reshape(-1)).view(by_slot.shape).T & table.present


def finite_rows(rows: Float[Tensor, "row parameter"]) -> Bool[Tensor, "row 1"]:
    """Which rows hold only finite numbers; the largest magnitude tells, and nan is below nothing."""
    if rows.shape[1] <= FEW:
        return rows.abs().amax(1, keepdim=True) < math.inf
    # Magnitudes of many parameters would be a matrix as large as the models.
    return torch.maximum(rows.amax(1, keepdim=True), -rows.amin(1, keepdim=True)) < math.inf


def deliver(
    honest: Float[Tensor, "agent parameter"],
    sent: ToAll | ToEach | None,
    byzantine: Int[Tensor, " byzantine"],
) -> Delivered:
    """Put Byzantine messages in place, and let in only what is a message: something sent, every number finite.

    What is not let in becomes zeros, so that its numbers never enter a product (0 · nan is nan).
    """
    if sent is None:
        # Adapted models are finite: adapting refuses a step that is not.
        return Delivered(honest, None, two_faced=False)
    clean, lets_in = _checked(sent)
    two_faced = isinstance(sent, ToEach)
    rows = joined((honest, clean)) if two_faced else replaced(honest, byzantine, clean)
    if lets_in is None:
        return Delivered(rows, None, two_faced)
    everyone = honest.new_ones(len(honest), dtype=torch.bool)
    arrived = torch.cat((everyone, lets_in)) if two_faced else everyone.index_copy_(0, byzantine, lets_in)
    return Delivered(rows, arrived, two_faced)


def _checked(
    sent: ToAll | ToEach,
) -> tuple[Float[Tensor, "message parameter"], Bool[Tensor, " message"] | None]:
    """What was sent with zeros for what is no message, and which are messages unless all are."""
    # A sum is a finite number only of finite numbers; that of large ones may not be one either.
    if sent.silent is None and sent.rows.device.type == "cpu" and math.isfinite(sent.rows.sum()):
        return sent.rows, None
    lets_in = finite_rows(sent.rows)
    if sent.silent is not None:
        lets_in = lets_in & ~sent.silent[:, None]
    return torch.where(lets_in, sent.rows, 0), lets_in[:, 0]
