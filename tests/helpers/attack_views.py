"""Helpers for tests of attacks: a view of a small network, and a task that is the same for all agents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from varangian import simulate
from varangian.attacks.base import View
from varangian.core.draws import Draws
from varangian.core.graph import Graph
from varangian.core.messages import ToEach
from varangian.core.models.base import Formula, Sample
from varangian.core.task import Quadratic, Task
from varangian.core.wiring import Wiring
from varangian.testing.scenarios import Stage

GOAL = (1.0, -2.0, 3.0)


def view_of(
    graph: Graph,
    byzantine: Sequence[int],
    adapted: Tensor,
    previous: Tensor | None = None,
    round: int = 0,
    seed: int = 0,
) -> View:
    """What Byzantine agents see. Normal agents average, and their optimum is zero."""
    is_byzantine = torch.isin(torch.arange(graph.agents), torch.tensor(byzantine))
    stage = Stage(graph, is_byzantine, Draws.of(seed, graph.agents), adapted[None])
    wiring = Wiring.of(graph, is_byzantine, torch.device("cpu"))
    return View(
        round=round,
        adapted=adapted,
        previous=torch.zeros_like(adapted) if previous is None else previous,
        byzantine=is_byzantine.nonzero()[:, 0],
        draws=stage.draws.take(is_byzantine.nonzero()[:, 0]),
        wiring=wiring,
        network=torch.zeros(graph.agents, dtype=torch.long),
        insight=stage.insight(wiring, adapted),
        sizes=(adapted.shape[1],),
    )


def column(*numbers: float) -> Tensor:
    """Models with one parameter, one per agent."""
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def sent_by(attack: Any, view: View) -> dict[tuple[int, int], Tensor]:
    """The messages of one round by (sender, receiver), without those of silent senders."""
    sent, _ = attack.send(view, attack.init(view.own))
    edges = list(zip(view.sender.tolist(), view.receiver.tolist(), strict=True))
    rows = sent.rows if isinstance(sent, ToEach) else sent.rows[torch.searchsorted(view.byzantine, view.sender)]
    silent = torch.zeros(len(sent.rows), dtype=torch.bool) if sent.silent is None else sent.silent
    quiet = silent if isinstance(sent, ToEach) else silent[torch.searchsorted(view.byzantine, view.sender)]
    return {edge: row for edge, row, no in zip(edges, rows, quiet.tolist(), strict=True) if not no}


def honest_around(view: View, victim: int) -> list[int]:
    """The victim and its honest neighbours."""
    normal = view.wiring.normal.tolist()
    return [victim, *(k for k in view.wiring.graph.neighbours(victim) if normal[k])]


def byzantine_around(view: View, victim: int) -> list[int]:
    """The Byzantine neighbours of the victim."""
    normal = view.wiring.normal.tolist()
    return [k for k in view.wiring.graph.neighbours(victim) if not normal[k]]


def random_view(seed: int = 0, agents: int = 14, parameters: int = 3) -> View:
    """A random network with five Byzantine agents and random models."""
    numbers = torch.Generator().manual_seed(seed)
    adapted, previous = torch.randn(2, agents, parameters, generator=numbers, dtype=torch.float64)
    graph = Graph.erdos_renyi(agents, 0.5, seed)
    byzantine = torch.randperm(agents, generator=numbers)[:5].tolist()
    return view_of(graph, byzantine, adapted, previous, round=seed, seed=seed)


@dataclass(frozen=True, eq=False)
class Regression:
    """y = xᵀGOAL + noise, the same for all agents."""

    agents: int

    def samples(self, draws: Draws, start: int, rounds: int, dtype: torch.dtype) -> Sample:
        noise = draws.normal_rounds("regression", start, rounds, 4, dtype)
        x = noise[..., :3]
        return x, (x * torch.tensor(GOAL, dtype=dtype)).sum(-1) + 0.3 * noise[..., 3]

    def to(self, device: torch.device) -> Regression:
        return self


def squared_error(theta: Tensor, sample: Sample) -> Tensor:
    x, y = sample
    return ((theta * x).sum(-1) - y).square()


def common_goal(agents: int = 12) -> Task:
    """All agents learn the same from a stream. Without Byzantine agents, averaging would be right."""
    exact = Quadratic(torch.tensor(GOAL).expand(agents, 3), torch.eye(3).expand(agents, 3, 3))
    model = Formula(3, squared_error)
    return Task(model, Regression(agents), step_size=0.05, exact=exact, together=True)


def regret(rule: Any, attack: Any, graph: Graph | None = None, byzantine: int = 3, rounds: int = 60) -> float:
    """The mean regret of normal agents in the last ten rounds, with the task `common_goal`."""
    task = common_goal() if graph is None else common_goal(graph.agents)
    result = simulate(task, graph, rule=rule, attack=attack, byzantine=byzantine, rounds=rounds, device="cpu")
    # Use float64: attacks make the regret of averaging so large that its mean would overflow.
    of_normal = result["regret"].astype("float64").where(~result["byzantine_agent"])
    return float(of_normal.isel(round=slice(-10, None)).mean())
