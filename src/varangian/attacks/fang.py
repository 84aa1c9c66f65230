"""Two attacks made for one rule each: trimmed mean and Krum. Each victim is its own server, as in `statistical`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from varangian.attacks.base import Knowledge, View
from varangian.attacks.victims import Company, sender_row, to_each
from varangian.core.errors import BadInput
from varangian.core.messages import ToEach
from varangian.rules.base import pairs

Own = Float[Tensor, "byzantine parameter"]


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

    knows: ClassVar[tuple[Knowledge, ...]] = ("messages",)
    local: ClassVar[bool] = True
    strength: ClassVar[str] = "b"
    strengths: ClassVar[tuple[float, ...]] = (1.01, 1.1, 1.3, 4.0, 10.0, 100.0)

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

    Knows: The models that each victim hears, and the victim's last model. It supposes that the rule is Krum.
    Cost: O(n² (d + halvings)) per victim and round, for models of d parameters.

    Example:
        >>> from varangian import attacks
        >>> attacks.fang_krum(halvings=10)
        fang_krum(halvings=10, factor=1.0)

    Reference:
        Fang, Cao, Jia and Gong, "Local model poisoning attacks to Byzantine-robust federated learning", USENIX
        Security 2020. https://arxiv.org/abs/1911.11815
    """

    halvings: int = 20
    """How often to halve λ at most."""
    factor: float = 1.0
    """How far to go, in units of λ; 1 is the largest tried length that Krum selects."""

    knows: ClassVar[tuple[Knowledge, ...]] = ("messages",)
    local: ClassVar[bool] = True
    strength: ClassVar[str] = "factor"
    strengths: ClassVar[tuple[float, ...]] = (0.03, 0.1, 0.3, 3.0, 10.0)

    def __post_init__(self) -> None:
        if self.halvings < 0:
            raise BadInput(f"fang-krum: halvings must not be negative, but is {self.halvings}")

    def workspace(self, slots: int, shared: int) -> int:
        return pairs(slots, tables=7)

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToEach, tuple[()]]:
        def craft(around: Company) -> Tensor:
            start = view.previous[around.victim]
            against = torch.where(around.mean >= start, -1.0, 1.0).to(start.dtype)
            return start + self.factor * self._length(around, start, against)[:, None] * against

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
