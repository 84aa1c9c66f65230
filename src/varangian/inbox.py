"""What some agents see of their neighbours in one round.

Everything per neighbour is a table of (agent, slot) with slot 0 the agent itself. Losses and distances are computed
when a rule first asks for them, once; a rule that does not ask does not pay. A slot from which nothing arrived has
infinite loss and distance, so that it is the worst of all in any comparison.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import embedding, embedding_bag

from varangian.model import Model, Models, Sample
from varangian.task import JudgedOn
from varangian.truth import Truth

Table = Float[Tensor, "agent slot"]

_AT_ONCE = 2**24
"""How many numbers gathered messages may take before they are handled slot by slot."""


@dataclass(frozen=True, eq=False)
class Inbox:
    """One round's messages as their receivers see them."""

    model: Model
    rows: Float[Tensor, "row shared"]
    """Messages after the check at the door: finite, zeros where none arrived."""
    source: Int[Tensor, "agent slot"]
    """Which row each slot received; slot 0 is one's own."""
    heard: Bool[Tensor, "agent slot"]
    own: Models
    """θ̂_k: one's own model after adapting."""
    previous: Models
    """θ_k of the round before."""
    samples: Mapping[JudgedOn, Sample]
    judged_on: JudgedOn
    forgetting: float | Float[Tensor, "agent 1"]
    step_size: Float[Tensor, "agent 1"]
    truth: Truth = field(repr=False)
    """What no agent knows; only clairvoyant references look at it."""
    dense: bool = False
    private_rows: int = 0
    """How many of the rows, at the end, are messages for one edge only."""
    _losses: dict[JudgedOn, Table] = field(default_factory=dict[JudgedOn, Table], repr=False)

    def loss(self, on: JudgedOn | None = None) -> Table:
        """ℓ(θ̂_l; ξ_k): each neighbour's model on my data; infinite where it is not a number."""
        on = on or self.judged_on
        if on not in self._losses:
            loss = self._judge_pairs(on) if self.dense else self._judge_slots(self.source, self.samples[on])
            self._losses[on] = torch.where(self.heard & (loss.abs() < math.inf), loss, math.inf)
        return self._losses[on]

    def distance(self, target: Models, p: float = 2.0) -> Table:
        """‖target_k − θ̂_l‖_p, over the part that travels."""
        target = target[:, : self.rows.shape[1]]
        if self.dense:
            # Through a Gram matrix it would be faster, and wrong where models nearly agree.
            pairs = torch.cdist(target, self.rows, p=p, compute_mode="donot_use_mm_for_euclid_dist")
            distance = pairs.gather(1, self.source)
        else:
            parts = [
                torch.linalg.vector_norm(target[:, None] - embedding(source, self.rows), p, dim=2)
                for source in self._pieces(self.source)
            ]
            distance = _joined(parts)
        return torch.where(self.heard & (distance < math.inf), distance, math.inf)

    def one_step_ahead(self) -> Models:
        """θ̂_k + μ_k ∇ℓ(θ̂_k; ξ_k), on the sample just trained on."""
        return self.own.addcmul(self.step_size, self.model.gradient(self.own, self.samples["same"]))

    def received(self) -> Float[Tensor, "agent slot shared"]:
        """Every message, gathered: as large as it sounds."""
        return embedding(self.source, self.rows)

    def mix(self, weights: Table) -> Models:
        """Σ_l a_lk θ̂_l (eq. 3); what does not travel stays one's own."""
        if self.dense:
            of_row = weights.new_zeros(len(weights), len(self.rows)).scatter_add_(1, self.source, weights)
            mixed = of_row @ self.rows
        else:
            mixed = embedding_bag(self.source, self.rows, per_sample_weights=weights, mode="sum")
        return self.with_private(mixed)

    def with_private(self, shared: Float[Tensor, "agent shared"]) -> Models:
        """Whole models from their travelling part and one's own private part."""
        if shared.shape[1] == self.own.shape[1]:
            return shared
        return torch.cat((shared, self.own[:, shared.shape[1] :]), dim=1)

    def _judge_slots(self, source: Int[Tensor, "agent slot"], sample: Sample) -> Table:
        """Each neighbour's model on the receiver's sample, as many slots at a time as memory allows."""
        return _joined([self.model.judge(self._whole(embedding(s, self.rows)), sample) for s in self._pieces(source)])

    def _judge_pairs(self, on: JudgedOn) -> Table:
        """Model by model over everybody's samples together; messages for one edge only are judged there only."""
        if self.rows.shape[1] < self.own.shape[1]:
            return self._judge_slots(self.source, self.samples[on])
        sample = self.samples[on]
        public = len(self.rows) - self.private_rows
        table = self.model.judge_all(self.rows[:public], sample)
        loss = table.T.gather(1, self.source.clamp(max=public - 1))
        if self.private_rows:
            place = torch.nonzero(self.source.flatten() >= public)[:, 0]
            agent = place // self.source.shape[1]
            row = self.source.flatten()[place]
            alone = self.model.judge(self.rows[row, None], tuple(part[agent] for part in sample))
            loss = loss.flatten().index_copy(0, place, alone[:, 0]).view_as(loss)
        return loss

    def _whole(self, shared: Float[Tensor, "agent slot shared"]) -> Float[Tensor, "agent slot parameter"]:
        private = self.own[:, None, shared.shape[2] :]
        if not private.shape[2]:
            return shared
        return torch.cat((shared, private.expand(-1, shared.shape[1], -1)), dim=2)

    def _pieces(self, source: Int[Tensor, "agent slot"]) -> tuple[Int[Tensor, "agent piece"], ...]:
        slots = max(1, _AT_ONCE // max(1, source.shape[0] * self.own.shape[1]))
        return tuple(source.split(slots, dim=1))


def _joined(parts: list[Table]) -> Table:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
