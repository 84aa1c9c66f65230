"""Attacks that hide in the statistics of the honest models around a victim.

They work against rules that trust the majority or the nearest models. The papers attack a server that averages
gradients. Here every victim is its own server, and agents send models instead of gradients. Means, standard deviations
and distances are therefore taken over the victim and its honest neighbours. Where a paper has an aggregated gradient,
these attacks use the change from the victim's last model θ_k to the adapted models θ̂ around it. All Byzantine
neighbours of a victim send it the same message; only `fang_trimmed_mean` draws one for each sender.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize, pad

from varangian.attacks.base import View
from varangian.attacks.victims import Company, networks_of, sender_row, to_each
from varangian.core.messages import ToAll, ToEach
from varangian.errors import BadInput

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
    between 0.5 and 0.99. With few Byzantine neighbours z is 0, and the message is the mean itself. It works against
    medians, trimmed means and other rules that look for outliers. Rules that judge by loss are hardly harmed.

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

    local: ClassVar[bool] = True

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
    backwards. It works against rules that look at distances only. Rules that judge by loss are hardly harmed.

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

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToEach, tuple[()]]:
        change = to_each(view, lambda around: around.mean, view.adapted - view.previous)
        return ToEach(view.previous[view.receiver] - self.epsilon * change), state


@dataclass(frozen=True)
class fang_trimmed_mean:
    """Sends, in every coordinate, a number just beyond the honest extreme that opposes the honest change.

    Equation:
        m_k ~ U(low / b, low)  if μ_k ≥ θ_k and low > 0
        m_k ~ U(b · low, low)  if μ_k ≥ θ_k and low ≤ 0
        m_k ~ U(high, b · high)  if μ_k < θ_k and high > 0
        m_k ~ U(high, high / b)  if μ_k < θ_k and high ≤ 0

    Two-faced: each victim k hears different messages, and each sender draws its own. In a coordinate, μ_k, low and
    high are the mean, the smallest and the largest of the honest models that k hears, its own included. The messages
    are so near to honest models that trimming them away also trims honest ones. It works against trimmed means and
    medians. Rules that judge by loss are hardly harmed.

    Knows: The models that each victim hears, and the victim's last model.
    Cost: O(n d) per victim and round, if it hears n agents and models have d parameters.

    Example:
        >>> from varangian import attacks
        >>> attacks.fang_trimmed_mean(b=4.0)
        fang_trimmed_mean(b=4.0)

    Reference:
        Fang, Cao, Jia and Gong, "Local model poisoning attacks to Byzantine-robust federated learning", USENIX
        Security 2020. https://arxiv.org/abs/1911.11815
    """

    b: float = 2.0
    """How far to go beyond the extreme, as a factor above 1."""

    local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 1 < self.b < float("inf"):
            raise BadInput(f"fang-trimmed-mean needs a finite factor b > 1, but b is {self.b}")

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToEach, tuple[()]]:
        def craft(around: Company) -> Float[Tensor, "victim 2 parameter"]:
            low, high = around.models.amin(1), around.models.amax(1)
            below = torch.where(low > 0, low / self.b, low * self.b)
            above = torch.where(high > 0, high * self.b, high / self.b)
            grows = around.mean >= view.previous[around.victim]
            return torch.stack((torch.where(grows, low, high), torch.where(grows, below, above)), 1)

        bounds = to_each(view, craft) if len(view.sender) else view.adapted[view.sender][:, None].expand(-1, 2, -1)
        lot = view.uniform("fang trimmed mean attack")[sender_row(view)]
        return ToEach(bounds[:, 0].lerp(bounds[:, 1], lot)), state


@dataclass(frozen=True)
class fang_krum:
    """Sends each victim its own last model, moved against the honest change as far as Krum still selects it.

    Equation:
        m_k = θ_k − λ sign(μ_k − θ_k)
        λ_0 = sqrt{s / ((n − 2f − 1) d)} + max_l ‖θ̂_l − θ_k‖ / √d

    Two-faced: each victim k hears a different message. μ_k is the mean of the n − f honest models that k hears, its
    own included, and s is the lowest Krum score among them. A score is the sum of squared distances to the n − f − 2
    nearest others, at least one. d is the number of parameters, and n − 2f − 1 counts as at least 1. λ starts at the
    paper's bound λ_0 and is halved until the f equal messages have the lowest score. If that never happens, the
    smallest λ tried is sent. It works against Krum. Rules that judge by loss are hardly harmed.

    Knows: The models that each victim hears, the victim's last model, and that the rule is Krum.
    Cost: O(n² (d + halvings)) per victim and round, for models of d parameters.

    Example:
        >>> from varangian import attacks
        >>> attacks.fang_krum(halvings=10)
        fang_krum(halvings=10)

    Reference:
        Fang, Cao, Jia and Gong, "Local model poisoning attacks to Byzantine-robust federated learning", USENIX
        Security 2020. https://arxiv.org/abs/1911.11815
    """

    halvings: int = 20
    """How often to halve λ at most."""

    local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.halvings < 0:
            raise BadInput(f"fang-krum: halvings must not be negative, but is {self.halvings}")

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToEach, tuple[()]]:
        def craft(around: Company) -> Tensor:
            start = view.previous[around.victim]
            against = torch.where(around.mean >= start, -1.0, 1.0).to(start.dtype)
            return start + self._length(around, start, against)[:, None] * against

        return ToEach(to_each(view, craft)), state

    def _length(self, around: Company, start: Tensor, against: Tensor) -> Float[Tensor, " victim"]:
        """λ, from distances only: ‖θ_k + λ s − θ̂_l‖² = ‖θ_k − θ̂_l‖² + 2 λ sᵀ(θ_k − θ̂_l) + λ² d."""
        n, f, d = around.heard, around.liars, start.shape[1]
        gap = start[:, None] - around.models
        square, along = gap.square().sum(2), (gap * against[:, None]).sum(2)
        near = (n - f - 2).clamp(min=1)
        nobody = ~around.honest
        itself = torch.eye(nobody.shape[1], dtype=torch.bool, device=nobody.device)
        others = around.squared_distances.masked_fill(itself | nobody[:, None] | nobody[:, :, None], torch.inf)
        honest = _prefix_sums(others.sort(2).values)
        # Theorem 1 of the paper's appendix. In small neighbourhoods the denominator is kept above zero.
        closest = _at(honest, near[:, None].expand_as(around.honest)).masked_fill(nobody, torch.inf).amin(1)
        closest = torch.where(closest < torch.inf, closest, 0)
        room = (n - 2 * f - 1).clamp(min=1)
        first = (closest / (room * d)).sqrt() + (square.amax(1) / d).sqrt()
        # The score of an honest model if c of the Byzantine messages are among its nearest, for the best c.
        lies = torch.arange(honest.shape[2], device=n.device)
        using = (near[:, None] - lies).clamp(min=0)
        possible = (lies <= f[:, None]) & (lies <= near[:, None])
        without = honest.gather(2, using.clamp(max=honest.shape[2] - 1)[:, None].expand(-1, honest.shape[1], -1))
        without = without.masked_fill(~possible[:, None], torch.inf)
        length = torch.zeros_like(first)
        for halving in range(self.halvings + 1):
            tried = first * 0.5**halving
            away = (square + 2 * tried[:, None] * along + tried.square()[:, None] * d).clamp(min=0)
            of_honest = (without + lies * away[:, :, None]).amin(2).masked_fill(nobody, torch.inf).amin(1)
            to_honest = _prefix_sums(away.masked_fill(nobody, torch.inf).sort(1).values)
            of_lie = _at(to_honest, (near - (f - 1)).clamp(min=0))
            picked = (of_lie <= of_honest) | (halving == self.halvings)
            length = torch.where((length == 0) & picked, tried, length)
        return length


def _prefix_sums(values: Tensor) -> Tensor:
    """Sums of the first 0, 1, 2, … values along the last dimension."""
    return pad(values.cumsum(-1), (1, 0))


def _at(sums: Tensor, place: Tensor) -> Tensor:
    return sums.gather(-1, place.clamp(max=sums.shape[-1] - 1)[..., None])[..., 0]


@dataclass(frozen=True)
class min_max:
    """Sends a model as far from the honest mean as the most distant honest models are from each other.

    Equation:
        m_k = μ_k + γ p
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
        min_max(deviation='sign')

    Reference:
        Shejwalkar and Houmansadr, "Manipulating the Byzantine: optimizing model poisoning attacks and defenses
        for federated learning", NDSS 2021. https://doi.org/10.14722/ndss.2021.24498
    """

    deviation: Deviation = "std"
    """The direction p: against the spread of honest models ("std"), their mean change ("unit"), or its signs
    ("sign")."""

    local: ClassVar[bool] = True

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToEach, tuple[()]]:
        def craft(around: Company) -> Tensor:
            p = _deviation(around, view, self.deviation)
            gap = around.mean[:, None] - around.models
            square, along = gap.square().sum(2), (gap * p[:, None]).sum(2)
            widest = around.squared_distances.amax((1, 2))[:, None]
            gamma = (along.square() + (widest - square).clamp(min=0)).sqrt() - along
            return around.mean + gamma.amin(1, keepdim=True) * p

        return ToEach(to_each(view, craft)), state


@dataclass(frozen=True)
class min_sum:
    """Sends a model whose squared distances to the honest models sum to no more than an honest model's.

    Equation:
        m_k = μ_k + γ p
        γ² = (1 / (n − f)) (max_i Σ_l ‖θ̂_i − θ̂_l‖² − Σ_l ‖μ_k − θ̂_l‖²)

    Two-faced: each victim k hears a different message. i and l are the n − f honest agents that k hears, itself
    included, and μ_k is the mean of their models. p is a unit vector. It works against rules that look at distances,
    known or unknown. Rules that judge by loss are hardly harmed.

    Knows: The models that each victim hears, and the victim's last model.
    Cost: O(n² d) per victim and round, if it hears n agents and models have d parameters.

    Example:
        >>> from varangian import attacks
        >>> attacks.min_sum(deviation="unit")
        min_sum(deviation='unit')

    Reference:
        Shejwalkar and Houmansadr, "Manipulating the Byzantine: optimizing model poisoning attacks and defenses
        for federated learning", NDSS 2021. https://doi.org/10.14722/ndss.2021.24498
    """

    deviation: Deviation = "std"
    """The direction p: against the spread of honest models ("std"), their mean change ("unit"), or its signs
    ("sign")."""

    local: ClassVar[bool] = True

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToEach, tuple[()]]:
        def craft(around: Company) -> Tensor:
            p = _deviation(around, view, self.deviation)
            honest = around.honest.to(p.dtype)
            largest = (around.squared_distances * honest[:, None]).sum(2).amax(1, keepdim=True)
            square = (around.mean[:, None] - around.models).square().sum(2)
            room = (largest - (square * honest).sum(1, keepdim=True)).clamp(min=0)
            return around.mean + (room / around.count).sqrt() * p

        return ToEach(to_each(view, craft)), state


def _deviation(around: Company, view: View, kind: Deviation) -> Float[Tensor, "victim parameter"]:
    """The unit vector p; zero where there is no direction."""
    change = around.mean - view.previous[around.victim]
    p = around.spread if kind == "std" else change.sign() if kind == "sign" else change
    # In two steps, because squares of tiny numbers vanish and squares of large ones overflow.
    largest = p.abs().amax(1, keepdim=True)
    return -normalize(p / torch.where(largest > 0, largest, 1))


@dataclass(frozen=True)
class mimic:
    """All Byzantine agents of a network copy one honest agent, so that it counts too often.

    Equation:
        m_b = θ̂_s
        s = argmax_l |zᵀ (θ̂_l − μ)|
        z ∝ z_{i−1} + w / ‖w‖
        w = Σ_l (θ̂_l − μ) (θ̂_l − μ)ᵀ z_{i−1}

    μ is the mean of the honest models of the network. The unit vector z follows the direction in which they vary
    most, by one step of a power iteration in every round i. It starts towards the model farthest from μ. Nothing that
    is sent is false. It works against rules that a crowd persuades, where tasks differ.

    Knows: All honest models.
    Cost: O(N d) per network and round, for N agents and models of d parameters.

    Example:
        >>> from varangian import attacks
        >>> attacks.mimic(agent=3)
        mimic(agent=3)

    Reference:
        Karimireddy, He and Jaggi, "Byzantine-robust learning on heterogeneous datasets via bucketing", ICLR 2022.
        https://arxiv.org/abs/2006.09365
    """

    agent: int | None = None
    """The number of the agent to copy. By default agent s of the equation."""

    def __post_init__(self) -> None:
        if self.agent is not None and self.agent < 0:
            raise BadInput(f"mimic needs the number of an agent, 0 or more, but agent is {self.agent}")

    def init(self, own: Own) -> tuple[Own]:
        return (torch.zeros_like(own),)

    def send(self, view: View, state: tuple[Own]) -> tuple[ToAll, tuple[Own]]:
        networks = networks_of(view)
        if self.agent is not None:
            return ToAll(view.adapted[networks.numbered(self.agent, "mimic")][networks.of_sender]), state
        _, gap = networks.centred(view.adapted)
        rows = torch.arange(len(gap), device=gap.device)
        farthest = gap[rows, gap.square().sum(2).argmax(1)]
        before = state[0][networks.speaker]
        # In the first round there is no direction yet, so start towards the farthest model.
        begun = before.abs().amax(1, keepdim=True) > 0
        direction = normalize(torch.where(begun, before, farthest))
        along = (gap @ direction[:, :, None])[:, :, 0]
        direction = normalize(direction + normalize((along[:, None] @ gap)[:, 0]))
        along = (gap @ direction[:, :, None])[:, :, 0].abs().masked_fill(~networks.present, -1)
        copied = networks.member[rows, along.argmax(1)]
        return ToAll(view.adapted[copied][networks.of_sender]), (direction[networks.of_sender],)
