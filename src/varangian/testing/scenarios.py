"""Small networks in which `varangian.testing` tries candidates: stories for rules, stages for attacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from varangian.attacks.base import Attack, Insight, Rehearsed, View
from varangian.core.draws import Draws, PairDraws
from varangian.core.graph import Graph
from varangian.core.ground_truth import Truth
from varangian.core.inbox import FoldModels, Inbox, SecondModel
from varangian.core.messages import ToAll, ToEach, deliver
from varangian.core.models.base import Formula, Sample
from varangian.core.wiring import Wiring
from varangian.engine.compute.evaluator import Fast
from varangian.rules.base import Combined, Rule

ORDER = torch.tensor([3, 5, 1, 6, 0, 2, 4])
"""Another numbering of the agents: agent ORDER[k] gets the number k."""


@cache
def network() -> Graph:
    """A triangle with a tail, and one-way edges.

    One agent hears five others, one hears nobody but is heard, and one has no edges.
    """
    both = [(0, 1), (1, 2), (0, 2), (2, 3)]
    return Graph.from_edges(7, [*both, *((b, a) for a, b in both), (4, 0), (4, 1), *((a, 5) for a in range(5))])


@lru_cache(maxsize=64)
def wired(graph: Graph) -> Wiring:
    return Wiring.of(graph, torch.ones(graph.agents, dtype=torch.bool), torch.device("cpu"))


# Rules ----------------------------------------------------------------------------------------------------------


class InPart(Formula):
    """A model whose last parameter is never sent."""

    @property
    def shared(self) -> int:
        return self.parameters - 1


def squared_error(theta: Tensor, sample: Sample) -> Tensor:
    """The squared error, but nan for one special model, as losses with a logarithm can be."""
    u, y = sample
    return torch.where(theta[..., 0] == 77, math.nan, (y - (theta * u).sum(-1)).square())


@dataclass(frozen=True, eq=False)
class Story:
    """Three rounds of a small network, as tensors of (round, agent, …), before a rule combines models."""

    graph: Graph
    own: Tensor
    previous: Tensor
    sent: Tensor
    """The message of each agent, honest or not. Nan means silence: the engine treats both in the same way."""
    u: Tensor
    y: Tensor
    model: Formula = InPart(4, squared_error)  # noqa: RUF009
    dense: bool = False
    numbers: Tensor | None = None
    """The agents' numbers, which address their random numbers, as one row. By default 0, 1, 2, …"""

    @staticmethod
    def calm(dtype: torch.dtype, graph: Graph) -> Story:
        """Models are random, and every agent sends its own."""
        own, step, u, y = (Draws.of(5, graph.agents).normal_rounds(what, 0, 4, 4, dtype) for what in "abcd")
        return Story(graph, own, own + step / 10, own[..., :3], u, y[..., 0])

    def with_each(self, change: Callable[[Tensor], Tensor]) -> Story:
        own, previous, sent, u, y = map(change, (self.own, self.previous, self.sent, self.u, self.y))
        numbers = change(torch.arange(self.graph.agents)[None] if self.numbers is None else self.numbers)
        return replace(self, own=own, previous=previous, sent=sent, u=u, y=y, numbers=numbers)

    def inbox(self, round: int) -> Inbox:
        agents, own = self.graph.agents, self.own[round].clone()
        wiring = wired(self.graph)
        delivered = deliver(own[:, :3], ToEach(self.sent[round][wiring.sender]), torch.arange(agents))
        source = wiring.two_faced_sources[0].clone()
        rows, heard = delivered.rows, delivered.heard(source, wiring.tables[0])
        same, next = ((self.u[at].clone(), self.y[at].clone()) for at in (round, round + 1))
        who = torch.arange(agents) if self.numbers is None else self.numbers[0]
        table = wiring.tables[0]
        pairs = PairDraws(Draws(torch.full_like(who, 5), who), table.receivers, table.senders)
        friends = torch.zeros(agents, dtype=torch.long), torch.ones(agents, dtype=torch.bool)
        return Inbox(
            model=self.model,
            rows=rows,
            source=source,
            heard=heard,
            own=own,
            previous=self.previous[round].clone(),
            samples={"next": next, "same": same, "unseen": next},
            fresh=torch.ones(agents, 1, dtype=torch.bool),
            trained=torch.ones(agents, 1, dtype=torch.bool),
            judged_on="next",
            forgetting=own.new_full((agents, 1), 0.3),
            step_size=own.new_full((agents, 1), 0.1),
            second=SecondModel(*(self.previous[round] * 0.9 + self.u[at] * 0.1 for at in (round, round + 1))),
            folds=FoldModels(
                (self.previous[round].clone(), own * 0.9), ((next,), (next,)), own.new_full((agents, 1), 5.0)
            ),
            truth=Truth(table, own, *friends, lambda models: models.square().sum(1)),
            pairs=pairs,
            evaluator=Fast(dense=self.dense, private_rows=len(rows) - agents),
        )

    def play(self, rule: Rule[Any]) -> Iterator[tuple[Inbox, Any, Combined[Any]]]:
        """The inbox, the state before and the outcome of every round."""
        state = rule.init(self.own.new_zeros(self.inbox(0).heard.shape))
        for round in range(3):
            inbox = self.inbox(round)
            combined = rule.combine(inbox, state)
            yield inbox, state, combined
            state = combined.state

    def outcome(self, rule: Rule[Any]) -> list[Tensor]:
        """Models (round, agent, parameter) and, if the rule has weights, weights (round, receiver, sender).

        Personal models follow the models in the last dimension.
        """
        told = [combined for _, _, combined in self.play(rule)]
        senders, nothing = self.graph.neighbourhoods()[0].senders, self.own.new_zeros(2 * [self.graph.agents])
        weights = [nothing.scatter_add(1, senders, c.weights) for c in told if c.weights is not None]
        return [torch.stack(part) for part in ([_both_models(c) for c in told], weights) if part]


def _both_models(combined: Combined[Any]) -> Tensor:
    return combined.models if combined.personal is None else torch.cat((combined.models, combined.personal), 1)


def stories(dtype: torch.dtype) -> Iterator[Story]:
    """The calm story, for both ways in which the engine stores messages."""
    calm = Story.calm(dtype, network())
    yield from (calm, replace(calm, dense=True))


def relabelled(graph: Graph) -> Graph:
    place = ORDER.argsort()
    return Graph.from_edges(7, torch.stack((place[graph.senders], place[graph.receivers]), 1).numpy())


@dataclass(frozen=True, eq=False)
class Stage:
    """A small network and its Byzantine agents; models are (round, agent, parameter)."""

    graph: Graph
    lying: Tensor
    draws: Draws
    models: Tensor

    @staticmethod
    def of(dtype: torch.dtype, parameters: int, seed: int = 0, liars: Sequence[int] = (1, 4, 5)) -> Stage:
        draws = Draws.of(seed, 7)
        models = draws.normal_rounds("models", 0, 7, parameters, dtype)
        return Stage(network(), torch.isin(torch.arange(7), torch.tensor(liars)), draws, models)

    def play(self, attack: Attack[Any]) -> Iterator[tuple[View, Any, Any]]:
        """The view, the state before and the messages, in early and late rounds, because some attacks wait."""
        wiring = Wiring.of(self.graph, self.lying, torch.device("cpu"))
        byzantine = self.lying.nonzero()[:, 0]
        state = attack.init(self.models[0, byzantine])
        network = self.draws.seed.unique(return_inverse=True)[1]
        for at, round in enumerate((0, 1, 2, 3, 10**6, 10**6 + 1)):
            adapted, previous, draws = self.models[at + 1].clone(), self.models[at].clone(), self.draws.take(byzantine)
            insight, sizes = self.insight(wiring, adapted), (adapted.shape[1],)
            view = View(round, adapted, previous, byzantine, draws, wiring, network, insight, sizes)
            sent, after = attack.send(view, state)
            yield view, state, sent
            state = after

    def insight(self, wiring: Wiring, adapted: Tensor) -> Insight:
        """An insight into agents that average all messages, and whose true risk is the squared distance to zero."""
        model = Formula(adapted.shape[1], lambda theta, sample: (theta - sample[0]).square().sum(-1))
        byzantine = self.lying.nonzero()[:, 0]

        def foresee(sent: ToAll | ToEach, rule: Rule[Any] | None = None) -> Tensor:
            delivered = deliver(adapted, sent, byzantine)
            source = wiring.two_faced_sources[0] if delivered.two_faced else wiring.tables[0].senders
            heard = delivered.heard(source, wiring.tables[0]).to(adapted.dtype)
            return (heard[:, :, None] * delivered.rows[source]).sum(1) / heard.sum(1, keepdim=True)

        def foresee_each(told: Tensor, rule: Rule[Any] | None = None) -> Tensor:
            return torch.stack([foresee(ToEach(rows[wiring.receiver]), rule) for rows in told])

        def rehearse(attack: Attack[Any], state: Any, rounds: int, start: int = 0) -> Rehearsed:
            """Agents start every round with the same models, so only the last messages count."""
            network, draws = self.draws.seed.unique(return_inverse=True)[1], self.draws.take(byzantine)
            models = adapted
            for ahead in range(start, start + rounds):
                view = View(ahead, adapted, adapted, byzantine, draws, wiring, network, insight, (adapted.shape[1],))
                sent, state = attack.send(view, state)
                models = foresee(sent)
            return Rehearsed(models, partial(rehearse, attack, state, start=start + rounds))

        insight = Insight(
            model=model,
            models=adapted,
            sample=(adapted * 0.9,),
            risk=lambda models: models.square().sum(-1),
            foresee=foresee,
            foresee_each=foresee_each,
            rehearse=rehearse,
            upcoming=lambda: (adapted * 0.8,),
        )
        return insight

    def outcome(self, attack: Attack[Any]) -> list[Tensor]:
        """The messages of each round, by sender or by sender and receiver. The last column is 1 for silence."""
        out: list[Tensor] = []
        for view, _, sent in self.play(attack):
            rows = sent.rows.new_zeros(len(sent.rows), 1) if sent.silent is None else sent.silent[:, None]
            message = torch.cat((sent.rows, rows.to(sent.rows.dtype)), 1)
            where = (view.byzantine,) if isinstance(sent, ToAll) else (view.sender, view.receiver)
            out.append(message.new_zeros(*[self.graph.agents] * len(where), message.shape[1]).index_put(where, message))
        return out
