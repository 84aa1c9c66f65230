"""Judge everything against the model that the agent would have alone: its anchor.

anchored       = differences to the anchor's loss,   keep not significantly worse,   weigh by confidence, on a leash
anchored(rule) = another rule's model,                                                                    on a leash

The paper compares a neighbour with the agent's own model. That model has listened before, so an attack that pulls it
away also lowers the bar for the next message. The anchor never listens: no message can move it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from varangian.core.errors import BadInput
from varangian.core.inbox import Inbox
from varangian.core.messages import finite_rows
from varangian.core.models.base import Models
from varangian.core.task import JudgedOn, check_forgetting
from varangian.rules.base import Combined, Companion, Rule, check_inner
from varangian.rules.comparison import (
    LARGEST,
    Compared,
    Unit,
    accepted,
    compare,
    confidence,
    constants,
    stored,
    unit_after,
)
from varangian.rules.cross_fitted import cross_fitted
from varangian.rules.evidence import Table, everyone
from varangian.rules.leash import Leash, pull, within_reach

AnyRule = Rule[Any]

UNIT_FORGETS = 0.05
"""ν of the anchor's smoothed loss, the unit of all differences."""
DISTANCE_FORGETS = 0.2
"""ν of the usual distance of candidates from the agent's own model."""
OWN_SHARE = 0.5
"""What the agent's own model counts beside a neighbour. It has the agent's anchor beside it already."""


class Memory(NamedTuple):
    """What the rule remembers."""

    unit: Unit
    leash: Leash
    distance: Float[Tensor, " agent"]
    """The usual distance of candidates from the agent's own model, squared."""
    compared: Compared | tuple[()]
    """The evidence about each neighbour, if neighbours are judged one by one."""
    inner: Any
    """The state of the rule that is protected, if there is one."""


class Candidate(NamedTuple):
    """Where an agent might go from its anchor."""

    models: Models
    weights: Table | None
    nobody: Bool[Tensor, "agent 1"]
    """Whether there is nobody to go to."""


class Measure(NamedTuple):
    """What losses are compared with."""

    alone: Float[Tensor, "agent 1"]
    """The anchor's loss, or −∞ where it is not known: then every loss is infinitely above it."""
    inverse: Float[Tensor, "agent 1"]
    """One over the unit."""

    def excess(self, loss: Float[Tensor, "agent several"]) -> Float[Tensor, "agent several"]:
        """How much losses are above the anchor's, in the unit. A loss that is not negative is above −1 / ν of it."""
        return (loss - self.alone).mul_(self.inverse).clamp_(min=-1 / UNIT_FORGETS)


@dataclass(frozen=True)
class anchored:
    """Keep whoever is not significantly worse than the model I would have alone, and go towards them on a leash.

    Equation:
        a_k ← a_k − μ_k ∇ℓ(a_k; ξ_k)
        δ_lk = (ℓ(θ̂_l; ξ_k) − ℓ(a_k; ξ_k)) / φ_k
        d_lk ← d_lk + p (δ_lk − d_lk),  p = max(ν, 1 / n)
        K_k = {l : δ_lk ≤ s,  d_lk ≤ z √(p v_lk)  for all ν}
        c_k = Σ_{l∈K_k} a_lk θ̂_l
        a_lk ∝ max(0, min(1, 1 − e_lk / (q √(p u_lk))))
        θ_k = a_k + w_k (c_k − a_k)
        w_k = argmin_{w∈[0,1]} F_k(w) + λ (1 − w)²
        F_k(w) ← (1 − ν) F_k(w) + ℓ(a_k + w (c_k − a_k); ξ_k) / φ_k

    The anchor a_k is a second model of the agent, which never listens. Neighbours and the agent's own cooperative model
    θ̂_k are compared with it, on a sample that nobody has trained on. The unit φ_k is the anchor's smoothed loss. d_lk
    is the mean difference after n comparisons and v_lk ≤ 1 their variance, on each time scale ν with its own z. On the
    longest time scale, e_lk and u_lk are mean and variance of differences to the agent's own model instead: copies of
    it, with an error added, are as good as the anchor for long. A neighbour that looks worse than the own model has
    less weight, and none if it is significantly worse. In the mean c_k, the agent's own model counts half.

    The leash w_k is the share that would have been best so far. Losses at w = 0, ½ and 1 give a parabola in each round;
    F_k is the sum over all rounds, and forgets with `leash`. A candidate whose loss is more than s above the anchor's
    is too bad to go to. If only the place half way is, there is a hill: the agent then goes all the way or not at all.
    If c_k is much farther from the agent's own model than usual, only a part of this way counts: a sender that was good
    for long cannot move the agent far at once.

    With `rule`, the model that this other rule combines is the candidate c_k.

    An agent without a new sample does not listen: a model may be made to look good on a sample that was trained on.
    Nor does an agent whose anchor has no finite loss.

    Guarantee, whatever arrives, where the loss is a parabola along the way to c_k: the discounted sum of losses on
    judged samples, in units of φ_k, is at most that of the anchor plus λ. For convex risks that are known exactly,
    `sudden=0` gives r_k(θ_k) ≤ r_k(a_k) in every round.

    Limits: the guarantee is for the samples that were judged. What it says about new data depends on how many there
    are. Messages that are as good as honest ones, as far as samples can tell, are kept and take their share of the
    weight. Agents that train on the same few items again and again know them by heart; `folds_for_few` is for them.

    Assumes: A sample of its own that it has not trained on yet. Any number of neighbours may be Byzantine.
    Cost: A second gradient, one evaluation of the loss per neighbour and three more per agent.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.anchored(), rounds=5)

    Reference:
        Ours. It builds on Li, Abbas and Koutsoukos, "Byzantine resilient distributed multi-task learning", NeurIPS
        2020, https://arxiv.org/abs/2010.13032. The leash follows the leader, with a look at the newest loss: Kalai and
        Vempala, "Efficient algorithms for online decision problems", Journal of Computer and System Sciences 71, 2005.
        https://doi.org/10.1016/j.jcss.2004.10.016
    """

    rule: AnyRule | None = None
    """Another rule to protect. By default none: neighbours are judged one by one."""
    scales: tuple[float, ...] = (0.1, 0.02, 0.005)
    """ν of each time scale, from the shortest memory to the longest."""
    significance: tuple[float, ...] = (2.0, 2.0, 1.5)
    """z at each time scale: how many standard errors above the anchor's loss are still accepted."""
    own_significance: float = 2.0
    """q: the z of the comparison with the agent's own model, on the longest time scale."""
    sudden: float = 5.0
    """s: the largest difference to accept in a single round, in units of the anchor's loss."""
    leash: float = 0.005
    """ν of the leash: how fast it forgets."""
    trust: float = 3.0
    """λ: how strongly the leash begins at the neighbours, in units of the anchor's loss."""
    reach: float = 2.0
    """How many times the usual distance from its own model an agent may go at once."""
    folds_for_few: int = 4
    """Where agents have few items and go over them again, the rule is `cross_fitted` with so many folds. 0: never."""
    judge: JudgedOn = "next"
    """The sample to judge on: the `next` one, or the `same` one as just trained on."""

    companion: ClassVar[Companion] = "alone"

    def __post_init__(self) -> None:
        for nu in (*self.scales, self.leash):
            check_forgetting(nu)
        if not self.scales or sorted(self.scales, reverse=True) != list(self.scales):
            raise BadInput(f"scales go from the shortest memory to the longest, as 0.1/0.02, but are {self.scales}")
        if len(self.significance) != len(self.scales) or not all(0 <= z < math.inf for z in self.significance):
            raise BadInput(f"significance needs one z of 0 or more for each scale, but is {self.significance}")
        for name in ("own_significance", "sudden", "trust"):
            if not 0 <= getattr(self, name) < math.inf:
                raise BadInput(f"{name} must be 0 or a positive number, but is {getattr(self, name)}")
        if not 1 <= self.reach < math.inf:
            raise BadInput(f"reach must be a number of at least 1, but is {self.reach}")
        if self.folds_for_few < 0 or self.folds_for_few == 1:
            raise BadInput(f"folds_for_few must be 0 or at least 2, but is {self.folds_for_few}")
        if self.rule is not None:
            check_inner("anchored", self.rule)

    def on_few_items(self) -> AnyRule:
        """The rule where agents have few items and go over them again and again."""
        return self if self.rule is not None or not self.folds_for_few else cross_fitted(self.folds_for_few)

    def init(self, table: Table) -> Memory:
        agents = torch.zeros_like(table[:, 0])
        compared = () if self.rule else Compared.start(table, len(self.scales) + 1)
        inner = self.rule.init(table) if self.rule else ()
        return Memory(Unit.start(agents), Leash.start(agents), agents, compared, inner)

    def combine(self, inbox: Inbox, state: Memory) -> Combined[Memory]:
        alone = inbox.anchor_loss(self.judge)
        known = everyone(alone)
        newest, unit = unit_after(alone[:, 0], known[:, 0], state.unit, UNIT_FORGETS)
        inverse = unit.loss.clamp(min=torch.finfo(alone.dtype).tiny).reciprocal_()
        measure = Measure(alone.nan_to_num(posinf=-math.inf), inverse[:, None])
        compared: Compared | tuple[()] = ()
        inner: Any = ()
        if self.rule is None:
            assert isinstance(state.compared, Compared)
            candidate, compared = self._of_neighbours(inbox, measure, state.compared)
        else:
            models, weights, inner, _ = self.rule.combine(inbox, state.inner)
            candidate = Candidate(torch.where(finite_rows(models), models, inbox.anchor), weights, ~known)
        models, way, leash, distance = self._on_leash(inbox, candidate, measure, newest, state)
        weights = candidate.weights
        if weights is not None:
            weights = weights * way
            weights[:, :1].add_(1 - way)
        after = Memory(unit, leash, distance, compared, inner)
        return Combined(torch.where(known, models, inbox.own), weights, after)

    def _of_neighbours(self, inbox: Inbox, measure: Measure, before: Compared) -> tuple[Candidate, Compared]:
        """The mean of those who are not significantly worse than the anchor or the agent's own model, by confidence."""
        loss, scales = inbox.loss(self.judge), len(self.scales)

        def each(*values: float) -> Float[Tensor, "memory 1 1"]:
            return constants(values, loss.dtype, loss.device)[:, None, None]

        excess = measure.excess(loss)
        # In the last series, the agent's own model takes the place of the anchor.
        counted = excess.clamp(-LARGEST, LARGEST)
        series = torch.addcmul(counted.T, counted[:, 0], each(*[0.0] * scales, -1.0))
        pace, compared = compare(series, excess < math.inf, each(*self.scales, self.scales[-1]), before)
        mean, slack = stored(compared.mean), accepted(pace, compared, each(*self.significance, self.own_significance))
        share = confidence(mean[scales], slack[scales]).T
        kept = excess <= self.sudden
        for fine in (mean[:scales] <= slack[:scales]).unbind():
            kept &= fine.T
        share.masked_fill_(kept.logical_not_(), 0.0)[:, :1].mul_(OWN_SHARE)
        total = share.sum(1, keepdim=True)
        weights = share.div_(total.clamp(min=torch.finfo(total.dtype).tiny))
        return Candidate(inbox.mix(weights), weights, total == 0), compared

    def _on_leash(
        self, inbox: Inbox, candidate: Candidate, measure: Measure, newest: Float[Tensor, " agent"], state: Memory
    ) -> tuple[Models, Float[Tensor, "agent 1"], Leash, Float[Tensor, " agent"]]:
        """From the anchor towards the candidate: the models, how much of the way, and what is remembered."""
        anchor, before = inbox.personal
        step = (anchor - before).square_().sum(1)
        most = torch.maximum(state.distance, step).mul_(self.reach**2).masked_fill_(state.distance == 0, math.inf)
        towards, share, distance = within_reach(candidate.models, inbox.own, most)
        both = torch.stack((torch.lerp(anchor, towards, 0.5), towards), 1)
        excess = measure.excess(inbox.model.judge(both, inbox.samples[self.judge]))
        half, whole = excess.masked_fill_(candidate.nobody, 0.0).unbind(1)
        w, goes, leash = pull(half, whole, self.sudden, self.leash, self.trust, state.leash)
        unusable = goes.logical_not_().logical_or_(candidate.nobody[:, 0])
        w = w.masked_fill_(unusable, 0.0)[:, None]
        newest = newest.clamp(min=DISTANCE_FORGETS).masked_fill_(unusable, 0.0)
        return torch.lerp(anchor, towards, w), w * share, leash, state.distance.lerp(distance, newest)
