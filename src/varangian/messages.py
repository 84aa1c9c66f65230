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

from varangian.graph import Graph, Neighbourhoods


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

    @staticmethod
    def of(graph: Graph, byzantine: Bool[Tensor, " agent"], device: torch.device) -> Wiring:
        tables = graph.neighbourhoods()
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
        )

    @cached_property
    def among_normal(self) -> tuple[Int[Tensor, " honest_edge"], Int[Tensor, " honest_edge"]]:
        """Senders and receivers of the edges between normal agents, everyone's own included."""
        sender, receiver = self.graph.senders.to(self.normal.device), self.graph.receivers.to(self.normal.device)
        both = self.normal[sender] & self.normal[receiver]
        return sender[both], receiver[both]

    @cached_property
    def lying(self) -> Sequence[Bool[Tensor, "agent slot"]]:
        """For each table, which slots hear a Byzantine sender."""
        pairs = zip(self.tables, self.places, strict=True)
        return [
            torch.zeros_like(t.present).flatten().index_fill_(0, place, True).view_as(t.present) for t, place in pairs
        ]

    @cached_property
    def two_faced_sources(self) -> Sequence[Int[Tensor, "agent slot"]]:
        """For each table, the row of the matrix of messages that every slot receives when senders are two-faced:
        honest rows come first, then one row for every edge of `sender` and `receiver`."""
        out: list[Tensor] = []
        edge = self.graph.agents
        for table, place in zip(self.tables, self.places, strict=True):
            row = torch.arange(edge, edge + len(place), device=place.device)
            out.append(table.senders.flatten().index_copy(0, place, row).view_as(table.senders))
            edge += len(place)
        return out


class Delivered(NamedTuple):
    """The messages of a round after the check at the door."""

    rows: Float[Tensor, "row parameter"]
    """Everyone's message, then those of two-faced senders edge by edge; zeros where it was no message."""
    arrived: Bool[Tensor, " row"]
    two_faced: bool


def finite_rows(rows: Float[Tensor, "row parameter"]) -> Bool[Tensor, "row 1"]:
    """Which rows hold only finite numbers; the largest magnitude tells, and nan is below nothing."""
    return rows.abs().amax(1, keepdim=True) < math.inf


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
        return Delivered(honest, honest.new_ones(len(honest), dtype=torch.bool), two_faced=False)
    finite = finite_rows(sent.rows)
    if sent.silent is not None:
        finite = finite & ~sent.silent[:, None]
    clean = torch.where(finite, sent.rows, 0)
    everyone = honest.new_ones(len(honest), dtype=torch.bool)
    if isinstance(sent, ToAll):
        rows = honest.index_copy(0, byzantine, clean)
        return Delivered(rows, everyone.index_copy_(0, byzantine, finite[:, 0]), two_faced=False)
    return Delivered(torch.cat((honest, clean)), torch.cat((everyone, finite[:, 0])), two_faced=True)
