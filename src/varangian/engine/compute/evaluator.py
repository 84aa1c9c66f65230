"""A fast evaluator for inboxes: matrix products on dense graphs, cache-sized pieces on sparse ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import embedding, embedding_bag

from varangian.core.execution import DEFAULT, Execution
from varangian.core.inbox import Change, Inbox, OfNeighbourhoods, Table, part_of_batch
from varangian.core.layout import FEW, PIECE, in_pieces, lengths
from varangian.core.task import SampleKind

OfMessages = Callable[[Float[Tensor, "some piece shared"], slice], Float[Tensor, "some piece"]]
"""From messages, and the agents that receive them, to one number per message."""

_IN_CACHE = 2**20
"""How many numbers of messages to gather at a time on a CPU: about what its cache holds."""
_ON_GPU = 2**24
"""The same on a GPU: a small part of its memory."""


@dataclass(frozen=True)
class Fast:
    """Computes the numbers of the inbox of one table."""

    execution: Execution = DEFAULT
    dense: bool = False
    """Whether most agents hear most others: then every model is judged on all samples together."""
    same_messages: bool = False
    """Whether all agents hear the same messages, each in its own order."""
    private_rows: int = 0
    """How many of the last rows are messages for a single edge."""

    def loss(self, inbox: Inbox, on: SampleKind) -> Table:
        return self._judge_pairs(inbox, on) if self.dense else self._judge_slots(inbox, on)

    def loss_where(self, inbox: Inbox, due: Bool[Tensor, "agent slot"], on: SampleKind, part: float) -> Table:
        sample = part_of_batch(inbox.samples[on], part)
        counts = due.sum(1)
        if self.dense and not self.private_rows and inbox.rows.shape[1] == inbox.own.shape[1]:
            wanted = due.new_zeros(len(inbox.rows)).index_fill_(0, inbox.source[due], True)
            # A GPU judges all pairs together, padded to the agent with the most pairs.
            pairs = counts.sum() if due.device.type == "cpu" else counts.max() * len(due)
            if int(wanted.sum()) * len(due) <= int(pairs) * _gain_of_pairs(inbox):
                table = inbox.model.judge_all(inbox.rows[wanted], sample)
                place = (wanted.cumsum(0) - 1).clamp(min=0)[inbox.source.T]
                return replace(inbox, heard=due).known(table.gather(0, place).T)
        loss = torch.full_like(due, math.inf, dtype=inbox.own.dtype)
        # Group agents with a similar number of models to judge, so that little padding is computed.
        groups = 16 if due.device.type == "cpu" else 1
        for agents in counts.argsort(descending=True).split(-(-len(counts) // groups)):
            most = int(counts[agents[0]])
            if not most:
                break
            first = due[agents].byte().argsort(dim=1, descending=True, stable=True)[:, :most]
            few = replace(
                inbox,
                source=inbox.source[agents].gather(1, first),
                heard=due[agents].gather(1, first),
                own=inbox.own[agents],
                samples={on: tuple(part[agents] for part in sample)},
                fresh=inbox.fresh[agents],
                trained=inbox.trained[agents],
                evaluator=replace(self, dense=False),
            )
            loss[agents] = loss[agents].scatter(1, first, few.loss(on))
        return loss

    def loss_of(self, inbox: Inbox, change: Change, on: SampleKind) -> Table:
        def judged(messages: Float[Tensor, "some piece shared"], agents: slice) -> Float[Tensor, "some piece"]:
            sample = tuple(part[agents] for part in inbox.samples[on])
            return inbox.model.judge(inbox.whole(change(messages, agents), agents), sample)

        return self._by_pieces(inbox, judged)

    def distance(self, inbox: Inbox, target: Float[Tensor, "agent shared"], p: float) -> Table:
        if self.dense:
            # A Gram matrix would be faster, but is inaccurate for models that nearly agree.
            pairs = torch.cdist(target, inbox.rows, p=p, compute_mode="donot_use_mm_for_euclid_dist")
            return pairs.gather(1, inbox.source)
        return self._by_pieces(inbox, lambda messages, agents: lengths(target[agents, None] - messages, p))

    def mix(self, inbox: Inbox, weights: Table) -> Float[Tensor, "agent shared"]:
        if self.dense:
            of_row = weights.new_zeros(len(weights), len(inbox.rows)).scatter_add_(1, inbox.source, weights)
            return of_row @ inbox.rows
        if _few(inbox):
            return (_columns(inbox) * weights.T).sum(1).T
        return embedding_bag(inbox.source, inbox.rows, per_sample_weights=weights, mode="sum")

    def by_neighbourhood(
        self, inbox: Inbox, function: OfNeighbourhoods, of_agents: tuple[Tensor, ...], any_order: bool
    ) -> Float[Tensor, "agent out"]:
        if any_order and self.same_messages:
            return self._once_for_all(inbox, function, of_agents)
        slots, shared = inbox.heard.shape[1], inbox.rows.shape[1]
        sizes = {"numbers": slots * max(slots, shared), "most": self.execution.numbers_at_once(PIECE)}
        if _few(inbox):
            messages = _columns(inbox).permute(2, 1, 0).clone(memory_format=torch.contiguous_format)
            return in_pieces(function, messages, inbox.heard, *of_agents, **sizes)
        return in_pieces(
            lambda source, heard, *rest: function(embedding(source, inbox.rows), heard, *rest),
            inbox.source,
            inbox.heard,
            *of_agents,
            **sizes,
        )

    def for_single_slots(self) -> Fast:
        return replace(self, dense=False, same_messages=False, private_rows=0)

    def _once_for_all(
        self, inbox: Inbox, function: OfNeighbourhoods, of_agents: tuple[Tensor, ...]
    ) -> Float[Tensor, "agent out"]:
        # Take an agent whose own message arrived. If it did not, the agent is Byzantine and counts itself as silent.
        one = inbox.heard[:, 0].byte().argmax(0, keepdim=True)
        heard = inbox.heard[one]
        if inbox.own.device.type == "cpu" and bool(heard.all()):  # on a GPU, this test would have to wait
            found = function(inbox.rows, None, *(int(part[one]) for part in of_agents))[None]
        else:
            found = function(embedding(inbox.source[one], inbox.rows), heard, *(part[one] for part in of_agents))
        return found.expand(len(inbox.own), -1)

    def _judge_slots(self, inbox: Inbox, on: SampleKind) -> Table:
        """The loss of each neighbour's model on the sample of the receiver."""
        return self.loss_of(inbox, lambda messages, agents: messages, on)

    def _judge_pairs(self, inbox: Inbox, on: SampleKind) -> Table:
        """The loss of every model on the samples of all agents. Messages for a single edge are judged there only."""
        if inbox.rows.shape[1] < inbox.own.shape[1]:
            return self._judge_slots(inbox, on)
        sample = inbox.samples[on]
        public = len(inbox.rows) - self.private_rows
        table = inbox.model.judge_all(inbox.rows[:public], sample)
        loss = table.gather(0, inbox.source.T.clamp(max=public - 1)).T
        if self.private_rows:
            place = torch.nonzero(inbox.source.flatten() >= public)[:, 0]
            agent = place // inbox.source.shape[1]
            row = inbox.source.flatten()[place]
            alone = inbox.model.judge(inbox.rows[row, None], tuple(part[agent] for part in sample))
            loss = loss.flatten().index_copy(0, place, alone[:, 0]).view_as(loss)
        return loss

    def _by_pieces(self, inbox: Inbox, function: OfMessages) -> Table:
        """`function` of all messages. If these are many numbers, some agents and some slots at a time."""
        if _few(inbox):
            return function(_columns(inbox).permute(2, 1, 0), slice(None))
        pieces = list(self._pieces(inbox))
        if len(pieces) == 1:
            return function(embedding(inbox.source, inbox.rows), slice(None))
        out = inbox.own.new_empty(inbox.source.T.shape).T

        def fill(agents: slice, slots: slice) -> None:
            out[agents, slots] = function(embedding(inbox.source[agents, slots], inbox.rows), agents)

        self.execution.each(fill, *zip(*pieces, strict=True), device=out.device)
        return out

    def _pieces(self, inbox: Inbox) -> Iterator[tuple[slice, slice]]:
        agents, slots = inbox.source.shape
        much = self.execution.numbers_at_once(_ON_GPU)
        most = min(much, _IN_CACHE) if inbox.own.device.type == "cpu" else much
        width = min(slots, max(1, much // inbox.own.shape[1]))
        height = max(1, most // (width * inbox.own.shape[1]))
        for first in range(0, agents, height):
            for slot in range(0, slots, width):
                yield slice(first, first + height), slice(slot, slot + width)


def _gain_of_pairs(inbox: Inbox) -> int:
    """How much faster a model is judged on all samples at once than on one after another.

    Small models, and all models on a GPU, are much faster at once.
    """
    return 1 if inbox.own.shape[1] >= 10**5 and inbox.own.device.type == "cpu" else 5


def _few(inbox: Inbox) -> bool:
    return inbox.rows.shape[1] <= FEW


def _columns(inbox: Inbox) -> Float[Tensor, "shared slot agent"]:
    """All messages, stored parameter by parameter, so that later operations run along agents."""

    def gathered() -> Tensor:
        source = inbox.source.T
        return inbox.rows.T.index_select(1, source.reshape(-1)).view(inbox.rows.shape[1], *source.shape)

    return inbox.once("columns", gathered)
