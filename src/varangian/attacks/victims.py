"""The victims of Byzantine senders, and the honest agents around each victim.

Attacks on neighbourhoods share this module. Everything here depends only on the graph and on which agents are
Byzantine, and is computed once for each wiring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import embedding, embedding_bag

from varangian.attacks.base import View
from varangian.core.errors import BadInput
from varangian.core.layout import pieces
from varangian.core.wiring import Wiring

Made = TypeVar("Made")


def once_per_wiring(make: Callable[[View], Made]) -> Callable[[View], Made]:
    """Cache what depends only on the graph and on which agents are Byzantine, while that wiring is in use."""
    known: WeakKeyDictionary[Wiring, Made] = WeakKeyDictionary()

    @wraps(make)
    def made(view: View) -> Made:
        if view.wiring not in known:
            known[view.wiring] = make(view)
        return known[view.wiring]

    return made


# Neighbourhoods -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Company:
    """Some victims and the honest agents around each of them.

    Slot 0 is the victim itself, honest or not. Empty slots repeat it, so that extremes and distances need no mask.
    """

    victim: Int[Tensor, " victim"]
    slots: Int[Tensor, "victim slot"]
    honest: Bool[Tensor, "victim slot"]
    heard: Int[Tensor, " victim"]
    """n: how many agents a victim hears, itself included."""
    liars: Int[Tensor, " victim"]
    """f: how many of them are Byzantine."""
    rows: Float[Tensor, "agent parameter"]
    """One row per agent, to which the slots refer: models, or changes of models."""

    @property
    def own(self) -> Float[Tensor, "victim parameter"]:
        return self.rows[self.victim]

    @cached_property
    def models(self) -> Float[Tensor, "victim slot parameter"]:
        """All models around all victims, copied: this takes much memory."""
        return embedding(self.slots, self.rows)

    @property
    def count(self) -> Float[Tensor, "victim 1"]:
        """n − f: the number of honest agents, the victim included."""
        return self.honest.sum(1, keepdim=True).to(self.rows.dtype)

    @cached_property
    def mean(self) -> Float[Tensor, "victim parameter"]:
        """μ: the mean of the honest models."""
        return embedding_bag(self.slots, self.rows, per_sample_weights=self.honest / self.count, mode="sum")

    @cached_property
    def spread(self) -> Float[Tensor, "victim parameter"]:
        """σ: the standard deviation of the honest models, per coordinate; zero if there is only one."""
        squares = (self.models - self.mean[:, None]).square()
        return torch.bmm((self.honest / self.count)[:, None], squares)[:, 0].sqrt()

    @cached_property
    def squared_distances(self) -> Float[Tensor, "victim slot slot"]:
        return torch.cdist(self.models, self.models, compute_mode="donot_use_mm_for_euclid_dist").square()


@dataclass(frozen=True, eq=False)
class Audience:
    """All agents that hear a Byzantine sender."""

    tables: tuple[Company, ...]
    """Victims with similar numbers of slots share a table; the rows are still empty."""
    victim: Int[Tensor, " victim"]
    of_edge: Int[Tensor, " edge"]
    """For each edge on which Byzantine agents send, the place of its receiver in `victim`."""

    def companies(self, rows: Float[Tensor, "agent parameter"]) -> Iterator[Company]:
        """The victims in pieces that fit into memory."""
        for table in self.tables:
            width = table.slots.shape[1]
            for of in pieces(len(table.slots), numbers=width * max(width, rows.shape[1])):
                victim, slots, honest = table.victim[of], table.slots[of], table.honest[of]
                yield Company(victim, slots, honest, table.heard[of], table.liars[of], rows)


@once_per_wiring
def audience_of(view: View) -> Audience:
    wiring, nothing = view.wiring, view.adapted.new_empty(0, 0)
    tables, of_edge, before = list[Company](), [view.sender[:0]], 0
    for table, lying, place in zip(wiring.tables, wiring.from_byzantine, wiring.places, strict=True):
        hearing = torch.nonzero(lying.any(1))[:, 0]
        if not len(hearing):
            continue
        honest = (table.present & ~lying)[hearing]
        # Honest agents first, and slot 0 before all others. The victim with most honest neighbours sets the width.
        order = honest.byte().argsort(dim=1, descending=True, stable=True)[:, : int(honest.sum(1).max())]
        honest = honest.gather(1, order)
        senders = table.senders[hearing].gather(1, order)
        slots = torch.where(honest, senders, senders[:, :1])
        heard, liars = table.present[hearing].sum(1), lying[hearing].sum(1)
        tables.append(Company(table.receivers[hearing], slots, honest, heard, liars, nothing))
        of_edge.append(torch.searchsorted(hearing, place // lying.shape[1]) + before)
        before += len(hearing)
    victim = torch.cat([view.sender[:0], *(table.victim for table in tables)])
    return Audience(tuple(tables), victim, torch.cat(of_edge))


def of_victims(
    view: View, craft: Callable[[Company], Tensor], rows: Float[Tensor, "agent parameter"] | None = None
) -> Tensor:
    """What `craft` makes for each victim from the rows of honest agents around it; by default their adapted models."""
    rows = view.adapted if rows is None else rows
    parts = [craft(company) for company in audience_of(view).companies(rows)]
    return torch.cat(parts) if parts else rows[view.receiver]


def to_each(
    view: View, craft: Callable[[Company], Tensor], rows: Float[Tensor, "agent parameter"] | None = None
) -> Tensor:
    """As `of_victims`, but one row per edge: all Byzantine neighbours of a victim send it the same message."""
    return of_victims(view, craft, rows)[audience_of(view).of_edge]


def sender_row(view: View) -> Int[Tensor, " edge"]:
    """For each edge, the place of its sender among the Byzantine agents."""
    return torch.searchsorted(view.byzantine, view.sender)


# Networks -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Networks:
    """The networks that run side by side, one per seed, and their honest agents.

    In a network without honest agents, all agents are listed.
    """

    member: Int[Tensor, "network member"]
    present: Bool[Tensor, "network member"]
    first: Int[Tensor, " network"]
    """The agent with number 0 of each network."""
    agents: int
    """The number of agents of the smallest network."""
    speaker: Int[Tensor, " network"]
    """The place, among all Byzantine agents, of one Byzantine agent of each network; 0 where there is none."""
    of_sender: Int[Tensor, " byzantine"]

    def mean(self, values: Float[Tensor, "network member parameter"]) -> Float[Tensor, "network parameter"]:
        """The mean over honest agents; `values` must be zero in empty places."""
        return values.sum(1) / self.present.sum(1, keepdim=True)

    def centred(
        self, models: Float[Tensor, "agent parameter"]
    ) -> tuple[Float[Tensor, "network parameter"], Float[Tensor, "network member parameter"]]:
        """The mean of each network's honest models, and the difference of each model from it."""
        own = models[self.member]
        mean = self.mean(own * self.present[:, :, None])
        return mean, (own - mean[:, None]) * self.present[:, :, None]

    def numbered(self, number: int, what: str) -> Int[Tensor, " network"]:
        """The agent with that number in each network."""
        if number >= self.agents:
            raise BadInput(f"{what} names agent {number}, but agents are 0 … {self.agents - 1}")
        return self.first + number


@once_per_wiring
def networks_of(view: View) -> Networks:
    network, normal = view.network, view.wiring.normal
    count = int(network.max()) + 1
    everyone, sizes = _grouped(network, torch.ones_like(normal), count)
    lost = torch.bincount(network[normal], minlength=count) == 0
    member, present = _grouped(network, normal | lost[network], count)
    of_sender = network[view.byzantine]
    first_row = torch.searchsorted(of_sender.sort().values, torch.arange(count, device=network.device))
    by_network = of_sender.argsort(stable=True)
    return Networks(
        member=member,
        present=present,
        first=everyone[:, 0],
        agents=int(sizes.sum(1).min()),
        speaker=by_network[first_row.clamp(max=len(by_network) - 1)],
        of_sender=of_sender,
    )


def _grouped(
    network: Int[Tensor, " agent"], take: Bool[Tensor, " agent"], count: int
) -> tuple[Int[Tensor, "network member"], Bool[Tensor, "network member"]]:
    """Some agents, in order, with one row per network."""
    who = torch.nonzero(take)[:, 0]
    who = who[network[who].argsort(stable=True)]
    sizes = torch.bincount(network[who], minlength=count)
    slot = torch.arange(int(sizes.max()), device=network.device)
    present = slot < sizes[:, None]
    place = (sizes.cumsum(0) - sizes)[:, None] + torch.where(present, slot, 0)
    return who[place.clamp(max=len(who) - 1)], present
