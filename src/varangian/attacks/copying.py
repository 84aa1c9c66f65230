"""Lies made of what others or oneself learnt: copies, echoes and exaggerations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from varangian.attacks.base import AnyAttack, Poisons, View
from varangian.attacks.simple import uniform
from varangian.attacks.victims import networks_of, sender_row
from varangian.core.messages import ToAll, ToEach
from varangian.errors import BadInput

Own = Float[Tensor, "byzantine parameter"]


@dataclass(frozen=True)
class scaled:
    """The sender's own update many times over, θ_b + factor · (θ̂_b − θ_b): what it learnt, shouted.

    Model replacement in federated learning boosts an update by the number of agents so that it survives averaging.
    Knows nothing of others; against averaging.

    Bagdasaryan, Veit, Hua, Estrin, Shmatikov: How to backdoor federated learning. AISTATS 2020.
    """

    factor: float = 10.0

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToAll, tuple[()]]:
        before = view.previous[view.byzantine]
        return ToAll(before + self.factor * (view.own - before)), state


@dataclass(frozen=True)
class free_rider:
    """Two-faced: an echo, to each neighbour k that neighbour's own last model θ_k. Learns nothing and costs nothing.

    No model is nearer to the victim, so it wins the trust of distance-based weights whole, and the victim stands still:
    at distance 0 they leave nothing for its own step. An average is slowed down; a rule that judges by loss loses no
    more than the echo's share of weight, for the echo is one step behind. Listens to everybody.

    Lin, Du, Liu: Free-riders in federated learning: attacks and defenses. 2019.
    """

    local: ClassVar[bool] = True

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToEach, tuple[()]]:
        return ToEach(view.previous[view.receiver]), state


@dataclass(frozen=True)
class collusion:
    """All Byzantine agents of a network send the same point: a crowd at a place where nobody would be alone.

    Unless a point is given it is another task's: from the honest mean μ look to the farthest honest model θ̂_f, and
    take the mean of the honest models at least half as far in that direction, (θ̂_l − μ)ᵀ(θ̂_f − μ) ≥ ½ ‖θ̂_f − μ‖².
    Omniscient; against rules that trust where many agree, such as Krum and clustering, where tasks differ.
    """

    point: tuple[float, ...] | None = None
    """Where all are; one number stands for every coordinate."""

    def __post_init__(self) -> None:
        if self.point is not None and not self.point:
            raise BadInput("collusion needs a point to meet at, but point is empty")

    def init(self, own: Own) -> tuple[()]:
        if self.point is not None and len(self.point) not in (1, own.shape[1]):
            raise BadInput(
                f"collusion's point has {len(self.point)} coordinates, but models have {own.shape[1]} that travel"
            )
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToAll, tuple[()]]:
        if self.point is not None:
            return ToAll(view.own.new_tensor(self.point).expand_as(view.own)), state
        networks = networks_of(view)
        mean, gap = networks.centred(view.adapted)
        far = gap.square().sum(2).argmax(1)
        farthest = gap[torch.arange(len(gap), device=gap.device), far]
        along = (gap @ farthest[:, :, None])[:, :, 0]
        side = ((along >= along.gather(1, far[:, None]) / 2) & networks.present).to(gap.dtype)
        point = mean + (side[:, None] @ gap)[:, 0] / side.sum(1, keepdim=True)
        return ToAll(point[networks.of_sender]), state


@dataclass(frozen=True)
class sybil:
    """One adversary with many names: all senders repeat what one of them would send in another attack.

    Which one is drawn by seed, once. Where the other attack is two-faced, a victim hears from all its Byzantine
    neighbours what the one drawn among them would tell it. Against rules that count heads.

    Douceur: The Sybil attack. IPTPS 2002.
    """

    then: AnyAttack = field(default_factory=uniform)

    def __post_init__(self) -> None:
        if isinstance(self.then, Poisons):
            raise BadInput(f"sybil repeats messages, but {self.then} changes data; run it by itself")

    def init(self, own: Own) -> Any:
        return self.then.init(own)

    def send(self, view: View, state: Any) -> tuple[ToAll | ToEach, Any]:
        sent, state = self.then.send(view, state)
        order = view.draws.uniform("sybil", 0, 1)[:, 0].argsort()
        if isinstance(sent, ToAll):
            networks = networks_of(view)
            leader = order[_lowest(order.argsort(), networks.of_sender, len(networks.first))]
            return ToAll(sent.rows[leader], None if sent.silent is None else sent.silent[leader]), state
        rank = order.argsort()[sender_row(view)]
        # Rank and place in one number, so that the lowest tells its place.
        edges = len(rank)
        place = torch.arange(edges, device=rank.device)
        leading = _lowest(rank * edges + place, view.receiver, len(view.network)) % max(1, edges)
        return ToEach(sent.rows[leading], None if sent.silent is None else sent.silent[leading]), state


def _lowest(values: Tensor, of: Tensor, groups: int) -> Tensor:
    """For each value, the lowest of its group."""
    most = values.new_full((groups,), torch.iinfo(values.dtype).max)
    return most.scatter_reduce(0, of, values, "amin")[of]
