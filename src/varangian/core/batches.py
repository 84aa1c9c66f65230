"""Finite datasets: batches drawn from them round by round, and held-out data to measure on.

The items of all agents form one pool. `members[k]` lists the positions of agent k's items in it. Agents may therefore
own different amounts of data, and share items without copying them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import vmap

from varangian.core.checks import check_word, whole_number
from varangian.core.draws import Draws
from varangian.core.errors import BadInput
from varangian.core.execution import Execution
from varangian.core.given_data import Items, check_one_per_agent, tensors_of
from varangian.core.measures import Metric, OfSet
from varangian.core.models.base import Models, Sample
from varangian.core.models.stacked import Stacked

EpochEnds = Literal["longest", "shortest"]


@dataclass(frozen=True, eq=False)
class Pool:
    """The items of all agents, and which agent owns which."""

    x: Float[Tensor, "item ..."]
    y: Tensor
    members: Int[Tensor, "agent most"]
    counts: Int[Tensor, " agent"]

    def to(self, device: torch.device) -> Pool:
        return Pool(*(part.to(device) for part in (self.x, self.y, self.members, self.counts)))

    @property
    def agents(self) -> int:
        return len(self.members)

    def part(self, agents: slice | Int[Tensor, " some"]) -> Pool:
        """The same pool for some of the agents. `members` keeps its width, because random draws depend on it."""
        return replace(self, members=self.members[agents], counts=self.counts[agents])

    def items(self, places: Int[Tensor, "round agent some"], dtype: torch.dtype) -> Sample:
        """The items at these places of the agents' rows."""
        return self.read(self.members.expand(len(places), -1, -1).gather(2, places), dtype)

    def read(self, items: Int[Tensor, "round agent some"], dtype: torch.dtype) -> Sample:
        """The items with these numbers."""
        return as_dtype(_rows(self.x, items), dtype), as_dtype(_rows(self.y, items), dtype)

    def compact_copy(self) -> Pool:
        """A copy that holds only the items that some agent owns."""
        mine = torch.arange(self.members.shape[1]) < self.counts[:, None]
        owned, place = self.members[mine].unique(return_inverse=True)
        members = torch.zeros_like(self.members).masked_scatter(mine, place)
        return replace(self, x=self.x[owned], y=self.y[owned], members=members)

    def first(self, items: int) -> Pool:
        """The same pool, in which each agent owns at most the first `items` of its items."""
        return replace(self, members=self.members[:, :items], counts=self.counts.clamp(max=items))

    @staticmethod
    def of(x: Tensor, y: Tensor, members: Sequence[Tensor]) -> Pool:
        """A pool in which agent k owns the items at positions `members[k]`."""
        counts = torch.tensor([len(own) for own in members])
        for agent, own in enumerate(members):
            if not len(own):
                raise BadInput(f"agent {agent} has no data; give every agent at least one item")
        table = torch.zeros(len(members), int(counts.max()), dtype=torch.long)
        for row, own in zip(table, members, strict=True):
            row[: len(own)] = own
        return Pool(x, y, table, counts)


def pooled(items: Sequence[Items], what: str) -> Pool:
    """One pool from the agents' data, one entry per agent: see `Items`."""
    check_one_per_agent(items, what)
    pairs = [tensors_of(own, f"{what} data of agent {agent}") for agent, own in enumerate(items)]
    for agent, (x, y) in enumerate(pairs):
        for part, first in ((x, pairs[0][0]), (y, pairs[0][1])):
            if part.shape[1:] != first.shape[1:] or part.dtype != first.dtype:
                raise BadInput(
                    f"{what} data of agent {agent} has items of {tuple(part.shape[1:])} {part.dtype}, but those of "
                    f"agent 0 are {tuple(first.shape[1:])} {first.dtype}; all agents need the same shape and type"
                )
    amounts = [len(x) for x, _ in pairs]
    members = list(torch.arange(sum(amounts)).split(amounts))
    return Pool.of(torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs]), members)


@dataclass(frozen=True, eq=False)
class Batches:
    """A stream of batches from a pool. Each agent reads its items in a new random order in every epoch.

    An agent that runs out of items before the epoch ends starts over. An agent that has items left when the epoch ends
    does not see them in this epoch.
    """

    pool: Pool
    batch: int
    rounds_per_pass: int
    """How many rounds an epoch has."""

    @staticmethod
    def of(pool: Pool, batch: int, epoch: EpochEnds | int = "longest") -> Batches:
        """Batches of `batch` items per agent and round.

        An epoch ends when the agent with the most items has seen all of them (`longest`), when the agent with the
        fewest items has (`shortest`), or after a given number of rounds.
        """
        batch = whole_number(batch, "batch", least=1)
        if not isinstance(epoch, str):
            return Batches(pool, batch, whole_number(epoch, "epoch", least=1))
        check_word(epoch, "epoch", EpochEnds)
        last = pool.counts.max() if epoch == "longest" else pool.counts.min()
        return Batches(pool, batch, -(-int(last) // batch))

    @property
    def agents(self) -> int:
        return self.pool.agents

    def to(self, device: torch.device) -> Batches:
        return replace(self, pool=self.pool.to(device))

    def part(self, agents: slice | Int[Tensor, " some"]) -> Batches:
        """The stream of some of the agents, from the same pool."""
        return replace(self, pool=self.pool.part(agents))

    def compact_copy(self) -> Batches:
        """The same stream with a copy of only the data that it needs."""
        return replace(self, pool=self.pool.compact_copy())

    def samples(self, draws: Draws, start: int, rounds: int, dtype: torch.dtype) -> Sample:
        items = torch.stack([self._batch(draws, round) for round in range(start, start + rounds)])
        return self.pool.read(items, dtype)

    def _batch(self, draws: Draws, round: int) -> Int[Tensor, "agent batch"]:
        """The numbers of the items in the batch of a round."""
        epoch, within = divmod(round, self.rounds_per_pass)
        block, place = divmod(within, self.planned)
        return _planned(self, draws, epoch, block)[place]

    @property
    def planned(self) -> int:
        """How many rounds are planned at a time: some hundred thousand items."""
        return max(1, 2**17 // (self.agents * self.batch))

    def places(self, draws: Draws, round: int, skip: int, count: int) -> Int[Tensor, "agent count"]:
        """The batch of a round, and what follows it in the agent's order: `count` items after the first `skip`.

        Each item is given by its place in the agent's row of `pool.members`. The order begins again at its end.
        """
        epoch, within = divmod(round, self.rounds_per_pass)
        first = within * self.batch + skip
        turn = torch.arange(first, first + count, device=self.pool.counts.device)
        return _shuffled(self.pool, draws, epoch).gather(1, turn % self.pool.counts[:, None])


@lru_cache(maxsize=8)
def _planned(batches: Batches, draws: Draws, epoch: int, block: int) -> Sequence[Int[Tensor, "agent batch"]]:
    """The batches of some rounds of an epoch. Cached: to look up a batch takes a tenth of the time of planning it."""
    first = block * batches.planned
    rounds = min(batches.planned, batches.rounds_per_pass - first)
    places = batches.places(draws, epoch * batches.rounds_per_pass + first, 0, rounds * batches.batch)
    return torch.split(batches.pool.members.gather(1, places), batches.batch, dim=1)


def _shuffled(pool: Pool, draws: Draws, epoch: int) -> Int[Tensor, "agent most"]:
    """The places of every agent's items in the order of this epoch."""
    at_once = max(1, 2**15 // pool.members.numel())
    return _shuffles(pool, draws, epoch - epoch % at_once, at_once)[epoch % at_once]


@lru_cache(maxsize=8)
def _shuffles(pool: Pool, draws: Draws, first: int, epochs: int) -> Sequence[Int[Tensor, "agent most"]]:
    """The orders of several epochs. Cached, since all rounds of an epoch need the same one."""
    most = pool.members.shape[1]
    keys = draws.uniform_rounds("shuffle", first, epochs, most)
    keys = keys.masked_fill(torch.arange(most, device=keys.device) >= pool.counts[:, None], 2.0)
    return keys.argsort(dim=2).unbind()


def _rows(values: Tensor, item: Int[Tensor, "*shape"]) -> Tensor:
    """`values[item]`, copied item by item. This takes a fifth of the time of indexing, which copies numbers."""
    return values.index_select(0, item.flatten()).view(*item.shape, *values.shape[1:])


def as_dtype(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Floating-point values in the given type; labels unchanged."""
    return values.to(dtype) if values.is_floating_point() else values


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Measures the loss and other metrics of every agent's model on that agent's held-out items."""

    model: Stacked
    pool: Pool
    metrics: Mapping[str, Metric | OfSet]
    loss_name: str = "test_loss"
    prefix: str = ""
    """Put before the names of the other metrics."""

    def using(self, execution: Execution) -> HeldOut:
        """The same evaluation with the threads and the memory of `execution`."""
        return replace(self, model=self.model.using(execution))

    def to(self, device: torch.device) -> HeldOut:
        placed = {name: one.to(device) if isinstance(one, OfSet) else one for name, one in self.metrics.items()}
        return replace(self, pool=self.pool.to(device), metrics=placed)

    def part(self, agents: slice | Int[Tensor, " some"]) -> HeldOut:
        """The same evaluation for some of the agents."""
        return replace(self, pool=self.pool.part(agents))

    def compact_copy(self) -> HeldOut:
        """The same evaluation with a copy of only the data that it needs."""
        return replace(self, pool=self.pool.compact_copy())

    def without_metrics(self) -> HeldOut:
        """The same evaluation of the loss alone. For softmax regression it takes a tenth of the time."""
        return replace(self, metrics={})

    def __call__(self, models: Float[Tensor, "*trial agent parameter"]) -> Mapping[str, Float[Tensor, "*trial agent"]]:
        """Loss and metrics by name, of every agent's own items: averaged over them, or of all of them together.

        Models may have a dimension for trials before the agents. Items are then read once for all trials.
        """
        return {
            name: torch.cat(parts, -1)
            for name, parts in _transposed([self._of(models, agents) for agents in self._some()]).items()
        }

    def _some(self, values: int = 2**25) -> Sequence[Int[Tensor, " some"]]:
        """The agents in groups that are small enough for one pass."""
        of_agent = self.pool.members.shape[1] * self.pool.x[0].numel()
        values = self.model.execution.numbers_at_once(values)
        return list(torch.arange(self.pool.agents, device=self.pool.x.device).split(max(1, values // (10 * of_agent))))

    def _of(
        self, models: Float[Tensor, "*trial agent parameter"], agents: Int[Tensor, " some"]
    ) -> dict[str, Float[Tensor, "*trial some"]]:
        x, y = (as_dtype(part, models.dtype) for part in self._items(agents))
        own = torch.arange(y.shape[1], device=y.device) < self.pool.counts[agents, None]
        if not self.metrics and self.model.is_softmax(x, y):
            rows = models[..., agents, :].view(-1, len(agents), models.shape[-1]).transpose(0, 1)
            losses = self.model.cross_entropies(rows, x, y).masked_fill(~own[:, None], 0)
            loss: Tensor = (losses.sum(2) / own.sum(1, keepdim=True)).T
            return {self.loss_name: loss.view(*models.shape[:-2], len(agents))}

        def of_trial(rows: Models) -> dict[str, Float[Tensor, " some"]]:
            predicted = self.model.predict_all(rows, x)
            values = {self.loss_name: vmap(vmap(self._one_loss))(predicted, y)}
            of_sets = {name: metric for name, metric in self.metrics.items() if isinstance(metric, OfSet)}
            values |= {
                self.prefix + name: vmap(metric)(predicted, y)
                for name, metric in self.metrics.items()
                if not isinstance(metric, OfSet)
            }
            whole = {name: value.to(rows.dtype).masked_fill(~own, 0) for name, value in values.items()}
            means = {name: value.sum(1) / own.sum(1) for name, value in whole.items()}
            counts = self.pool.counts[agents]
            return means | {
                self.prefix + name: metric(predicted, y, counts).to(rows.dtype) for name, metric in of_sets.items()
            }

        if models.ndim == 2:
            return of_trial(models[agents])
        trials = _transposed([of_trial(rows) for rows in models[:, agents]])
        return {name: torch.stack(values) for name, values in trials.items()}

    def _items(self, agents: Int[Tensor, " some"]) -> tuple[Tensor, Tensor]:
        """The items of some agents, (agent, item, …). Those of a small dataset are kept for the next call."""
        return self._of_everyone if len(agents) == self.pool.agents else self._read(agents)

    @cached_property
    def _of_everyone(self) -> tuple[Tensor, Tensor]:
        return self._read(torch.arange(self.pool.agents, device=self.pool.x.device))

    def _read(self, agents: Int[Tensor, " some"]) -> tuple[Tensor, Tensor]:
        items = self.pool.members[agents]
        return _rows(self.pool.x, items), _rows(self.pool.y, items)

    def _one_loss(self, predicted: Tensor, y: Tensor) -> Tensor:
        return self.model.loss(predicted[None], y[None])


def _transposed(rows: Sequence[Mapping[str, Tensor]]) -> dict[str, list[Tensor]]:
    return {name: [row[name] for row in rows] for name in rows[0]}
