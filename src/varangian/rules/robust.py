"""The robust functions of `varangian.robust` as learning rules: each agent applies one to what it heard and its own.

They were made for a server that averages gradients of workers with one task, and treat the agent's own model as one
vector among others: an agent outvoted by neighbours with another task, or by liars, follows them. f is how many of the
neighbours may lie, as a whole number or as a share; where a neighbourhood is too small for it, it is lowered to the
largest number that it can bear.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from varangian import robust
from varangian.core.inbox import Inbox, OfNeighbourhoods
from varangian.errors import BadInput
from varangian.rules.base import Combined
from varangian.rules.evidence import Table
from varangian.rules.neighbourhoods import check_tolerated, tolerated

Messages = Float[Tensor, "agent slot shared"]
Mask = Bool[Tensor, "agent slot"]
Stateless = Combined[tuple[()]]


@dataclass(frozen=True)
class median:
    """The coordinate-wise median of everyone heard and oneself.

    θ_k[i] = median of θ̂_l[i] over l ∈ N_k; of an even number, the mean of the two in the middle.

    Yin, Chen, Ramchandran and Bartlett, "Byzantine-robust distributed learning: towards optimal statistical rates",
    ICML 2018. Every coordinate stays within the range of the honest while those are more than half. Costs
    |N_k| (log |N_k|)² d comparisons. Needs no f; slow to agree where neighbourhoods are small.
    """

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Stateless:
        return _in_place(inbox, lambda messages, heard: robust.median(messages, mask=heard), any_order=True)


@dataclass(frozen=True)
class trimmed_mean:
    """The mean of each coordinate without its f largest and its f smallest values.

    θ_k[i] = mean of θ̂_l[i] over l ∈ N_k less 2f of them.

    Yin, Chen, Ramchandran and Bartlett, ICML 2018; in networks BRIDGE-T (Fang, Yang and Bajwa, IEEE TSIPN 2022). Bears
    2f < |N_k|. Costs |N_k| (log |N_k|)² d comparisons. Smoother than the median, where f is known.
    """

    f: float = 0.2

    def __post_init__(self) -> None:
        check_tolerated(self.f)

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Stateless:
        def trimmed(messages: Messages, heard: Mask | None, f: int | Tensor) -> Tensor:
            return robust.trimmed_mean(messages, f, mask=heard)

        return _in_place(inbox, trimmed, tolerated(self.f, inbox.heard), any_order=True)


@dataclass(frozen=True)
class geometric_median:
    """The point with the smallest sum of distances to everyone heard and oneself.

    θ_k = argmin_z Σ_l ‖θ̂_l − z‖ by Weiszfeld's iteration, a_lk ∝ 1 / max(‖θ̂_l − z‖, ν), ν being `smoothing` times the
    distance of the majority from its middle.

    Pillutla, Kakade and Harchaoui, "Robust aggregation for federated learning", IEEE TSP 2022 (RFA). Bounded while the
    honest are more than half. Costs |N_k|² d and |N_k|² an iteration. Turns with the coordinates, as the median does
    not; among few neighbours it is often one of the models itself.
    """

    smoothing: float = 1e-6
    iterations: int = 20
    """As many for everyone: twenty come within 1e-3 of the smallest sum where few are heard, much nearer elsewhere."""

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < float("inf"):
            raise BadInput(f"smoothing must be a number that is not negative, but is {self.smoothing}")
        if self.iterations < 1:
            raise BadInput(f"the geometric median needs at least one iteration, but iterations is {self.iterations}")

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Stateless:
        def weights(messages: Messages, heard: Mask) -> Tensor:
            # Without a tolerance: only a CPU stops early, and the device must not matter.
            return robust.geometric_median_weights(
                messages, smoothing=self.smoothing, iterations=self.iterations, tolerance=0, mask=heard
            )

        return _weighed(inbox, weights)


@dataclass(frozen=True)
class krum:
    """Krum: the one model that has the nearest neighbours.

    θ_k = the θ̂_l with the smallest Σ ‖θ̂_l − θ̂_m‖² over the |N_k| − f − 2 nearest m.

    Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine learning with adversaries: Byzantine tolerant gradient
    descent", NeurIPS 2017, section 4. Bears 2f + 2 < |N_k|. Costs |N_k|² d. One model replaces another: nothing is
    averaged. Of models that tie, as the nearest two of three always do, the one nearest to one's own is taken.
    """

    f: float = 0.2

    def __post_init__(self) -> None:
        check_tolerated(self.f)

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Stateless:
        def weights(messages: Messages, heard: Mask, f: Tensor) -> Tensor:
            return robust.krum_weights(messages, f, mask=heard)

        return _weighed_nearest_first(inbox, weights, tolerated(self.f, inbox.heard))


@dataclass(frozen=True)
class multi_krum:
    """Multi-Krum: the mean of the m models that have the nearest neighbours.

    θ_k = mean of the m models with the lowest scores of `krum`; m is |N_k| − f unless given.

    Blanchard, El Mhamdi, Guerraoui and Stainer, NeurIPS 2017, section 6. Bears 2f + 2 < |N_k|. Costs |N_k|² d.
    """

    f: float = 0.2
    m: int | None = None
    """How many to average, at most as many as were heard."""

    def __post_init__(self) -> None:
        check_tolerated(self.f)
        if self.m is not None and self.m < 1:
            raise BadInput(f"multi_krum averages at least one model, but m is {self.m}")

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Stateless:
        m = None if self.m is None else min(self.m, inbox.heard.shape[1])

        def weights(messages: Messages, heard: Mask, f: Tensor) -> Tensor:
            return robust.multi_krum_weights(messages, f, m, mask=heard)

        return _weighed_nearest_first(inbox, weights, tolerated(self.f, inbox.heard))


@dataclass(frozen=True)
class monna:
    """MoNNA: the mean of the models nearest to one's own, itself among them.

    θ_k = mean of the |N_k| − f models with the smallest ‖θ̂_l − θ̂_k‖.

    Farhadkhani, Guerraoui, Gupta, Hoang, Pinot and Stephan, "Robust collaborative learning with linear gradient
    overhead", ICML 2023: their nearest-neighbour averaging; its local momentum is the task's optimiser. Bears
    2f < |N_k|, with an error of the order of f/|N_k|. Costs |N_k| d, the least of this page. The one rule here that
    puts the agent itself first; a liar who stays near is averaged as a friend is.
    """

    f: float = 0.2

    def __post_init__(self) -> None:
        check_tolerated(self.f)

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Stateless:
        def weights(messages: Messages, heard: Mask, f: Tensor) -> Tensor:
            return robust.monna_weights(messages, f, mask=heard)

        return _weighed(inbox, weights, tolerated(self.f, inbox.heard))


@dataclass(frozen=True)
class centerpoint:
    """A point that lies deep among everyone heard and oneself: no half-space around it holds only a few.

    θ_k = a point of Tukey depth at least |N_k|/3 in the plane and |N_k|/2 on a line; in d ≥ 3 dimensions an iterated
    Radon point over groups of d + 2, the nearest first, and the geometric median where |N_k| < d + 2.

    Li, Abbas, Shabbir and Koutsoukos, "Resilient distributed diffusion for multi-robot systems using centerpoint", RSS
    2020; Radon points as in Clarkson et al. 1996. Stays in the convex hull of the honest where fewer than
    |N_k|/(d + 1) lie, in the plane as exactly that, beyond it as `varangian.robust.centerpoint` says. Costs |N_k|³ in
    the plane and |N_k| d² beyond. For few parameters and many neighbours.
    """

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Stateless:
        nearest, _ = _nearest_first(inbox)
        return _in_place(nearest, lambda messages, heard: robust.centerpoint(messages, mask=heard))


@dataclass(frozen=True)
class nearest_neighbour_mixing:
    """Every model first replaced by the mean of those nearest to it, then one of the other rules.

    y_l = mean of the |N_k| − f models nearest to θ̂_l, itself among them; θ_k = then(y_l, l ∈ N_k).

    Allouah, Farhadkhani, Guerraoui, Gupta, Pinot and Stephan, "Fixing by mixing: a recipe for optimal Byzantine ML
    under heterogeneity", AISTATS 2023. Bears 2f < |N_k| (with Krum 2f + 2 < |N_k|), and brings the error of the rule
    that follows to the best order there is, f/|N_k|. Costs |N_k|² d besides what that rule costs.
    """

    then: Literal["trimmed-mean", "median", "geometric-median", "krum"] = "trimmed-mean"
    f: float = 0.2

    def __post_init__(self) -> None:
        check_tolerated(self.f)
        if self.then not in _THEN:
            raise BadInput(f"mixing goes before {', '.join(_THEN)}, but then is {self.then!r}")

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Stateless:
        def mixed_then(messages: Messages, heard: Mask, f: Tensor) -> Tensor:
            return _THEN[self.then](robust.nearest_neighbour_mixing(messages, f, mask=heard), heard, f)

        return _in_place(inbox, mixed_then, tolerated(self.f, inbox.heard))


_THEN: Mapping[str, OfNeighbourhoods] = {
    "trimmed-mean": lambda mixed, heard, f: robust.trimmed_mean(mixed, f, mask=heard),
    "median": lambda mixed, heard, f: robust.median(mixed, mask=heard),
    "geometric-median": lambda mixed, heard, f: robust.geometric_median(mixed, iterations=20, tolerance=0, mask=heard),
    "krum": lambda mixed, heard, f: robust.krum(mixed, f, mask=heard),
}


def _in_place(inbox: Inbox, vector: OfNeighbourhoods, *of_agents: Tensor, any_order: bool = False) -> Stateless:
    """What the function makes of a neighbourhood takes the place of the part that travels."""
    return Combined(inbox.with_private(inbox.by_neighbourhood(vector, *of_agents, any_order=any_order)), None, ())


def _weighed(inbox: Inbox, weights: OfNeighbourhoods, *of_agents: Tensor) -> Stateless:
    found = inbox.by_neighbourhood(weights, *of_agents)
    return Combined(inbox.mix(found), found, ())


def _weighed_nearest_first(inbox: Inbox, weights: OfNeighbourhoods, *of_agents: Tensor) -> Stateless:
    nearest, order = _nearest_first(inbox)
    found = nearest.by_neighbourhood(weights, *of_agents)
    found = torch.zeros_like(found).scatter(1, order, found)
    return Combined(inbox.mix(found), found, ())


def _nearest_first(inbox: Inbox) -> tuple[Inbox, Int[Tensor, "agent slot"]]:
    """Neighbours in the order of their distance, oneself first, for functions to which the order matters."""
    order = inbox.distance(inbox.own).argsort(dim=1, stable=True)
    return replace(inbox, source=inbox.source.gather(1, order), heard=inbox.heard.gather(1, order)), order
