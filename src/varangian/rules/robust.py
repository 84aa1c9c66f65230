"""The robust functions of `varangian.robust` as learning rules: each agent applies one to its own model and those it
heard.

These functions were made for a server that averages the gradients of workers with one task. Most treat the agent's own
model as one vector among others. An agent in the minority therefore follows the majority, whether that has another task
or is Byzantine.

f is the number of Byzantine neighbours to tolerate, as a whole number or as a share. If a neighbourhood is too small
for f, f is lowered to the largest number that it can tolerate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from varangian import robust
from varangian.core.errors import BadInput
from varangian.core.inbox import Inbox, OfNeighbourhoods
from varangian.rules.base import pairs
from varangian.rules.evidence import Table
from varangian.rules.neighbourhoods import check_tolerated, tolerated
from varangian.rules.robust_steps import (
    Mask,
    Messages,
    Stateless,
    in_place,
    nearest_first,
    weighed,
)


@dataclass(frozen=True)
class median:
    """The coordinate-wise median of one's own model and all models heard.

    Equation:
        θ_k[j] = median_{l∈N_k} θ̂_l[j]

    For an even number of models, it is the mean of the two middle values. Every coordinate stays within the range of
    the honest models while they are the majority. No f is needed.

    Limits: agents agree only slowly where neighbourhoods are small. With several tasks, the majority task wins.

    Assumes: An honest majority in N_k, with the same task.
    Cost: |N_k| (log |N_k|)² d comparisons.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.median(), rounds=5)

    Reference:
        Yin, Chen, Ramchandran and Bartlett, "Byzantine-robust distributed learning: towards optimal statistical rates",
        ICML 2018. https://arxiv.org/abs/1803.01498
    """

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Stateless:
        return in_place(inbox, lambda messages, heard: robust.median(messages, mask=heard), any_order=True)


@dataclass(frozen=True)
class trimmed_mean:
    """BRIDGE-T: the mean of one's own value and the neighbours' values without the f largest and the f smallest.

    Equation:
        x_1 ≤ x_2 ≤ … ≤ x_m  the sorted θ̂_l[j] of the neighbours
        θ_k[j] = mean(θ̂_k[j], x_{f+1}, …, x_{m−f})

    Every coordinate j is treated by itself, and m is the number of neighbours heard. The agent's own value is never
    trimmed. With `keep_own=False`, it is sorted and trimmed with the others, as a server would do.

    Assumes: At most f Byzantine neighbours, 2f < m, and one task.
    Cost: |N_k| (log |N_k|)² d comparisons.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.trimmed_mean(f=1), rounds=5)

    Reference:
        Yin, Chen, Ramchandran and Bartlett, "Byzantine-robust distributed learning: towards optimal statistical rates",
        ICML 2018. https://arxiv.org/abs/1803.01498 In networks: Fang, Yang and Bajwa, "BRIDGE: Byzantine-resilient
        decentralized gradient descent", IEEE Transactions on Signal and Information Processing over Networks 2022.
        https://arxiv.org/abs/1908.08098
    """

    f: float = 0.2
    """f: how many Byzantine neighbours to tolerate, as a whole number or as a share below 1."""
    keep_own: bool = True
    """Whether the agent's own values always count, as in BRIDGE-T."""

    def __post_init__(self) -> None:
        check_tolerated(self.f)

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Stateless:
        def of_all(messages: Messages, heard: Mask | None, f: int | Tensor) -> Tensor:
            return robust.trimmed_mean(messages, f, mask=heard)

        def with_own(messages: Messages, heard: Mask, f: Tensor) -> Tensor:
            own, neighbours = messages[:, 0], heard[:, 1:].sum(1)
            if messages.shape[1] == 1:
                return own
            trimmed = robust.trimmed_mean(messages[:, 1:], f, mask=heard[:, 1:])
            left = neighbours - 2 * f.minimum((neighbours - 1) // 2).clamp(min=0)
            mixed = own.lerp(trimmed, (left / (left + 1)).to(own.dtype)[:, None])
            return torch.where((neighbours > 0)[:, None], mixed, own)

        f = tolerated(self.f, inbox.heard)
        return in_place(inbox, with_own, f) if self.keep_own else in_place(inbox, of_all, f, any_order=True)


@dataclass(frozen=True)
class geometric_median:
    """The point with the smallest sum of distances to one's own model and all models heard.

    Equation:
        θ_k = argmin_z Σ_{l∈N_k} ‖θ̂_l − z‖
        a_lk ∝ 1 / max(‖θ̂_l − z‖, ε)
        z ← Σ_l a_lk θ̂_l

    The last two lines are Weiszfeld's iteration. ε is `smoothing` times the distance of the majority from its middle.
    The result stays bounded while honest models are the majority. Unlike the median, it does not depend on the axes of
    the coordinates.

    Limits: among few neighbours it is often one of the models itself. With several tasks, the majority task wins.
    Copies hold it: where c models are equal, the others must pull with more than c in one direction. Agents without a
    new batch send such copies, as with `krum`. On human activity, where they are nine of thirty, accuracy after eight
    epochs is 52 % (three seeds), against 86 % where all agents train in every round. In one seed, copies had 93 % of
    the weight. They are equal up to rounding only, so comparing bits does not find them.

    Assumes: An honest majority in N_k, with the same task.
    Cost: |N_k|² d operations, and |N_k|² per iteration.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.geometric_median(), rounds=5)

    Reference:
        Pillutla, Kakade and Harchaoui, "Robust aggregation for federated learning" (RFA), IEEE Transactions on Signal
        Processing 2022. https://arxiv.org/abs/1912.13445
    """

    smoothing: float = 1e-6
    """The smallest distance that counts, relative to the distance of the majority from its middle."""
    iterations: int = 20
    """How many iterations every agent takes. With 20, the sum of distances is within 1e-3 of the smallest where few are
    heard, and much nearer elsewhere."""

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < float("inf"):
            raise BadInput(f"smoothing must be 0 or a positive number, but is {self.smoothing}")
        if self.iterations < 1:
            raise BadInput(f"the geometric median needs at least one iteration, but iterations is {self.iterations}")

    def workspace(self, slots: int, shared: int) -> int:
        return pairs(slots, tables=7)

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Stateless:
        def weights(messages: Messages, heard: Mask) -> Tensor:
            # No tolerance: only a CPU would stop early, and results must not depend on the device.
            return robust.geometric_median_weights(
                messages, smoothing=self.smoothing, iterations=self.iterations, tolerance=0, mask=heard
            )

        return weighed(inbox, weights)


@dataclass(frozen=True)
class centerpoint:
    """A point deep among one's own model and all models heard: every half-space that contains it holds many of them.

    Equation:
        depth(z) = min_{u≠0} |{l ∈ N_k : uᵀ(θ̂_l − z) ≥ 0}|
        depth(θ_k) ≥ |N_k| / (d + 1)  for d ≤ 2
        depth(θ_k) ≥ 2^h  for d ≥ 3

    h is ⌊log |N_k| / log(d + 2)⌋. A point of depth p stays in the convex hull of the honest models while fewer than p
    agents are Byzantine. From three dimensions on, the point is an iterated Radon point over groups of d + 2 models,
    the nearest first.

    Limits: in many dimensions the depth is small. Where 3 ≤ d and |N_k| < d + 2, there is not even one Radon point, and
    the rule is the geometric median. In human activity that is always so: 30 models of 3,366 parameters. The rule is
    for few parameters and many neighbours.

    Assumes: Fewer Byzantine neighbours than the depth above, and one task.
    Cost: |N_k|³ operations in the plane, |N_k| d² beyond.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.centerpoint(), rounds=5)

    Reference:
        Li, Abbas, Shabbir and Koutsoukos, "Resilient distributed diffusion for multi-robot systems using centerpoint",
        RSS 2020, http://www.roboticsproceedings.org/rss16/p021.html. Radon points: Clarkson, Eppstein, Miller,
        Sturtivant and Teng, "Approximating center points with iterative Radon points", International Journal of
        Computational Geometry & Applications 6, 1996.
    """

    def workspace(self, slots: int, shared: int) -> int:
        return 0 if shared == 1 else pairs(slots, tables=2 * slots if shared == 2 else 7)

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Stateless:
        nearest, _ = nearest_first(inbox)
        return in_place(nearest, lambda messages, heard: robust.centerpoint(messages, mask=heard))


@dataclass(frozen=True)
class nearest_neighbour_mixing:
    """Replace every model by the mean of those nearest to it, then apply another robust function.

    Equation:
        C_l = the |N_k| − f models nearest to θ̂_l
        y_l = mean_{m∈C_l} θ̂_m
        θ_k = then({y_l : l ∈ N_k})

    C_l contains θ̂_l itself. Mixing brings the error of the function that follows to the best possible order, f /
    |N_k|.

    Assumes: At most f Byzantine neighbours and one task. 2f < |N_k|, or 2f + 2 < |N_k| before Krum.
    Cost: |N_k|² d operations, and those of the function that follows.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.nearest_neighbour_mixing(f=1), rounds=5)

    Reference:
        Allouah, Farhadkhani, Guerraoui, Gupta, Pinot and Stephan, "Fixing by mixing: a recipe for optimal Byzantine ML
        under heterogeneity", AISTATS 2023. https://proceedings.mlr.press/v206/allouah23a.html
    """

    then: Literal["trimmed-mean", "median", "geometric-median", "krum"] = "trimmed-mean"
    """The robust function that follows."""
    f: float = 0.2
    """f: how many Byzantine neighbours to tolerate, as a whole number or as a share below 1."""

    def __post_init__(self) -> None:
        check_tolerated(self.f)
        if self.then not in _THEN:
            raise BadInput(f"mixing can be followed by {', '.join(_THEN)}, but then is {self.then!r}")

    def workspace(self, slots: int, shared: int) -> int:
        return pairs(slots, tables=7)

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Stateless:
        def mixed_then(messages: Messages, heard: Mask, f: Tensor) -> Tensor:
            return _THEN[self.then](robust.nearest_neighbour_mixing(messages, f, mask=heard), heard, f)

        return in_place(inbox, mixed_then, tolerated(self.f, inbox.heard))


_THEN: Mapping[str, OfNeighbourhoods] = {
    "trimmed-mean": lambda mixed, heard, f: robust.trimmed_mean(mixed, f, mask=heard),
    "median": lambda mixed, heard, f: robust.median(mixed, mask=heard),
    "geometric-median": lambda mixed, heard, f: robust.geometric_median(mixed, iterations=20, tolerance=0, mask=heard),
    "krum": lambda mixed, heard, f: robust.krum(mixed, f, mask=heard),
}
