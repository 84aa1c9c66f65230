"""Attacks that hide in the statistics of the honest models around a victim.

They work against rules that trust the majority or the nearest models. The papers attack a server that averages
gradients. Here every victim is its own server, and agents send models instead of gradients. Means, standard deviations
and distances are therefore taken over the victim and its honest neighbours. Where a paper has an aggregated gradient,
these attacks use the change from the victim's last model θ_k to the adapted models θ̂ around it. All Byzantine
neighbours of a victim send it the same message; only `fang_trimmed_mean` draws one for each sender.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from varangian.attacks.base import Knowledge, View
from varangian.attacks.victims import Company, networks_of, to_each
from varangian.core.errors import BadInput
from varangian.core.messages import ToAll, ToEach
from varangian.rules.base import pairs

Own = Float[Tensor, "byzantine parameter"]
Deviation = Literal["std", "unit", "sign"]
"""The direction away from the mean: along the standard deviation of the honest models, against their mean change, or
against the signs of that change."""


@dataclass(frozen=True)
class alie:
    """Sends the honest mean around each victim, shifted by as many standard deviations as stay unnoticed.

    Equation:
        m_k = μ_k − z σ_k
        Φ(z) = (n − ⌊n / 2 + 1⌋) / (n − f)

    Two-faced: each victim k hears a different message. The victim hears n agents, itself included, and f of them are
    Byzantine. μ_k and σ_k are mean and standard deviation, per coordinate, of the n − f honest models. Φ(z) is kept
    between 0.5 and 0.99. It works against medians, trimmed means and other rules that look for outliers. Rules that
    judge by loss are hardly harmed.

    Limits: with few Byzantine neighbours z is 0, and the message is the honest mean itself. Where agents have one task,
    such a message helps. With 20 of 100 Byzantine in target localization, z is 0 for 35 % of the victims (20 seeds).

    Knows: The models that each victim hears.
    Cost: O(n d) per victim and round, for models of d parameters.

    Example:
        >>> from varangian import attacks
        >>> attacks.alie(z=1.0)
        alie(z=1.0)

    Reference:
        Baruch, Baruch and Goldberg, "A little is enough: circumventing defenses for distributed learning",
        NeurIPS 2019. https://arxiv.org/abs/1902.06156
    """

    z: float | None = None
    """The number of standard deviations. By default the most that a majority allows, from the second equation."""

    knows: ClassVar[tuple[Knowledge, ...]] = ("messages",)
    local: ClassVar[bool] = True
    strength: ClassVar[str] = "z"
    strengths: ClassVar[tuple[float, ...]] = (0.1, 0.3, 1.0, 2.0, 4.0, 10.0)

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToEach, tuple[()]]:
        def craft(around: Company) -> Tensor:
            z = self.z if self.z is not None else _most_that_hides(around)
            return around.mean - z * around.spread

        return ToEach(to_each(view, craft)), state


def _most_that_hides(around: Company) -> Float[Tensor, "victim 1"]:
    n, f = around.heard.double(), around.liars.double()
    supporters = (n - torch.floor(n / 2 + 1)) / (n - f)
    z: Tensor = torch.special.ndtri(supporters.clamp(0.5, 0.99))[:, None]
    return z.to(around.rows.dtype)


@dataclass(frozen=True)
class inner_product:
    """Sends each victim its own last model, moved against what the honest agents around it have learnt.

    Equation:
        m_k = θ_k − (ε / (n − f)) Σ_{l∈H_k} (θ̂_l − θ_l)

    Two-faced: each victim k hears a different message. H_k are the n − f honest agents that k hears, itself included.
    The paper sends −ε times the mean honest gradient; here the change θ̂_l − θ_l stands for the gradient step, and
    θ_k for the model of the server. A small ε hides among honest models. With ε above (n − f) / f an average goes
    backwards. It works against rules that look at distances only. Rules that judge by loss on new samples are hardly
    harmed.

    Knows: The models that each victim hears, before and after they adapt.
    Cost: O(n d) per victim and round, for models of d parameters.

    Example:
        >>> from varangian import attacks
        >>> attacks.inner_product(epsilon=2.0)
        inner_product(epsilon=2.0)

    Reference:
        Xie, Koyejo and Gupta, "Fall of empires: breaking Byzantine-tolerant SGD by inner product manipulation",
        UAI 2019. https://arxiv.org/abs/1903.03936
    """

    epsilon: float = 0.5
    """ε: how far to go back, in mean honest changes."""

    knows: ClassVar[tuple[Knowledge, ...]] = ("messages",)
    strength: ClassVar[str] = "epsilon"
    strengths: ClassVar[tuple[float, ...]] = (0.1, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0)

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToEach, tuple[()]]:
        change = to_each(view, lambda around: around.mean, view.adapted - view.previous)
        return ToEach(view.previous[view.receiver] - self.epsilon * change), state


@dataclass(frozen=True)
class min_max:
    """Sends a model as far from the honest mean as the most distant honest models are from each other.

    Equation:
        m_k = μ_k + factor · γ p
        max_l ‖m_k − θ̂_l‖ ≤ max_ij ‖θ̂_i − θ̂_j‖

    Two-faced: each victim k hears a different message. i, j and l are the honest agents that k hears, itself
    included, and μ_k is the mean of their models. p is a unit vector, and γ is the largest number that keeps the
    inequality. The inequality is quadratic in γ for each l, so γ is computed directly, where the paper searches for
    it. It works against rules that look at distances, known or unknown. Rules that judge by loss are hardly harmed.

    Knows: The models that each victim hears, and the victim's last model.
    Cost: O(n² d) per victim and round, if it hears n agents and models have d parameters.

    Example:
        >>> from varangian import attacks
        >>> attacks.min_max(deviation="sign")
        min_max(deviation='sign', factor=1.0)

    Reference:
        Shejwalkar and Houmansadr, "Manipulating the Byzantine: optimizing model poisoning attacks and defenses
        for federated learning", NDSS 2021. https://doi.org/10.14722/ndss.2021.24498
    """

    deviation: Deviation = "std"
    """The direction p: against the spread of honest models ("std"), their mean change ("unit"), or its signs
    ("sign")."""
    factor: float = 1.0
    """How far to go, in units of γ; 1 is the largest that hides."""

    knows: ClassVar[tuple[Knowledge, ...]] = ("messages",)
    local: ClassVar[bool] = True
    strength: ClassVar[str] = "factor"
    strengths: ClassVar[tuple[float, ...]] = (0.03, 0.1, 0.3, 3.0, 10.0)

    def workspace(self, slots: int, shared: int) -> int:
        return pairs(slots, tables=3)

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToEach, tuple[()]]:
        def craft(around: Company) -> Tensor:
            p = _deviation(around, view, self.deviation)
            gap = around.mean[:, None] - around.models
            square, along = gap.square().sum(2), (gap * p[:, None]).sum(2)
            widest = around.squared_distances.amax((1, 2))[:, None]
            gamma = (along.square() + (widest - square).clamp(min=0)).sqrt() - along
            return around.mean + self.factor * gamma.amin(1, keepdim=True) * p

        return ToEach(to_each(view, craft)), state


@dataclass(frozen=True)
class min_sum:
    """Sends a model whose squared distances to the honest models sum to no more than an honest model's.

    Equation:
        m_k = μ_k + factor · γ p
        γ² = (1 / (n − f)) (max_i Σ_l ‖θ̂_i − θ̂_l‖² − Σ_l ‖μ_k − θ̂_l‖²)

    Two-faced: each victim k hears a different message. i and l are the n − f honest agents that k hears, itself
    included, and μ_k is the mean of their models. p is a unit vector. It works against rules that look at distances,
    known or unknown. Rules that judge by loss are hardly harmed.

    Knows: The models that each victim hears, and the victim's last model.
    Cost: O(n² d) per victim and round, if it hears n agents and models have d parameters.

    Example:
        >>> from varangian import attacks
        >>> attacks.min_sum(deviation="unit")
        min_sum(deviation='unit', factor=1.0)

    Reference:
        Shejwalkar and Houmansadr, "Manipulating the Byzantine: optimizing model poisoning attacks and defenses
        for federated learning", NDSS 2021. https://doi.org/10.14722/ndss.2021.24498
    """

    deviation: Deviation = "std"
    """The direction p: against the spread of honest models ("std"), their mean change ("unit"), or its signs
    ("sign")."""
    factor: float = 1.0
    """How far to go, in units of γ; 1 is the largest that hides."""

    knows: ClassVar[tuple[Knowledge, ...]] = ("messages",)
    local: ClassVar[bool] = True
    strength: ClassVar[str] = "factor"
    strengths: ClassVar[tuple[float, ...]] = (0.03, 0.1, 0.3, 3.0, 10.0)

    def workspace(self, slots: int, shared: int) -> int:
        return pairs(slots, tables=3)

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToEach, tuple[()]]:
        def craft(around: Company) -> Tensor:
            p = _deviation(around, view, self.deviation)
            honest = around.honest.to(p.dtype)
            largest = (around.squared_distances * honest[:, None]).sum(2).amax(1, keepdim=True)
            square = (around.mean[:, None] - around.models).square().sum(2)
            room = (largest - (square * honest).sum(1, keepdim=True)).clamp(min=0)
            return around.mean + self.factor * (room / around.count).sqrt() * p

        return ToEach(to_each(view, craft)), state


def _deviation(around: Company, view: View, kind: Deviation) -> Float[Tensor, "victim parameter"]:
    """The unit vector p; zero where there is no direction."""
    change = around.mean - view.previous[around.victim]
    p = around.spread if kind == "std" else change.sign() if kind == "sign" else change
    # In two steps, because squares of tiny numbers vanish and squares of large ones overflow.
    largest = p.abs().amax(1, keepdim=True)
    return -normalize(p / torch.where(largest > 0, largest, 1))


class Choosing(NamedTuple):
    """How `mimic` looks for the agent to copy, for each Byzantine sender."""

    direction: Own
    """z: where honest models vary most."""
    copied: Int[Tensor, " byzantine"]
    """The agent that was copied last."""
    rounds: Float[Tensor, " byzantine"]
    """How many rounds the search has lasted."""


@dataclass(frozen=True)
class mimic:
    """All Byzantine agents of a network copy one honest agent, so that it counts too often.

    Equation:
        m_b = θ̂_s
        s = argmax_l |zᵀ (θ̂_l − μ)|  in the first T rounds, then fixed
        z ∝ i z_{i−1} + w / ‖w‖
        w = Σ_l (θ̂_l − μ) (θ̂_l − μ)ᵀ z_{i−1}

    μ is the mean of the honest models of the network. The unit vector z follows the direction in which they vary
    most, by one step of a power iteration in each of the first rounds i = 0, …, T − 1. It starts towards the model
    farthest from μ. After these rounds the agents stay with the last s. The paper looks at gradients, and smooths μ
    too. Nothing that is sent is false. It works against rules that a crowd persuades, where tasks differ.

    Knows: All honest models.
    Cost: O(N d) per network and round, for N agents and models of d parameters.

    Example:
        >>> from varangian import attacks
        >>> attacks.mimic(agent=3)
        mimic(agent=3, warmup=100)

    Reference:
        Karimireddy, He and Jaggi, "Byzantine-robust learning on heterogeneous datasets via bucketing", ICLR 2022.
        https://arxiv.org/abs/2006.09365
    """

    agent: int | None = None
    """The number of the agent to copy. By default agent s of the equation."""
    warmup: int = 100
    """T: how many rounds to look for s."""

    knows: ClassVar[tuple[Knowledge, ...]] = ("messages",)

    def __post_init__(self) -> None:
        if self.agent is not None and self.agent < 0:
            raise BadInput(f"mimic needs the number of an agent, 0 or more, but agent is {self.agent}")
        if self.warmup < 1:
            raise BadInput(f"mimic needs at least one round to choose an agent, but warmup is {self.warmup}")

    def init(self, own: Own) -> Choosing:
        nobody = torch.zeros(len(own), dtype=torch.long, device=own.device)
        return Choosing(torch.zeros_like(own), nobody, own.new_zeros(len(own)))

    def send(self, view: View, state: Choosing) -> tuple[ToAll, Choosing]:
        networks = networks_of(view)
        if self.agent is not None:
            return ToAll(view.adapted[networks.numbered(self.agent, "mimic")][networks.of_sender]), state
        _, gap = networks.centred(view.adapted)
        rows = torch.arange(len(gap), device=gap.device)
        farthest = gap[rows, gap.square().sum(2).argmax(1)]
        before, target, rounds = (part[networks.speaker] for part in state)
        # In the first round there is no direction yet, so start towards the farthest model.
        begun = before.abs().amax(1, keepdim=True) > 0
        direction = normalize(torch.where(begun, before, farthest))
        along = (gap @ direction[:, :, None])[:, :, 0]
        direction = normalize(rounds[:, None] * direction + normalize((along[:, None] @ gap)[:, 0]))
        along = (gap @ direction[:, :, None])[:, :, 0].abs().masked_fill(~networks.present, -1)
        copied = torch.where(rounds < self.warmup, networks.member[rows, along.argmax(1)], target)
        after = Choosing(direction, copied, rounds + 1)
        return ToAll(view.adapted[copied][networks.of_sender]), Choosing(*(part[networks.of_sender] for part in after))
