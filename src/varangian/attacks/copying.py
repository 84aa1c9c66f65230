"""Attacks made of learnt models: copies of other agents' models, and exaggerated updates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from varangian.attacks.base import AnyAttack, Knowledge, Poisons, View, knowledge_of
from varangian.attacks.simple import uniform
from varangian.attacks.victims import networks_of, sender_row
from varangian.core.errors import BadInput
from varangian.core.messages import ToAll, ToEach

Own = Float[Tensor, "byzantine parameter"]


@dataclass(frozen=True)
class scaled:
    """Sends the sender's own update many times over.

    Equation:
        m_b = θ_b + factor · (θ̂_b − θ_b)

    θ_b is the sender's model before it adapts, θ̂_b after. In federated learning such a factor, chosen as the number
    of agents, lets an update survive averaging. It works against averages.

    Knows: The sender's own model.
    Cost: O(d) per Byzantine agent and round, for models of d parameters.

    Example:
        >>> from varangian import attacks
        >>> attacks.scaled(factor=100.0)
        scaled(factor=100.0)

    Reference:
        Bagdasaryan, Veit, Hua, Estrin and Shmatikov, "How to backdoor federated learning", AISTATS 2020.
        https://arxiv.org/abs/1807.00459
    """

    factor: float = 10.0
    """How many times the update counts."""

    knows: ClassVar[tuple[Knowledge, ...]] = ()
    strength: ClassVar[str] = "factor"
    strengths: ClassVar[tuple[float, ...]] = (-10.0, -1.0, 0.3, 3.0, 30.0, 100.0)

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToAll, tuple[()]]:
        before = view.previous[view.byzantine]
        return ToAll(before + self.factor * (view.own - before)), state


@dataclass(frozen=True)
class free_rider:
    """Sends each neighbour that neighbour's own last model.

    Equation:
        m_k = θ_k

    Two-faced: each neighbour k hears a different message. No model is nearer to the victim, so distance-based weights
    trust it fully, and the victim stands still. An average is slowed down. A rule that judges by loss loses no more
    than the weight of the copy, which is one step behind.

    Knows: The last model of each victim.
    Cost: None; that is the point of it.

    Example:
        >>> from varangian import attacks
        >>> attacks.free_rider()
        free_rider()

    Reference:
        Lin, Du and Liu, "Free-riders in federated learning: attacks and defenses", 2019.
        https://arxiv.org/abs/1911.12560
    """

    knows: ClassVar[tuple[Knowledge, ...]] = ("messages",)
    local: ClassVar[bool] = True

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToEach, tuple[()]]:
        return ToEach(view.previous[view.receiver]), state


@dataclass(frozen=True)
class collusion:
    """All Byzantine agents of a network send the same point, by default the model of another task.

    Equation:
        m_b = (1 / |S|) Σ_{l∈S} θ̂_l
        l ∈ S  if (θ̂_l − μ)ᵀ (θ̂_f − μ) ≥ ½ ‖θ̂_f − μ‖²
        f = argmax_l ‖θ̂_l − μ‖

    μ is the mean of all honest models, and f is the honest agent farthest from it. S holds the honest agents that are
    at least half as far in the same direction. The Byzantine agents make this group look larger than it is. It works
    against rules that trust a crowd, such as Krum and clustering, where tasks differ.

    Knows: All honest models; nothing if `point` is given.
    Cost: O(N d) per network and round, for N agents and models of d parameters.

    Example:
        >>> from varangian import attacks
        >>> attacks.collusion(point=(0.0, 0.0))
        collusion(point=(0.0, 0.0))

    Reference:
        Ours. It stands for colluders who pose as a large group with one task.
    """

    point: tuple[float, ...] | None = None
    """The point to send; one number stands for every coordinate. By default the point of the equation."""

    def __post_init__(self) -> None:
        if self.point is not None and not self.point:
            raise BadInput("collusion needs a point to send, but point is empty")

    @property
    def knows(self) -> tuple[Knowledge, ...]:
        return ("messages",) if self.point is None else ()

    def init(self, own: Own) -> tuple[()]:
        if self.point is not None and len(self.point) not in (1, own.shape[1]):
            raise BadInput(
                f"collusion's point has {len(self.point)} coordinates, but models have {own.shape[1]} that are sent"
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
    """One adversary with many names: all Byzantine agents send what one of them would send.

    Equation:
        m_b = t_s

    t_s is what agent s would send in the attack `then`. Agent s is drawn once, by seed, among the Byzantine agents of
    the network. If that attack is two-faced, s is drawn among the Byzantine neighbours of each victim. It works
    against rules that count votes. The attack `then` must change messages, not data.

    Knows: What the attack `then` knows.
    Cost: The cost of the attack `then`.

    Example:
        >>> from varangian import attacks
        >>> attacks.sybil(then=attacks.alie())
        sybil(then=alie(z=None))

    Reference:
        Douceur, "The Sybil attack", IPTPS 2002. https://doi.org/10.1007/3-540-45748-8_24
    """

    then: AnyAttack = field(default_factory=uniform)
    """The attack to repeat. By default `uniform`."""

    def __post_init__(self) -> None:
        if isinstance(self.then, Poisons):
            raise BadInput(f"sybil repeats messages, but {self.then} changes data; run it by itself")

    @property
    def knows(self) -> tuple[Knowledge, ...]:
        return knowledge_of(self.then)

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
        # Rank and place in one number, so that the lowest number also gives its place.
        edges = len(rank)
        place = torch.arange(edges, device=rank.device)
        leading = _lowest(rank * edges + place, view.receiver, len(view.network)) % max(1, edges)
        return ToEach(sent.rows[leading], None if sent.silent is None else sent.silent[leading]), state


def _lowest(values: Tensor, of: Tensor, groups: int) -> Tensor:
    """For each value, the lowest value of its group."""
    most = values.new_full((groups,), torch.iinfo(values.dtype).max)
    return most.scatter_reduce(0, of, values, "amin")[of]
