"""Judging less: exactly the rule when nothing is spared, and nothing trusted unseen when something is."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from inboxes import random_story
from torch import Tensor, nn

from varangian import BadInput, attacks, rules
from varangian.core.execution import DEFAULT
from varangian.core.graph import Graph
from varangian.core.models.base import Formula
from varangian.core.models.stacked import Stacked
from varangian.core.scene import Scene
from varangian.core.task import Task
from varangian.engine.round import play_round
from varangian.engine.state import begin
from varangian.engine.world import prepare
from varangian.studies.target_localization import target_localization
from varangian.testing import check_rule
from varangian.testing.scenarios import Story


def softmax(agents: int = 6) -> Task:
    noise = torch.Generator().manual_seed(0)
    data = [(torch.randn(8, 5, generator=noise), torch.randint(0, 3, (8,), generator=noise)) for _ in range(agents)]
    torch.manual_seed(0)
    return Task.supervised(nn.Linear(5, 3), nn.functional.cross_entropy, data, batch=4, step_size=0.3)


def weights_of(task: Task, graph: Graph, rule: Any, attack: Any, rounds: int = 8) -> list[Tensor]:
    world = prepare([Scene(task, graph)], [0], [1], DEFAULT, torch.float64)
    state, out = begin(world, rule, attack), list[Tensor]()
    with torch.no_grad():
        for _ in range(rounds):
            state, seen = play_round(world, rule, attack, state)
            assert seen.weights[0] is not None
            out.append(seen.weights[0])
    return [*out, state.models]


@pytest.mark.parametrize(
    "graph", [Graph.complete(6), Graph.ring(6, 1), Graph.star(6)], ids=["complete", "ring", "star"]
)
@pytest.mark.parametrize("attack", [attacks.uniform(0, 1), attacks.pulling((0.0,), 0.5), attacks.not_finite()], ids=str)
def test_with_nothing_spared_it_is_the_papers_rule(graph: Graph, attack: Any) -> None:
    # The loss of a softmax model of 1e38 is a matter of rounding, and says nothing twice.
    tasks = [target_localization(agents=6).scene(0).task] + [softmax()] * (attack != attacks.not_finite())
    for task in tasks:
        exact, spared = (weights_of(task, graph, rule, attack) for rule in (rules.loss_based(), rules.sparing()))
        for one, other in zip(exact, spared, strict=True):
            torch.testing.assert_close(other, one, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("rule", [rules.sparing(every=2), rules.sparing(back_off=4)], ids=str)
def test_it_keeps_the_contract(rule: rules.sparing) -> None:
    check_rule(rule)


def test_every_other_round_agents_keep_to_themselves() -> None:
    """A model that nobody looked at has no weight, however good its sender was before."""
    weights = weights_of(softmax(), Graph.complete(6), rules.sparing(every=2), attacks.silent())[:-1]
    alone = torch.zeros(6, 6, dtype=torch.float64)
    alone[:, 0] = 1
    for round, table in enumerate(weights):
        assert torch.equal(table, alone) == (round % 2 == 1)


class Watch:
    """A rule that notes who is judged, round by round."""

    def __init__(self, rule: rules.sparing) -> None:
        self.rule, self.judged = rule, list[list[list[int]]]()

    def init(self, table: Tensor) -> Any:
        return self.rule.init(table)

    def combine(self, inbox: Any, state: Any) -> Any:
        loss_where = inbox.loss_where

        def noted(due: Tensor, *rest: Any) -> Tensor:
            loss: Tensor = loss_where(due, *rest)
            self.judged.append([row.nonzero()[:, 0].tolist() for row in loss < math.inf])
            return loss

        object.__setattr__(inbox, "loss_where", noted)
        return self.rule.combine(inbox, state)


def judged_by_agent_0(rule: rules.sparing, rounds: int, goal: float = 5.0) -> list[list[int]]:
    """Three agents who hear each other; 0 and 1 are good at once, 2 sends nonsense until `goal` rounds are over."""

    class Still:
        agents = 3

        def samples(self, draws: Any, start: int, rounds: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
            return (torch.ones(rounds, 3, dtype=dtype),)

        def to(self, device: torch.device) -> Any:
            return self

    model = Formula(1, lambda theta, sample: (theta[..., 0] - sample[0]).square())
    task = Task(model, Still(), step_size=0.3, forgetting=1.0)
    watch = Watch(rule)
    world = prepare([Scene(task, Graph.complete(3))], [0], [2], DEFAULT, torch.float64)
    attack = attacks.uniform(9, 9)
    state = begin(world, watch, attack)
    with torch.no_grad():
        for round in range(rounds):
            now = attack if round < goal else attacks.uniform(1, 1)
            state, _ = play_round(world, watch, now, state)
    return [judged[0] for judged in watch.judged]


def test_who_stays_rejected_is_looked_at_less_and_less() -> None:
    """After one round, then two, four, and never less often than every eighth."""
    looks = [round for round, judged in enumerate(judged_by_agent_0(rules.sparing(back_off=8), 40, 99)) if 2 in judged]
    assert looks == [0, 2, 5, 10, 18, 26, 34]


def test_who_is_kept_once_is_judged_every_time_again() -> None:
    looks = [round for round, judged in enumerate(judged_by_agent_0(rules.sparing(back_off=8), 30, 6)) if 2 in judged]
    assert looks[:4] == [0, 2, 5, 10]
    assert looks[4:] == list(range(11, 30))


def test_turns_reach_everyone() -> None:
    """Two of five a round: all of them within three rounds, oneself always."""
    watch = Watch(rules.sparing(most=2))
    world = prepare([Scene(softmax(), Graph.complete(6))], [0], 0, DEFAULT, torch.float64)
    state = begin(world, watch, attacks.silent())
    with torch.no_grad():
        for _ in range(15):
            state, _ = play_round(world, watch, attacks.silent(), state)
    for agent in range(6):
        rounds = [judged[agent] for judged in watch.judged]
        assert all(len(slots) == 3 and 0 in slots for slots in rounds)
        assert all({1, 2, 3, 4, 5} <= {slot for slots in rounds[at : at + 3] for slot in slots} for at in range(12))
        counts = Counter(slot for slots in rounds for slot in slots)
        assert {counts[slot] for slot in range(1, 6)} == {6}


# What is computed ----------------------------------------------------------------------------------------------


def stories() -> list[Story]:
    return [random_story(seed, dense=dense) for seed in range(4) for dense in (True, False)]


def test_losses_of_those_who_are_due() -> None:
    """The same losses, on both layouts of messages; nothing of the others."""
    for number, story in enumerate(stories()):
        inbox = story.inbox(0)
        due = torch.rand(inbox.heard.shape, generator=torch.manual_seed(number)) < 0.4
        expected = torch.where(due, inbox.loss(), math.inf)
        torch.testing.assert_close(inbox.loss_where(due), expected)


def test_losses_of_nobody_and_of_everybody() -> None:
    for story in stories():
        inbox = story.inbox(0)
        assert bool((inbox.loss_where(torch.zeros_like(inbox.heard)) == math.inf).all())
        torch.testing.assert_close(inbox.loss_where(torch.ones_like(inbox.heard)), inbox.loss())


class Counting:
    """A network that counts how many pairs of model and batch it judges, and on how many items."""

    def __init__(self, model: Stacked) -> None:
        self.model, self.pairs, self.items = model, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def judge(self, models: Tensor, sample: Any) -> Tensor:
        self.pairs, self.items = self.pairs + models.shape[0] * models.shape[1], sample[0].shape[1]
        return self.model.judge(models, sample)

    def judge_all(self, models: Tensor, sample: Any) -> Tensor:
        self.pairs, self.items = self.pairs + len(models) * len(sample[0]), sample[0].shape[1]
        return self.model.judge_all(models, sample)


def judging(rule: Any, graph: Graph, rounds: int = 12) -> tuple[int, int]:
    task = softmax(graph.agents)
    world = prepare([Scene(task, graph)], [0], 0, DEFAULT, torch.float64)
    counting = Counting(task.model)  # type: ignore[arg-type]
    world = replace(world, judging=counting)
    state = begin(world, rule, attacks.silent())
    with torch.no_grad():
        for _ in range(rounds):
            state, _ = play_round(world, rule, attacks.silent(), state)
    return counting.pairs, counting.items


@pytest.mark.parametrize("graph", [Graph.complete(20), Graph.ring(20, 3)], ids=["dense", "sparse"])
def test_what_is_spared_is_not_computed(graph: Graph) -> None:
    full, items = judging(rules.loss_based(), graph)
    assert full == 12 * len(graph.senders)
    assert judging(rules.sparing(every=3), graph)[0] == full / 3
    assert judging(rules.sparing(most=1), graph)[0] <= 12 * 20 * 3
    assert judging(rules.sparing(part=0.5), graph) == (full, items / 2)


def test_back_off_saves_where_neighbours_differ() -> None:
    """Agents reject different neighbours, and a few who have all of them due do not make the others pay."""
    graph = Graph.ring(40, 4)
    full, _ = judging(rules.loss_based(), graph, 30)
    assert judging(rules.sparing(back_off=16), graph, 30)[0] < 0.8 * full


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": 0}, "every to be at least 1"),
        ({"back_off": 0}, "back_off to be at least 1"),
        ({"most": -1}, "most to be at least 1"),
        ({"part": 0.0}, "part is 0.0"),
        ({"part": 1.5}, "part is 1.5"),
        ({"smoothing": 2.0}, "forgetting factor"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        rules.sparing(**settings)


def test_a_part_of_what_is_no_batch() -> None:
    task = target_localization(agents=6).scene(0).task
    with pytest.raises(BadInput, match="this task has no batches"):
        weights_of(task, Graph.complete(6), rules.sparing(part=0.5), attacks.silent(), 1)
