"""What some agents see of their neighbours in one round.

Everything per neighbour is a table of (agent, slot) with slot 0 the agent itself. Losses and distances are computed
when a rule first asks for them, once; a rule that does not ask does not pay. A slot from which nothing arrived has
infinite loss and distance, so that it is the worst of all in any comparison.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import embedding, embedding_bag

from varangian.core.blocks import FEW, each
from varangian.core.ground_truth import Truth
from varangian.core.memory import numbers_at_once
from varangian.core.models.base import Model, Models, Sample
from varangian.core.task import JudgedOn
from varangian.errors import BadInput

Table = Float[Tensor, "agent slot"]

OfMessages = Callable[[Float[Tensor, "some piece shared"], slice], Float[Tensor, "some piece"]]
"""A number for every message, from the messages and from which agents receive them."""

_AT_ONCE = 2**20
"""How many numbers of messages to gather at a time: about what a processor's cache holds …"""
_AT_ONCE_ON_GPU = 2**24
"""… and what is little of a GPU's memory."""


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
    alike: bool = False
    """Everyone hears the same messages, each in an order of its own."""
    private_rows: int = 0
    """How many of the rows, at the end, are messages for one edge only."""
    round: int = 0
    _losses: dict[JudgedOn, Table] = field(default_factory=dict[JudgedOn, Table], repr=False)

    def loss(self, on: JudgedOn | None = None) -> Table:
        """ℓ(θ̂_l; ξ_k): each neighbour's model on my data; infinite where it is not a number."""
        on = on or self.judged_on
        if on not in self._losses:
            loss = self._judge_pairs(on) if self.dense else self._judge_slots(on)
            self._losses[on] = self._known(loss)
        return self._losses[on]

    def loss_where(self, due: Bool[Tensor, "agent slot"], on: JudgedOn | None = None, part: float = 1.0) -> Table:
        """`loss` of those who are due, on a part of the batch, and hardly more computed than that; infinite elsewhere.

        How much that is must be known to be saved, for which a GPU has to be waited for.
        """
        on = on or self.judged_on
        sample = _part_of(self.samples[on], part)
        due = due & self.heard
        counts = due.sum(1)
        if self.dense and not self.private_rows and self.rows.shape[1] == self.own.shape[1]:
            wanted = due.new_zeros(len(self.rows)).index_fill_(0, self.source[due], True)
            # A GPU judges agents' pairs all together, as many for each as for the one who has most.
            pairs = counts.sum() if due.device.type == "cpu" else counts.max() * len(due)
            if int(wanted.sum()) * len(due) <= int(pairs) * self._gain_of_pairs:
                table = self.model.judge_all(self.rows[wanted], sample)
                place = (wanted.cumsum(0) - 1).clamp(min=0)[self.source.T]
                return replace(self, heard=due)._known(table.gather(0, place).T)
        loss = torch.full_like(due, math.inf, dtype=self.own.dtype)
        # Agents with about as many to judge go together, so that few are computed only to fill a table.
        groups = 16 if due.device.type == "cpu" else 1
        for agents in counts.argsort(descending=True).split(-(-len(counts) // groups)):
            most = int(counts[agents[0]])
            if not most:
                break
            first = due[agents].byte().argsort(dim=1, descending=True, stable=True)[:, :most]
            few = replace(
                self,
                source=self.source[agents].gather(1, first),
                heard=due[agents].gather(1, first),
                own=self.own[agents],
                samples={on: tuple(part[agents] for part in sample)},
                dense=False,
                _losses={},
            )
            loss[agents] = loss[agents].scatter(1, first, few.loss(on))
        return loss

    def on_part(self, part: float) -> Inbox:
        """The same messages, to be judged on the first items of every agent's batch."""
        if part == 1:
            return self
        samples = {on: _part_of(sample, part) for on, sample in self.samples.items()}
        return replace(self, samples=samples, _losses={})

    def distance(self, target: Models, p: float = 2.0) -> Table:
        """‖target_k − θ̂_l‖_p, over the part that travels."""
        target = target[:, : self.rows.shape[1]]
        if self.dense:
            # Through a Gram matrix it would be faster, and wrong where models nearly agree.
            pairs = torch.cdist(target, self.rows, p=p, compute_mode="donot_use_mm_for_euclid_dist")
            distance = pairs.gather(1, self.source)
        else:
            distance = self._by_pieces(
                lambda messages, agents: torch.linalg.vector_norm(target[agents, None] - messages, p, dim=2)
            )
        return self._known(distance)

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
        elif self._few:
            mixed = (self._columns * weights.T).sum(1).T
        else:
            mixed = embedding_bag(self.source, self.rows, per_sample_weights=weights, mode="sum")
        return self.with_private(mixed)

    def with_private(self, shared: Float[Tensor, "agent shared"]) -> Models:
        """Whole models from their travelling part and one's own private part."""
        if shared.shape[1] == self.own.shape[1]:
            return shared
        return torch.cat((shared, self.own[:, shared.shape[1] :]), dim=1)

    def _known(self, values: Table) -> Table:
        """The values of what was heard; infinite where nothing was, or where they are no finite numbers."""
        return torch.where(self.heard, values, math.inf).nan_to_num_(math.inf, math.inf, math.inf)

    def _judge_slots(self, on: JudgedOn) -> Table:
        """Each neighbour's model on the receiver's sample."""

        def judged(messages: Float[Tensor, "some piece shared"], agents: slice) -> Float[Tensor, "some piece"]:
            sample = tuple(part[agents] for part in self.samples[on])
            return self.model.judge(self._whole(messages, agents), sample)

        return self._by_pieces(judged)

    def _judge_pairs(self, on: JudgedOn) -> Table:
        """Model by model over everybody's samples together; messages for one edge only are judged there only."""
        if self.rows.shape[1] < self.own.shape[1]:
            return self._judge_slots(on)
        sample = self.samples[on]
        public = len(self.rows) - self.private_rows
        table = self.model.judge_all(self.rows[:public], sample)
        loss = table.gather(0, self.source.T.clamp(max=public - 1)).T
        if self.private_rows:
            place = torch.nonzero(self.source.flatten() >= public)[:, 0]
            agent = place // self.source.shape[1]
            row = self.source.flatten()[place]
            alone = self.model.judge(self.rows[row, None], tuple(part[agent] for part in sample))
            loss = loss.flatten().index_copy(0, place, alone[:, 0]).view_as(loss)
        return loss

    @property
    def _gain_of_pairs(self) -> int:
        """How much faster a model is judged by everybody at once than by one after another: small ones, and all on a
        GPU, much faster."""
        return 1 if self.own.shape[1] >= 10**5 and self.own.device.type == "cpu" else 5

    @property
    def _few(self) -> bool:
        return self.rows.shape[1] <= FEW

    @cached_property
    def _columns(self) -> Float[Tensor, "shared slot agent"]:
        """Every message, gathered parameter by parameter, so that whatever is computed from them runs along agents."""
        source = self.source.T
        return self.rows.T.index_select(1, source.reshape(-1)).view(self.rows.shape[1], *source.shape)

    def _by_pieces(self, function: OfMessages) -> Table:
        """`function` of all messages: some agents', or some slots', at a time where those are many numbers."""
        if self._few:
            return function(self._columns.permute(2, 1, 0), slice(None))
        pieces = list(self._pieces())
        if len(pieces) == 1:
            return function(embedding(self.source, self.rows), slice(None))
        out = self.own.new_empty(self.source.T.shape).T

        def fill(agents: slice, slots: slice) -> None:
            out[agents, slots] = function(embedding(self.source[agents, slots], self.rows), agents)

        each(fill, *zip(*pieces, strict=True), device=out.device)
        return out

    def _pieces(self) -> Iterator[tuple[slice, slice]]:
        agents, slots = self.source.shape
        much = numbers_at_once(_AT_ONCE_ON_GPU)
        most = min(much, _AT_ONCE) if self.own.device.type == "cpu" else much
        width = min(slots, max(1, much // self.own.shape[1]))
        height = max(1, most // (width * self.own.shape[1]))
        for first in range(0, agents, height):
            for slot in range(0, slots, width):
                yield slice(first, first + height), slice(slot, slot + width)

    def _whole(
        self, shared: Float[Tensor, "some piece shared"], agents: slice
    ) -> Float[Tensor, "some piece parameter"]:
        private = self.own[agents, None, shared.shape[2] :]
        if not private.shape[2]:
            return shared
        return torch.cat((shared, private.expand(-1, shared.shape[1], -1)), dim=2)


def _part_of(sample: Sample, part: float) -> Sample:
    """The first items of every agent's batch."""
    if part == 1:
        return sample
    sizes = {tensor.shape[1] if tensor.ndim > 1 else 0 for tensor in sample}
    if len(sizes) > 1 or 0 in sizes:
        raise BadInput("only tasks with batches can judge on a part of one; leave part out")
    items = math.ceil(sizes.pop() * part)
    return tuple(tensor[:, :items] for tensor in sample)
