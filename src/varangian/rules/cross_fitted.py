"""Judge neighbours on items that the model of comparison has not seen: for few items, gone over again and again.

cross_fitted = smoothed differences to the loss of fold models,   keep better, near and knowing,   weigh alike

An agent that goes over few items again and again knows them by heart. On these items no neighbour looks better, and
nobody listens, although all would gain. So an item is judged by a model of the agent that was trained without it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from varangian.core.errors import BadInput
from varangian.core.inbox import Inbox
from varangian.core.task import check_forgetting
from varangian.rules.base import Combined, Companion
from varangian.rules.evidence import Kept, Smoothed, Table, difference, smooth

LEAST = 0.1
"""The least knowledge of a neighbour that is kept: half of what the fold models know may be nothing."""


REACH = 2.0
"""How many times as far as the median neighbour a neighbour may be that is kept."""


class Evidence(NamedTuple):
    """What the rule remembers."""

    excess: Smoothed
    """Differences to the cross-fitted loss, per neighbour."""
    unit: Smoothed
    """The cross-fitted loss itself, per agent."""
    knowledge: Smoothed
    """Which share of ignorance's loss each neighbour avoids. Slot 0 is that of the fold models."""
    ignorance: Float[Tensor, " agent"]
    """The cross-fitted loss of the first round, when nobody had learned anything. 0 before."""


@dataclass(frozen=True)
class cross_fitted:
    """Keep whoever beats, on my items, models of mine that have not seen them; mix with the model I would have alone.

    Equation:
        δ_lk = mean_f ( ℓ(θ̂_l; ξ_kf) − ℓ(b_kf; ξ_kf) )
        d_lk ← (1 − ν) d_lk + ν δ_lk
        g_lk = −d_lk / φ_k
        h_lk = smoothed mean_i ( 1 − min(ℓ(θ̂_l; ξ_ki), ℓ⁰_k) / ℓ⁰_k ),  h_kk: the same of the fold models
        r_k = 2 median_{l≠k} ‖θ̂_l − θ̂_k‖
        B_k = {l ≠ k : δ_lk ≤ 0,  d_lk ≤ 0,  h_lk ≥ max((1 − ς / √n_k) h_kk, 0.1),  ‖θ̂_l − θ̂_k‖ ≤ r_k}
        K_k = {l ∈ B_k : h_lk ≥ (1 − ς / √n_k) median_{B_k} h_lk}
        s_lk = exp(η n_k g_lk),  s̄_k = mean_{l∈K_k} s_lk, or 1 if K_k is empty
        b_k = 1 / (1 + s̄_k + Σ_{l∈K_k} s_lk)
        θ_k = b_k a_k + (1 − b_k) mean_{l∈K_k∪{k}} θ̂_l

    The n_k items of agent k are dealt to K folds. Its fold model b_kf is trained without fold f and never listens.
    ξ_kf are some items of fold f. So every item is judged by a model that does not know it by heart, and a neighbour
    looks as good as it is. φ_k is the smoothed loss of the fold models: gains are shares of it, and do not depend on
    the unit of the loss.

    A model that has overfitted is sure of its errors. Its loss is then above ℓ⁰_k, that of a model that knows nothing.
    A neighbour that sends such a model would look good, and accuracy would fall to chance. So knowledge h_lk counts
    too. There, no item costs more than ℓ⁰_k, and knowing nothing gives 0. Where the fold models know next to nothing
    themselves, a neighbour must know at least a tenth.

    A neighbour that knows clearly less than the median of those that pass these tests is left out, and knowledge is
    measured the better, the more items there are. Otherwise poor models, which beat a model that has overfitted, would
    dilute the others. Those kept weigh the same: differences between them are mostly chance. One that is more than
    twice as far away as the median neighbour is left out, too: if most of them are honest, an error that the items do
    not show is then not much larger than an honest disagreement. The agent's own cooperative model has seen the items,
    so its loss says nothing. It weighs as much as a neighbour. The anchor a_k is the model that the agent would have
    alone. It draws the agent back where nobody is better.

    The fold models take turns: each trains in one of K rounds. So they cost one gradient a round together.

    Limits: An agent's own model knows its items by heart, and all its neighbours hear that model. So a message that is
    made from it is good on these items, and can be bad elsewhere. No test on these items finds it. Knowledge is
    measured from the loss of the first round. Where no model can be a tenth better than that (a start from trained
    models, very noisy labels), nobody listens. `anchored` becomes this rule where it helps: on finite data that is gone
    over again.

    Assumes: A finite dataset. Where messages hide their errors from the items, most neighbours are honest.
    Cost: Two more gradients, one evaluation of the loss per neighbour, item by item, one distance per neighbour, and K
        models more per agent.

    Example:
        >>> from varangian import Task, simulate
        >>> from varangian.rules.cross_fitted import cross_fitted
        >>> data = [(torch.randn(8, 3), torch.randn(8, 1)) for _ in range(4)]
        >>> task = Task.supervised(torch.nn.Linear(3, 1), torch.nn.functional.mse_loss, data, batch=2)
        >>> result = simulate(task, rule=cross_fitted(), rounds=5)

    Reference:
        Ours. Cross-fitting: Chernozhukov et al., "Double/debiased machine learning for treatment and structural
        parameters", The Econometrics Journal 21, 2018. https://doi.org/10.1111/ectj.12097
    """

    folds: int = 4
    """K: how many folds, and models trained without one of them."""
    forgetting: float = 0.1
    """ν of all that is smoothed."""
    eta: float = 1.0
    """η: how fast the weight of the anchor falls with the gain of the neighbours."""
    slack: float = 0.5
    """ς: with n_k items, a neighbour may know the share ς / √n_k less than the fold models, or than the median."""

    companion: ClassVar[Companion] = "alone"

    def __post_init__(self) -> None:
        check_forgetting(self.forgetting)
        if self.folds < 2:
            raise BadInput(f"cross-fitting needs at least two folds, but folds is {self.folds}")
        if not 0 <= self.eta < math.inf:
            raise BadInput(f"η must be 0 or a positive number, but is {self.eta}")
        if not 0 <= self.slack < math.inf:
            raise BadInput(f"slack must be 0 or a positive number, but is {self.slack}")

    def init(self, table: Table) -> Evidence:
        of_pairs, of_agents = Smoothed.start(table, 0.0), Smoothed.start(table[:, 0], 0.0)
        return Evidence(of_pairs, of_agents, of_pairs, torch.zeros_like(table[:, 0]))

    def combine(self, inbox: Inbox, state: Evidence) -> Combined[Evidence]:
        theirs, alone = inbox.unseen_losses(), inbox.unseen_anchor_losses()
        now = difference(theirs.mean(0), alone.mean(0))
        excess, of_excess = smooth(now, self.forgetting, state.excess)
        level = alone.mean(0)[:, 0]
        unit, of_unit = smooth(level, self.forgetting, state.unit)
        better = (now <= 0) & (excess <= 0) & ~_self(inbox.heard)
        gain = torch.where(better, -excess / unit.clamp(min=torch.finfo(unit.dtype).tiny)[:, None], 0.0)

        ignorance = torch.where(state.ignorance == 0, level, state.ignorance).nan_to_num(0.0, 0.0, 0.0)
        known = knowledge(torch.cat((alone, theirs[:, :, 1:]), 2), ignorance[:, None])
        known, of_known = smooth(torch.where(inbox.heard, known, math.inf), self.forgetting, state.knowledge)

        items = inbox.cross_fitted.items
        enough = 1 - self.slack * items.rsqrt()
        better &= known >= (enough * known[:, :1]).clamp(min=LEAST)
        better &= near_enough(inbox.distance(inbox.own), inbox.heard)
        score = (self.eta * items * gain).clamp(max=torch.finfo(gain.dtype).max)
        kept = better & (known >= enough * median_of(known, better))
        of_anchor = anchor_weight(score, kept)
        listened = (kept | _self(inbox.heard)).to(score.dtype)
        of_slots = listened * ((1 - of_anchor) / listened.sum(1, keepdim=True))
        weights = torch.cat((of_slots[:, :1] + of_anchor, of_slots[:, 1:]), 1)
        return Combined(
            inbox.mix_with_anchor(of_slots, of_anchor), weights, Evidence(of_excess, of_unit, of_known, ignorance)
        )


def knowledge(losses: Float[Tensor, "item agent slot"], ignorance: Float[Tensor, "agent 1"]) -> Table:
    """Which share of ignorance's loss is avoided, in the mean over items. No item counts as worse than ignorance.

    >>> knowledge(torch.tensor([[[1.0, 2.0]], [[9.0, 2.0]]]), torch.tensor([[2.0]]))  # half an item known, and none
    tensor([[0.2500, 0.0000]])
    """
    known = 1 - losses.minimum(ignorance) / ignorance
    return torch.where(ignorance > 0, known, 0.0).mean(0)


def median_of(values: Table, which: Kept) -> Float[Tensor, "agent 1"]:
    """The median of some values; the lower one of two. 0 where there is none.

    >>> median_of(torch.tensor([[1.0, 9.0, 3.0, 2.0]]), torch.tensor([[1, 0, 1, 1]]) > 0)
    tensor([[2.]])
    """
    return torch.where(which, values, math.nan).nanmedian(1, keepdim=True).values.nan_to_num(0.0)


def near_enough(distance: Table, heard: Kept) -> Kept:
    """Which models are at most `REACH` times as far away as the median neighbour's; of two medians, the lower one.

    >>> near_enough(torch.tensor([[0.0, 1.0, 2.0, 5.0]]), torch.ones(1, 4) > 0)
    tensor([[ True,  True,  True, False]])
    """
    most = REACH * median_of(distance, heard & ~_self(heard))
    return distance <= most.clamp(max=torch.finfo(distance.dtype).max)


def anchor_weight(score: Table, kept: Kept) -> Float[Tensor, "agent 1"]:
    """1 beside exp(score) for each neighbour kept, and beside their mean, or 1, for the agent itself.

    >>> anchor_weight(torch.tensor([[0.0, 1.0, 1.0, 5.0]]), torch.tensor([[0, 1, 1, 0]]) > 0).round(decimals=2)
    tensor([[0.1100]])
    """
    of_kept = torch.where(kept, score, -math.inf)
    count = kept.sum(1, keepdim=True)
    together = of_kept.logsumexp(1, keepdim=True)
    own = torch.where(count > 0, together - count.clamp(min=1).log(), 0.0)
    return torch.sigmoid(-torch.logaddexp(own, together))


def _self(heard: Kept) -> Kept:
    """True in slot 0, which is the agent itself."""
    return torch.arange(heard.shape[1], device=heard.device) == 0
