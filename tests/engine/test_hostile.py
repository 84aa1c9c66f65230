"""Whatever arrives, normal agents have finite models and row-stochastic weights in every round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import varangian
from varangian import BadInput, Graph, Task, attacks, rules
from varangian.attacks import ToAll, View
from varangian.core.draws import Draws
from varangian.core.inbox import Inbox
from varangian.core.models.base import Formula, Sample
from varangian.core.optimisers import adam, sgd
from varangian.rules import Combined

torch.set_num_threads(1)

RULES = [
    rules.alone(),
    rules.average(),
    rules.distance_based(),
    rules.distance_based(target="ahead", smoothing=1.0),
    rules.distance_based(p=1),
    rules.loss_based(),
    rules.loss_based(keep="all"),
    rules.loss_based(weigh="regret"),
    rules.loss_based(keep="all", weigh="regret", judge="same", smoothing=1.0),
]
every_rule = pytest.mark.parametrize("rule", RULES, ids=repr)
AGENTS = 8


@dataclass(frozen=True)
class huge:
    """Sends the largest possible numbers of either sign."""

    value: float = 1e38

    def init(self, own: Tensor) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToAll, tuple[()]]:
        sign = 1 - 2 * (view.byzantine % 2)
        return ToAll((sign[:, None] * self.value).to(view.own.dtype).expand_as(view.own)), state


@dataclass(frozen=True)
class coming_and_going:
    """Randomly silent or not finite, and otherwise honest."""

    def init(self, own: Tensor) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToAll, tuple[()]]:
        lot = view.draws.uniform("mood", view.round, 1, view.own.dtype)
        return ToAll(view.own.masked_fill(lot < 0.3, math.nan), silent=lot[:, 0] > 0.7), state


@dataclass(frozen=True, eq=False)
class Line:
    """Samples (u, y) with y = u·θ* + noise; `spoil` may change them in any way."""

    spoilt: str = ""

    @property
    def agents(self) -> int:
        return AGENTS

    def samples(self, draws: Draws, start: int, rounds: int, dtype: torch.dtype) -> Sample:
        u = draws.normal_rounds("u", start, rounds, 2, dtype)
        y = u.sum(-1) + draws.normal_rounds("y", start, rounds, 1, dtype)[..., 0] / 10
        bad = (torch.arange(start, start + rounds) % 3 == 1)[:, None] & (torch.arange(AGENTS) % 2 == 0)
        if self.spoilt == "zero":
            u, y = u * 0, y * 0
        elif self.spoilt == "always nan":
            u = torch.full_like(u, math.nan)
        elif self.spoilt:
            y = y.masked_fill(bad, float(self.spoilt))
        return u, y

    def to(self, device: torch.device) -> Line:
        return self


def squared_error(theta: Tensor, sample: Sample) -> Tensor:
    u, y = sample
    return (y - (theta * u).sum(-1)).square()


def line(spoilt: str = "", **settings: Any) -> Task:
    first = settings.pop("first", None)
    return Task(Formula(2, squared_error, first=first), Line(spoilt), step_size=0.05, **settings)


class Watched:
    """Checks in every round all results of a rule and all values of an agent."""

    def __init__(self, rule: Any) -> None:
        self.rule = rule
        self.rounds = 0
        self.models: list[Tensor] = []

    def init(self, table: Tensor) -> Any:
        return self.rule.init(table)

    def combine(self, inbox: Inbox, state: Any) -> Combined[Any]:
        combined = self.rule.combine(inbox, state)
        assert bool(inbox.rows.isfinite().all()), "a message that is not finite was accepted"
        weights = combined.weights
        assert weights is not None
        assert bool((weights >= 0).all())
        assert torch.allclose(weights.sum(1), torch.ones_like(weights[:, 0]))
        # Slot 0 is not checked: the own message of a Byzantine agent may be invalid, and it keeps its model then.
        assert bool((weights[:, 1:][~inbox.heard[:, 1:]] == 0).all())
        return combined

    def start(self, world: Any, state: Any, rounds: int) -> None: ...

    def round(self, world: Any, state: Any, recorder: Any) -> None:
        self.rounds += 1
        assert bool(state.models[~world.is_byzantine].isfinite().all()), f"models not finite after {state.round}"
        self.models.append(state.models.clone())

    def end(self, world: Any, state: Any) -> None: ...


def survives(rule: Any, task: Task, attack: Any = None, byzantine: int | Sequence[int] = 0, **how: Any) -> list[Tensor]:
    watched = Watched(rule)
    settings: dict[str, Any] = {"graph": Graph.complete(AGENTS), "rounds": 12} | how
    result = varangian.simulate(task, rule=watched, attack=attack, byzantine=byzantine, callbacks=[watched], **settings)
    assert watched.rounds == settings["rounds"]
    normal = ~result["byzantine_agent"].values[0]
    shares = result["byzantine_weight"].values[0][:, normal]
    assert np.all((shares >= 0) & (shares <= 1 + 1e-6))
    return watched.models


@every_rule
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "attack", [attacks.not_finite(), huge(), huge(3e38), attacks.silent(), coming_and_going()], ids=repr
)
def test_hostile_messages(rule: Any, attack: Any, dtype: str) -> None:
    survives(rule, line(), attack, 3, dtype=dtype)
    survives(rule, line(), attack, [0, 2, 3, 4, 5, 6, 7], dtype=dtype)  # all neighbours of agent 1


@every_rule
@pytest.mark.parametrize(
    "graph", [Graph.ring(AGENTS), Graph.star(AGENTS), Graph.from_edges(AGENTS, [(0, 1), (2, 1), (3, 4)])], ids=repr
)
def test_hostile_messages_on_sparse_graphs(rule: Any, graph: Graph) -> None:
    for attack in (attacks.not_finite(), huge(), coming_and_going()):
        survives(rule, line(), attack, [0, 2], graph=graph)


@every_rule
def test_non_finite_neighbours_are_as_good_as_none(rule: Any) -> None:
    """An agent that hears only nan learns as if alone, bit for bit."""
    others = [0, 2, 3, 4, 5, 6, 7]
    learnt = survives(rule, line(), huge(math.nan), others)
    alone = survives(rules.alone(), line(), huge(math.nan), others)
    assert all(torch.equal(a[1], b[1]) for a, b in zip(learnt, alone, strict=True))
    assert not torch.equal(learnt[-1][1], learnt[0][1])


@every_rule
@pytest.mark.parametrize("spoilt", ["zero", "nan", "inf", "1e38", "always nan"])
@pytest.mark.parametrize("optimiser", [sgd(), sgd(momentum=0.9), adam()], ids=repr)
def test_hostile_data(rule: Any, spoilt: str, optimiser: Any) -> None:
    survives(rule, line(spoilt, optimiser=optimiser), attacks.not_finite(), 2, rounds=8)


@every_rule
def test_losses_of_exactly_zero_share_all_weight(rule: Any) -> None:
    models = survives(rule, line("zero"))
    assert all(bool((m == 0).all()) for m in models)


@every_rule
def test_losses_below_zero(rule: Any) -> None:
    below = Formula(2, lambda theta, sample: squared_error(theta, sample) - 1)
    survives(rule, replace(line(), model=below), attacks.uniform(-3, 3), 3)


@every_rule
def test_first_models_of_1e38(rule: Any) -> None:
    survives(rule, line(first=lambda agents: torch.full((agents, 2), 1e38)), huge(), 2)


@pytest.mark.parametrize("optimiser", [sgd(), sgd(momentum=0.9), adam()], ids=repr)
@pytest.mark.parametrize("spoilt", ["nan", "inf", "1e38", "1e22"])
def test_an_agent_learns_on_after_a_spoilt_sample(optimiser: Any, spoilt: str) -> None:
    """A rejected step or a huge gradient must not stop learning: later samples still change the model."""
    models = survives(rules.alone(), line(spoilt, optimiser=optimiser), rounds=30)
    late = torch.stack(models)[-10:, ::2]
    assert bool((late.diff(dim=0) != 0).any(2).any(0).all()), "frozen for good"


def test_a_liar_cannot_buy_trust_with_silence() -> None:
    """A sender that is silent at first and then far off gets no weight from loss-based."""
    result = varangian.simulate(
        line(), Graph.complete(AGENTS), rule=rules.loss_based(), attack=late_liar(), byzantine=3, rounds=30
    )
    assert float(result["byzantine_weight"].where(~result["byzantine_agent"]).max()) == 0


@dataclass(frozen=True)
class late_liar:
    def init(self, own: Tensor) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToAll, tuple[()]]:
        return ToAll(torch.full_like(view.own, 100.0), silent=view.nobody() if view.round < 20 else None), state


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"byzantine": 9}, "byzantine must be between 0 and 8, but is 9; the network has 8 agents"),
        ({"byzantine": -1}, "but is -1"),
        ({"byzantine": 1.5}, "share"),
        ({"byzantine": [8]}, "agent 8"),
        ({"byzantine": [-1]}, "agent -1"),
        ({"rounds": 0}, "rounds must be a whole number of at least 1"),
        ({"seeds": 0}, "seeds must be a whole number of at least 1"),
        ({"seeds": []}, "at least one seed"),
        ({"seeds": -2}, "seeds must be a whole number of at least 1"),
        ({"dtype": "float16"}, "unknown dtype"),
        ({"device": "tpu9"}, "device"),
        ({"record_every": 0}, "record_every"),
        ({"graph": Graph.complete(3)}, "the graph has 3 agents, but the task has 8"),
        ({"graph": lambda round: Graph.complete(3)}, "the graph has 3 agents, but the task has 8"),
        ({"attack": attacks.pulling((1.0, 2.0, 3.0)), "byzantine": 2}, "3 coordinates"),
    ],
)
def test_bad_input_gets_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        varangian.simulate(line(), **({"graph": Graph.complete(AGENTS), "rounds": 3} | settings))
    assert "\n" not in str(caught.value)
