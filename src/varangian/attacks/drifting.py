"""Attacks over many rounds: small errors that all point the same way, so that they add up instead of cancelling.

They start from the history of each victim, its last model θ_k, and stay within the size of honest changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from varangian.attacks.base import Knowledge, View
from varangian.attacks.victims import Company, networks_of, to_each
from varangian.core.errors import BadInput
from varangian.core.messages import ToEach

Own = Float[Tensor, "byzantine parameter"]


@dataclass(frozen=True)
class rop:
    """Relocated orthogonal perturbation: an error at a right angle to the honest change, placed near the last model.

    Equation:
        m_k = ρ θ_k + (1 − ρ) μ_k + z s_k (cos(α) u_k + sin(α) p_k)
        u_k = (μ_k − θ_k) / ‖μ_k − θ_k‖
        p_k ∝ b − (bᵀ u_k) u_k

    Two-faced: each victim k hears a different message. μ_k is the mean of the honest models around k, and s_k their
    root mean square distance from it. θ_k is the victim's last model, p_k a unit vector and α the angle. b is a vector
    of signs, drawn once per network. A clipped message keeps its direction, and a right angle hides it from tests along
    the honest change. The direction hardly changes from round to round, so the errors add up. It works against clipped
    gossip. The paper attacks a server that clips momentum around the last aggregate; here the victim's last model takes
    its place. The paper has ones in b: softmax models do not notice them, since all labels gain the same.

    Knows: The models that each victim hears, and the victim's last model.
    Cost: O(n d) per victim and round, if it hears n agents and models have d parameters.

    Example:
        >>> from varangian import attacks
        >>> attacks.rop(z=2.0)
        rop(z=2.0, angle=90.0, relocation=0.5)

    Reference:
        Özfatura, Özfatura, Küpçü and Gündüz, "Byzantines can also learn from history: fall of centered clipping in
        federated learning", IEEE Transactions on Information Forensics and Security 19, 2024.
        https://arxiv.org/abs/2208.09894
    """

    z: float = 1.0
    """z: the length of the error, in distances of honest models from their mean."""
    angle: float = 90.0
    """α: the angle to the honest change, in degrees."""
    relocation: float = 0.5
    """ρ: where to place the error. 0 is the honest mean, 1 the victim's last model."""

    knows: ClassVar[tuple[Knowledge, ...]] = ("messages",)

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToEach, tuple[()]]:
        turn, signs = math.radians(self.angle), secret_signs(view)

        def craft(around: Company) -> Tensor:
            last = view.previous[around.victim]
            along = normalize(around.mean - last)
            across = normalize(_without(signs[view.network[around.victim]], along))
            size = self.z * around.spread.norm(dim=1, keepdim=True)
            start = around.mean.lerp(last, self.relocation)
            return torch.addcmul(start, size, math.cos(turn) * along + math.sin(turn) * across)

        return ToEach(to_each(view, craft)), state


@dataclass(frozen=True)
class poisoned_fl:
    """Pushes all victims along one secret vector of signs, as far as they have lately moved by themselves.

    Equation:
        m_k = θ_k + c ‖g‖ (v ∘ s)
        g = μ_i − μ_{i−1}
        v ∝ |g − ‖g‖ w / ‖w‖|

    Two-faced: each victim k hears a different message. s is a vector of signs, drawn once per network. μ_i is the mean
    of the normal agents' models θ before round i. w is the push of the last round, and v a unit vector: the size of
    what honest agents add to the push, per coordinate. Pushes of other attacks cancel over the rounds; these add up.
    Every `window` rounds the attack counts the coordinates in which μ moved along s. If chance explains the number, c
    shrinks by 30 percent, down to 0.5. In the first round it sends θ_k. It works against averages and against rules
    that look at one round only. The paper attacks one server; here every victim has its own last model.

    Knows: All models of normal agents.
    Cost: O(N d) per network and round, for N agents and models of d parameters.

    Example:
        >>> from varangian import attacks
        >>> attacks.poisoned_fl(factor=2.0)
        poisoned_fl(factor=2.0, window=50)

    Reference:
        Xie, Fang and Gong, "Model poisoning attacks to federated learning via multi-round consistency", CVPR 2025.
        https://arxiv.org/abs/2404.15611
    """

    factor: float = 8.0
    """c: the length of the push in the beginning, in lengths of the honest change."""
    window: int = 50
    """How many rounds to watch before c may shrink."""

    knows: ClassVar[tuple[Knowledge, ...]] = ("messages",)

    def __post_init__(self) -> None:
        if self.window < 1:
            raise BadInput(f"poisoned-fl watches at least one round, but window is {self.window}")

    def init(self, own: Own) -> tuple[Own, Own, Own, Own]:
        """The last mean, the mean when the window began, the last push, and c, each in the rows of the senders."""
        return torch.zeros_like(own), torch.zeros_like(own), torch.zeros_like(own), torch.full_like(own, self.factor)

    def send(self, view: View, state: tuple[Own, Own, Own, Own]) -> tuple[ToEach, tuple[Own, Own, Own, Own]]:
        networks = networks_of(view)
        last, begun, pushed, factor = (part[networks.speaker] for part in state)
        mean, signs = networks.centred(view.previous)[0], secret_signs(view)
        if view.round == 0:
            last = begun = mean
        change = mean - last
        length = change.norm(dim=1, keepdim=True)
        by_others = (change - length * normalize(pushed)).abs()
        if view.round and view.round % self.window == 0:
            agreeing = ((mean - begun) * signs > 0).sum(1, keepdim=True)
            failed = agreeing < _more_than_chance(signs.shape[1])
            factor = torch.where(failed, (0.7 * factor).clamp(min=min(0.5, self.factor)), factor)
            begun = mean
        push = factor * length * normalize(by_others) * signs
        rows = view.previous[view.receiver] + push[view.network[view.receiver]]
        after = (part[networks.of_sender] for part in (mean, begun, push, factor))
        return ToEach(rows), tuple(after)  # type: ignore[return-value]


@dataclass(frozen=True)
class variance_inflation:
    """Drifts where the victim's own steps do not lead, and makes its loss swing so that no test notices.

    Equation:
        m_k = θ̂_k + drift ‖Δ_k‖ p_k + (−1)^i swing Δ_k
        Δ_k = θ̂_k − θ_k
        p_k ∝ s − (sᵀ Δ_k) Δ_k / ‖Δ_k‖²

    Two-faced: each victim k hears a different message. Δ_k is the victim's own last step. The message overshoots this
    step and undershoots it in turn, every second round i. So its loss is now below and now above that of the victim,
    and the spread excuses a mean that does harm. That harm is the drift along p_k. This unit vector is at a right
    angle to the last step: gradients say little there, so losses hardly tell the drift and steps hardly repair it.
    s is a vector of signs, drawn once per network and kept, so the drift adds up. It works against rules that reject
    a neighbour only after a significance test, such as `paired`, and also against `loss_based`.

    Knows: The adapted and the last model of each victim.
    Cost: O(d) per victim and round, for models of d parameters.

    Example:
        >>> from varangian import attacks
        >>> attacks.variance_inflation(swing=0.5)
        variance_inflation(drift=2.0, swing=0.5)

    Reference:
        Ours. It stands for an adversary that hides in the noise of the test that should detect it.
    """

    drift: float = 2.0
    """The length of the harmful part, in lengths of the victim's step."""
    swing: float = 1.0
    """How far to overshoot and undershoot the victim's step."""

    knows: ClassVar[tuple[Knowledge, ...]] = ("messages",)

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToEach, tuple[()]]:
        victim = view.receiver
        step = view.adapted[victim] - view.previous[victim]
        across = normalize(_without(secret_signs(view)[view.network[victim]], normalize(step)))
        side = self.swing if view.round % 2 == 0 else -self.swing
        length = step.norm(dim=1, keepdim=True)
        return ToEach(view.adapted[victim] + self.drift * length * across + side * step), state


def secret_signs(view: View) -> Float[Tensor, "network parameter"]:
    """One vector of signs per network, drawn by seed. All its Byzantine agents know it, and nobody else does."""
    networks = networks_of(view)
    lots = view.draws.uniform("secret signs", 0, view.adapted.shape[1], view.adapted.dtype)
    # The sign of a sum does not depend on how agents are numbered. Whole numbers add up to the same on every device.
    whole = ((lots - 0.5) * 2**24).long()
    together = whole.new_zeros(len(networks.first), whole.shape[1]).index_add(0, networks.of_sender, whole)
    return torch.where(together >= 0, 1.0, -1.0).to(lots.dtype)


def _without(vector: Tensor, unit: Tensor) -> Tensor:
    """The part of a vector that is orthogonal to a unit vector."""
    return vector - (vector * unit).sum(1, keepdim=True) * unit


def _more_than_chance(coordinates: int) -> int:
    """How many signs of independent coin tosses agree with given ones in at most one of a hundred cases."""
    return min(coordinates, math.ceil(coordinates / 2 + 2.326 * math.sqrt(coordinates) / 2))
