"""Inboxes for tests of rules: that of one agent, written by hand, and those of a random network, agent by agent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from varangian.core.draws import Draws, PairDraws
from varangian.core.graph import Graph
from varangian.core.ground_truth import Truth
from varangian.core.inbox import Inbox
from varangian.core.models.base import Formula
from varangian.core.wiring import Wiring
from varangian.rules.base import Combined, Rule
from varangian.testing.scenarios import Story


def one_agent(
    own: Sequence[float],
    *messages: Sequence[float] | None,
    aim: Sequence[float] | None = None,
    previous: Sequence[float] | None = None,
    step_size: float = 0.1,
    forgetting: float = 0.5,
    groups: Sequence[int] | None = None,
    byzantine: Sequence[int] = (),
    round: int = 0,
) -> Inbox:
    """The inbox of agent 0, which has the model `own` and hears `messages`; None means silence.

    The loss of θ is ‖θ − aim‖²; by default `aim` is zero. The true risk of θ is its loss. `groups` and `byzantine`
    describe all agents, from agent 0 on.
    """
    width, count = len(own), len(messages) + 1
    rows = torch.tensor([own, *(m if m is not None else [0.0] * width for m in messages)], dtype=torch.float64)
    graph = Graph.from_edges(count, [(sender, 0) for sender in range(1, count)])
    table = Wiring.of(graph, torch.zeros(count, dtype=torch.bool), torch.device("cpu")).tables[0]
    arrived = torch.tensor([True, *(m is not None for m in messages)])
    goal = torch.tensor(aim or [0.0] * width, dtype=torch.float64).expand(count, width)
    model = Formula(width, lambda theta, sample: (theta - sample[0]).square().sum(-1))
    normal = torch.tensor([agent not in byzantine for agent in range(count)])
    group = torch.tensor(groups or [0] * count)
    return Inbox(
        model=model,
        rows=rows,
        source=table.senders,
        heard=arrived[table.senders] & table.present,
        own=rows,
        previous=rows if previous is None else torch.tensor(previous, dtype=torch.float64).expand(count, width),
        samples={"next": (goal,), "same": (goal,)},
        fresh=torch.ones(count, 1, dtype=torch.bool),
        trained=torch.ones(count, 1, dtype=torch.bool),
        judged_on="next",
        forgetting=rows.new_full((count, 1), forgetting),
        step_size=rows.new_full((count, 1), step_size),
        truth=Truth(table, rows, group, normal, lambda models: (models - goal).square().sum(1)),
        round=round,
        pairs=PairDraws(Draws.of(0, count), table.receivers, table.senders),
    )


def first_of(rule: Rule[Any], *rounds: Inbox) -> tuple[list[float], list[float] | None]:
    """The model and the weights of agent 0 after these rounds."""
    state = rule.init(rounds[0].own.new_zeros(rounds[0].heard.shape))
    for inbox in rounds:
        combined = rule.combine(inbox, state)
        state = combined.state
    weights = None if combined.weights is None else combined.weights[0].tolist()
    return combined.models[0].tolist(), weights


def random_story(seed: int, agents: int = 8, dense: bool = False) -> Story:
    """Three rounds on a random one-way graph. In every round, about a quarter of the senders are silent."""
    numbers = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=numbers, dtype=torch.float64)

    edges = (torch.rand(agents, agents, generator=numbers) < 0.6).nonzero().numpy()
    own = normal(4, agents, 4)
    sent = own[..., :3].clone()
    sent[torch.rand(4, agents, generator=numbers) < 0.25] = math.nan
    u, y = normal(4, agents, 4), normal(4, agents)
    return Story(Graph.from_edges(agents, edges), own, own + 0.3 * normal(4, agents, 4), sent, u, y, dense=dense)


@dataclass(frozen=True, eq=False)
class Ear:
    """What one agent sees in one round, in plain vectors. `messages` has what it heard, by sender, its own first."""

    agent: int
    own: Tensor
    previous: Tensor
    messages: dict[int, Tensor]
    loss: Callable[[Tensor], float]
    """The loss on the next sample, of a shared part with the agent's own private part, or of a whole model."""
    combined: Tensor
    weights: dict[int, float] | None
    """`combined` and `weights` are the results of the rule, to be tested."""
    mu: float
    nu: float


def ears(story: Story, rule: Rule[Any]) -> Iterator[list[Ear]]:
    """Every round of a story as its agents see it, with the results of `rule`."""
    for inbox, _, combined in story.play(rule):
        yield [_ear(story, inbox, combined, agent) for agent in range(story.graph.agents)]


def _ear(story: Story, inbox: Inbox, combined: Combined[Any], agent: int) -> Ear:
    own, heard = inbox.own[agent], inbox.heard[agent].tolist()
    senders = [agent, *story.graph.neighbours(agent)]
    slots = [slot for slot, sender in enumerate(senders) if heard[slot]]
    sample = tuple(part[agent] for part in inbox.samples["next"])

    def loss(theta: Tensor) -> float:
        return float(story.model.loss(torch.cat((theta, own[len(theta) :])), sample))

    weights = combined.weights
    return Ear(
        agent=agent,
        own=own,
        previous=inbox.previous[agent],
        messages={senders[slot]: inbox.rows[inbox.source[agent, slot]] for slot in slots},
        loss=loss,
        combined=combined.models[agent],
        weights=None if weights is None else {senders[slot]: float(weights[agent, slot]) for slot in slots},
        mu=float(inbox.step_size[agent]),
        nu=float(torch.as_tensor(inbox.forgetting).expand(len(inbox.own), 1)[agent]),
    )


class Average:
    """A smoothed mean in plain numbers: φ ← (1 − ν) φ + ν x, divided by the total weight of the observations."""

    def __init__(self) -> None:
        self.weights: list[float] = []
        self.values: list[float] = []

    def observe(self, value: float, nu: float) -> float:
        self.weights = [weight * (1 - nu) for weight in self.weights] + [nu]
        self.values.append(value)
        return self.mean

    @property
    def mean(self) -> float:
        return sum(w * v for w, v in zip(self.weights, self.values, strict=True)) / sum(self.weights)

    @property
    def concentration(self) -> float:
        """Σ w² of the normalised weights."""
        return sum(w * w for w in self.weights) / sum(self.weights) ** 2


def inverse(evidence: dict[int, float]) -> dict[int, float]:
    """Weights proportional to 1/φ."""
    total = sum(1 / value for value in evidence.values())
    return {who: 1 / value / total for who, value in evidence.items()}


def close(ear: Ear, weights: dict[int, float]) -> None:
    """Assert that the agent has these weights, 0 for all others, and the resulting mix."""
    assert ear.weights is not None
    for sender, weight in ear.weights.items():
        assert math.isclose(weight, weights.get(sender, 0.0), abs_tol=1e-9), (ear.agent, sender)
    mix = sum(
        (weight * ear.messages[sender] for sender, weight in weights.items()), torch.zeros(3, dtype=torch.float64)
    )
    torch.testing.assert_close(ear.combined, torch.cat((mix, ear.own[3:])), atol=1e-9, rtol=1e-9)
