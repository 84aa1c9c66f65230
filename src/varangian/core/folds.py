"""Folds of a finite dataset: what to train a model on so that it has never seen some of the agent's items.

The items of agent k are dealt to K folds: item j, in the order of its dataset, to fold j mod K. Fold model f trains on
all items but those of fold f. So the loss on fold f is that of a model that does not know these items by heart, and the
K folds together judge all items: cross-fitting (Chernozhukov et al., 2018,
https://doi.org/10.1111/ectj.12097).

The fold models take turns: model f trains in the rounds t with t mod K = f. K of them cost one gradient a round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from varangian.core.batches import Batches, Pool
from varangian.core.draws import Draws
from varangian.core.errors import BadInput
from varangian.core.models.base import Sample
from varangian.core.task import Stream


class FoldSample(NamedTuple):
    """What the fold models of all agents need in one round."""

    train: Sample
    """The batch of the fold model whose turn it is: tensors of shape (agent, item, …)."""
    judge: Sample
    """Items of every fold, fold after fold: tensors of shape (agent, item, …)."""


@dataclass(frozen=True, eq=False)
class FoldSampler:
    """The samples of all agents' fold models, round by round."""

    at: Callable[[int], FoldSample]
    trains: Bool[Tensor, "agent 1"]
    """Which agents have items outside every fold. A single item cannot be split; its fold models never train."""
    items: Float[Tensor, "agent 1"]
    """How many items each agent has."""


@dataclass(frozen=True, eq=False)
class Folds:
    """A finite dataset and a number of folds. As a stream, it yields the tensors of a `FoldSample`."""

    data: Batches
    count: int
    """How many folds."""
    without: Batches
    """The items that each fold model trains on. It has `count` rows per agent."""

    @staticmethod
    def of(stream: Stream, count: int) -> Folds:
        """The folds of a stream. It must be a finite dataset.

        >>> x = torch.arange(5.0)[:, None]
        >>> folds = Folds.of(Batches.of(Pool.of(x, x, [torch.arange(5)]), batch=1), 2)
        >>> [row[:count].tolist() for row, count in zip(folds.without.pool.members, folds.without.pool.counts)]
        [[1, 3], [0, 2, 4]]
        """
        if not isinstance(stream, Batches):
            raise BadInput("folds need a finite dataset, but the samples of this task are drawn from a stream")
        if count < 2:
            raise BadInput(f"a dataset is cut into at least two folds, not {count}")
        return Folds(stream, count, replace(stream, pool=_left_out(stream.pool, count)))

    @property
    def agents(self) -> int:
        return self.data.agents

    @property
    def judged(self) -> int:
        """How many items of each fold to judge on: four or all, and in all at least as many as in a batch."""
        largest = -(-self.data.pool.members.shape[1] // self.count)
        return min(largest, max(4, -(-self.data.batch // self.count)))

    def to(self, device: torch.device) -> Folds:
        return Folds.of(self.data.to(device), self.count)

    def samples(self, draws: Draws, start: int, rounds: int, dtype: torch.dtype) -> Sample:
        span = range(start, start + rounds)
        train = [self._train(draws, round, dtype) for round in span]
        judge = self.data.pool.items(torch.stack([self._judge(draws, round) for round in span]), dtype)
        return *(torch.stack(parts) for parts in zip(*train, strict=True)), *judge

    def _train(self, draws: Draws, round: int, dtype: torch.dtype) -> Sample:
        """The batch of the fold model whose turn it is: the next one in its own order."""
        turn, fold = divmod(round, self.count)
        parts = self.without.samples(_of_folds(draws, self.count), turn, 1, dtype)
        return tuple(part[0, fold :: self.count] for part in parts)

    def _judge(self, draws: Draws, round: int) -> Int[Tensor, "agent item"]:
        """The places of some items of every fold, fold after fold: those that the agent has not used for longest.

        So the batch that it has just trained on comes last. A sender may know that batch.
        """
        pool, most = self.data.pool, self.data.pool.members.shape[1]
        place = self.data.places(draws, round, self.data.batch, most)
        folds = _folds(pool, self.count)
        turn = torch.arange(most, device=place.device)
        fold = torch.where(turn < pool.counts[:, None], place % folds, self.count)
        size = nn.functional.one_hot(fold, self.count + 1).sum(1)[:, : self.count]
        first = size.cumsum(1) - size
        # With fewer items than folds, some folds are the same.
        same = torch.arange(self.count, device=place.device) % folds
        some = torch.arange(self.judged, device=place.device) % size.gather(1, same)[:, :, None]
        chosen = (first.gather(1, same)[:, :, None] + some).flatten(1)
        return place.gather(1, fold.argsort(dim=1, stable=True).gather(1, chosen))


def fold_sample(parts: Sample) -> FoldSample:
    """The tensors of `Folds.samples`, by name."""
    half = len(parts) // 2
    return FoldSample(parts[:half], parts[half:])


FEW_ITEMS = 128
"""Up to so many items an agent, folds are used instead of the next sample, where items come again."""


def few_and_repeated(stream: Stream, rounds: int, skip: float | Tensor) -> bool:
    """Whether most agents have few items, and a run goes over them at least twice: models then know them by heart.

    Args:
        stream: Where samples come from. Only a finite dataset can repeat.
        rounds: How many rounds the run has.
        skip: The share of rounds in which each agent gets no new batch.
    """
    if not isinstance(stream, Batches):
        return False
    items = stream.pool.counts.cpu().double()
    passes = rounds * stream.batch * (1 - torch.as_tensor(skip).cpu()) / items
    return bool(items.median() <= FEW_ITEMS) and bool(passes.median() >= 2)


def _folds(pool: Pool, count: int) -> Int[Tensor, "agent 1"]:
    """How many different folds each agent has."""
    return pool.counts.clamp(max=count)[:, None]


def _left_out(pool: Pool, count: int) -> Pool:
    """A pool with one row per agent and fold, of all items but those of the fold."""
    place = torch.arange(pool.members.shape[1], device=pool.counts.device)
    folds = _folds(pool, count)[:, None]
    fold = torch.arange(count, device=place.device)[:, None] % folds
    wanted = ((place % folds != fold) & (place < pool.counts[:, None, None])).flatten(0, 1)
    first = wanted.logical_not().to(torch.uint8).argsort(dim=1, stable=True)
    members = pool.members.repeat_interleave(count, 0).gather(1, first)
    # An empty row would divide by zero. `FoldSampler.trains` says that it must not be used.
    return replace(pool, members=members, counts=wanted.sum(1).clamp(min=1))


@lru_cache(maxsize=4)
def _of_folds(draws: Draws, count: int) -> Draws:
    """The draws of each agent, once per fold. Cached, so that orders of items can be cached by them."""
    agents: Int[Tensor, " agent"] = torch.arange(len(draws.agent), device=draws.agent.device)
    return draws.take(agents.repeat_interleave(count))
