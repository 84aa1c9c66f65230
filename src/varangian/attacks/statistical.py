"""Lies that hide in the statistics of what is honest around a victim: against rules that trust the many, or the near.

The papers attack a server that averages gradients. Here a victim is its own server: it hears its closed neighbourhood,
and models travel instead of gradients. Means, spreads and distances are therefore taken over the victim's honest
neighbours and the victim itself, and what a paper says of an aggregated gradient is said of a change of models, from
the victim's last model θ_k to the adapted models θ̂ around it. All Byzantine neighbours of a victim tell it the same.
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
"""Which way to leave the mean: along the spread of the honest models, or against their mean change, as it is or
coordinate by coordinate."""


@dataclass(frozen=True)
class alie:
    """Two-faced: just so far from the mean around each neighbour, μ − z σ, that it passes for one of many.

    μ and σ are the mean and the standard deviation, coordinate by coordinate, of the n − f honest models that the
    victim hears, its own included. Unless given, z is as large as a majority allows,
    Φ(z) = (n − ⌊n/2 + 1⌋)/(n − f), between the median and the 99th percentile. Omniscient; against medians, trimmed
    means and everything that looks for outliers. One liar among many has little room: z = 0 is the mean itself.

    Baruch, Baruch, Goldberg: A little is enough. NeurIPS 2019.
    """

    z: float | None = None
    """How many standard deviations; the most that hides among n with f liars unless given."""

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
    """Two-faced: each neighbour's last model moved against what is learnt around it, θ_k − ε · mean(θ̂_l − θ_l).

    The paper sends −ε times the mean honest gradient; a model's change θ̂_l − θ_l stands for the gradient step, and the
    victim's last model θ_k for the server's. A small ε hides among honest models, ε above (n − f)/f turns the
    average around. Omniscient; against rules that look at distances only.

    Xie, Koyejo, Gupta: Fall of empires. UAI 2019.
    """

    epsilon: float = 0.5

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToEach, tuple[()]]:
        change = to_each(view, lambda around: around.mean, view.adapted - view.previous)
        return ToEach(view.previous[view.receiver] - self.epsilon * change), state


@dataclass(frozen=True)
class fang_trimmed_mean:
    """Two-faced: in every coordinate a little beyond the honest extreme that lies against the honest change.

    Where models around the victim grow, mean(θ̂_l) ≥ θ_k, a number drawn between their smallest, m, and m/b if m > 0,
    b·m if not; where they shrink, between their largest, M, and b·M if M > 0, M/b if not. Omniscient; against trimmed
    means and medians: what is sent is not so far away that cutting it off costs nothing.

    Fang, Cao, Jia, Gong: Local model poisoning attacks to Byzantine-robust federated learning. USENIX Security 2020.
    """

    b: float = 2.0
    """How far beyond the extreme."""

    local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 1 < self.b < float("inf"):
            raise BadInput(f"fang-trimmed-mean goes b > 1 times as far as honest models, but b is {self.b}")

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
    """Two-faced: as far against the honest change as Krum still picks, θ_k − λ · sign(mean(θ̂_l) − θ_k).

    λ starts from the paper's upper bound and is halved until the f equal lies have the lowest score of the victim's
    neighbourhood, the score being the sum of squared distances to the n − f − 2 nearest others (at least one); the
    largest λ that is picked is taken, the smallest tried where none is. Omniscient; against Krum.

    Fang, Cao, Jia, Gong: Local model poisoning attacks to Byzantine-robust federated learning. USENIX Security 2020.
    """

    halvings: int = 20

    local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.halvings < 0:
            raise BadInput(f"fang-krum cannot halve λ {self.halvings} times; halvings must not be negative")

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToEach, tuple[()]]:
        def craft(around: Company) -> Tensor:
            start = view.previous[around.victim]
            against = torch.where(around.mean >= start, -1.0, 1.0).to(start.dtype)
            return start + self._length(around, start, against)[:, None] * against

        return ToEach(to_each(view, craft)), state

    def _length(self, around: Company, start: Tensor, against: Tensor) -> Float[Tensor, " victim"]:
        """λ, from distances alone: ‖θ_k + λ s − θ̂_l‖² = ‖θ_k − θ̂_l‖² + 2 λ sᵀ(θ_k − θ̂_l) + λ² d."""
        n, f, d = around.heard, around.liars, start.shape[1]
        gap = start[:, None] - around.models
        square, along = gap.square().sum(2), (gap * against[:, None]).sum(2)
        near = (n - f - 2).clamp(min=1)
        nobody = ~around.honest
        itself = torch.eye(nobody.shape[1], dtype=torch.bool, device=nobody.device)
        others = around.squared_distances.masked_fill(itself | nobody[:, None] | nobody[:, :, None], torch.inf)
        honest = _prefix_sums(others.sort(2).values)
        # Theorem 1 of the paper's appendix, with the denominator of small neighbourhoods kept above zero.
        closest = _at(honest, near[:, None].expand_as(around.honest)).masked_fill(nobody, torch.inf).amin(1)
        closest = torch.where(closest < torch.inf, closest, 0)
        room = (n - 2 * f - 1).clamp(min=1)
        first = (closest / (room * d)).sqrt() + (square.amax(1) / d).sqrt()
        # An honest model's score with c of the lies among its nearest, whatever c makes it lowest.
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
    """Sums of the first 0, 1, 2, … along the last dimension."""
    return pad(values.cumsum(-1), (1, 0))


def _at(sums: Tensor, place: Tensor) -> Tensor:
    return sums.gather(-1, place.clamp(max=sums.shape[-1] - 1)[..., None])[..., 0]


@dataclass(frozen=True)
class min_max:
    """Two-faced: as far from the mean as no honest model is farther than honest models are from each other.

    μ + γ p with the largest γ for which max_l ‖μ + γ p − θ̂_l‖ ≤ max_ij ‖θ̂_i − θ̂_j‖, over the honest around the victim.
    The condition is quadratic in γ for each l, so γ is computed where the paper searches for it. Omniscient; against
    any rule that looks at distances, known or not.

    Shejwalkar, Houmansadr: Manipulating the Byzantine. NDSS 2021.
    """

    deviation: Deviation = "std"

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
    """Two-faced: as far from the mean as its squared distances to honest models sum to no more than an honest one's.

    μ + γ p with the largest γ for which Σ_l ‖μ + γ p − θ̂_l‖² ≤ max_i Σ_l ‖θ̂_i − θ̂_l‖², over the honest around the
    victim: γ² = (max_i Σ_l ‖θ̂_i − θ̂_l‖² − Σ_l ‖μ − θ̂_l‖²) / (n − f), p of unit length. Omniscient; against any
    rule that looks at distances, known or not.

    Shejwalkar, Houmansadr: Manipulating the Byzantine. NDSS 2021.
    """

    deviation: Deviation = "std"

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
    """A unit vector p; zero where there is no direction."""
    change = around.mean - view.previous[around.victim]
    p = around.spread if kind == "std" else change.sign() if kind == "sign" else change
    # In two steps, for squares of tiny numbers vanish and those of large ones overflow.
    largest = p.abs().amax(1, keepdim=True)
    return -normalize(p / torch.where(largest > 0, largest, 1))


@dataclass(frozen=True)
class mimic:
    """All Byzantine agents of a network copy one honest agent: nothing they send is false, but it counts too often.

    Whom they copy is the honest agent with the largest projection |zᵀ(θ̂_l − μ)| on the direction z in which honest
    models of the network vary most, which is followed by one step of a power iteration a round. Omniscient; against
    rules that a crowd persuades, where tasks differ.

    Karimireddy, He, Jaggi: Byzantine-robust learning on heterogeneous datasets via bucketing. ICLR 2022.
    """

    agent: int | None = None
    """The agent to copy, by its number; as above unless given."""

    def __post_init__(self) -> None:
        if self.agent is not None and self.agent < 0:
            raise BadInput(f"mimic copies an agent by its number, 0 or more, but agent is {self.agent}")

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
        # Before the first step there is no direction yet: the farthest model gives one.
        begun = before.abs().amax(1, keepdim=True) > 0
        direction = normalize(torch.where(begun, before, farthest))
        along = (gap @ direction[:, :, None])[:, :, 0]
        direction = normalize(direction + normalize((along[:, None] @ gap)[:, 0]))
        along = (gap @ direction[:, :, None])[:, :, 0].abs().masked_fill(~networks.present, -1)
        copied = networks.member[rows, along.argmax(1)]
        return ToAll(view.adapted[copied][networks.of_sender]), (direction[networks.of_sender],)
