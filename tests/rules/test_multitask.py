"""Rules from multi-task learning: by hand, against loops that read as the papers do, and what they are good for."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from contracts import beyond_defaults
from hypothesis import given, settings
from hypothesis import strategies as st
from inboxes import Average, Ear, close, ears, first_of, inverse, one_agent, random_story
from torch import Tensor

from varangian import BadInput, Task, rules, simulate
from varangian.attacks import pulling, uniform
from varangian.core.draws import Draws
from varangian.core.models.base import Formula, Sample
from varangian.core.task import Quadratic
from varangian.experiments.spec import made
from varangian.rules.multitask import MOST_SUBSETS, f_resilient, mean_regularised, relationship_learning
from varangian.studies import target_localization
from varangian.testing import check_rule

torch.set_num_threads(1)


RULES = [
    f_resilient(),
    f_resilient(f=1, smoothing=1.0),
    f_resilient(f=0.5, judge="same"),
    f_resilient(search="exact"),
    f_resilient(f=3, search="exact"),
    relationship_learning(),
    relationship_learning(strength=10.0, epsilon=0.1),
    mean_regularised(),
    mean_regularised(strength=0.0),
]


@pytest.mark.parametrize("rule", beyond_defaults(RULES), ids=repr)
def test_every_rule_keeps_the_contract(rule: Any) -> None:
    check_rule(rule)


# By hand --------------------------------------------------------------------------------------------------------


def test_greedy_search_leaves_out_whoever_costs_most() -> None:
    # Distances² to the last model (0, 0): 1, 1, 4, 16, so 1/φ²: 1, 1, 1/16, 1/256; losses about (3, 0): 4, 16, 25, 1.
    # Contributions of the neighbours: 16, 25/16, 1/256.
    inbox = one_agent([1, 0], [-1, 0], [-2, 0], [4, 0], aim=[3, 0], previous=[0, 0])
    model, weights = first_of(f_resilient(f=1), inbox)
    assert weights == pytest.approx([16 / 21, 0, 4 / 21, 1 / 21])
    assert model == pytest.approx([(16 - 8 + 4) / 21, 0])
    assert first_of(f_resilient(f=2), inbox)[1] == pytest.approx([16 / 17, 0, 0, 1 / 17])
    assert first_of(f_resilient(f=3), inbox)[1] == pytest.approx([1, 0, 0, 0])


def test_exact_search_judges_the_combined_model() -> None:
    # With equal distances: without the first (own, 2nd, 3rd) → (1, 0); without the 2nd → (1/3, 2/3); without the 3rd
    # → (1/3, -2/3). Alone the third is the best neighbour, and the aim lies where it is left out.
    inbox = one_agent([1, 0], [-1, 0], [0, -1], [0, 1], aim=[0, -1 / 3], previous=[0, 0])
    assert first_of(f_resilient(f=1, search="exact"), inbox)[1] == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
    inbox = one_agent([1, 0], [-1, 0], [0, -1], [0, 1], aim=[1, 0], previous=[0, 0])
    assert first_of(f_resilient(f=1, search="exact"), inbox)[1] == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])


@pytest.mark.parametrize("search", ["greedy", "exact"])
def test_who_is_silent_is_not_counted_among_those_left_out(search: Any) -> None:
    inbox = one_agent([1, 0], None, [-1, 0], [0, 1], aim=[1, 1], previous=[0, 0])
    rule = f_resilient(f=0.5, search=search)
    assert first_of(rule, inbox)[1] == pytest.approx([0.5, 0, 0, 0.5])


def test_the_exact_search_is_refused_where_it_would_never_end() -> None:
    ways = math.comb(30, 6)
    assert ways > MOST_SUBSETS
    with pytest.raises(BadInput, match=f"{ways} ways to leave out 6 of 30.*search=greedy") as refused:
        f_resilient(search="exact").init(torch.zeros(2, 31))
    assert "\n" not in str(refused.value)
    f_resilient(f=2, search="exact").init(torch.zeros(2, 31))
    f_resilient().init(torch.zeros(2, 31))
    with pytest.raises(BadInput, match="ways to leave out"):
        simulate(means(40, 2), rule=f_resilient(search="exact"), rounds=1)


def test_relationship_learning_shrinks_what_few_tasks_share() -> None:
    # Orthogonal models of length 3 and 1: (ΘᵀΘ)^½ = diag(3, 1), Ω = diag(¾, ¼), and own column times ¾ / (¾ + ¼).
    inbox = one_agent([3, 0], [0, 1], step_size=0.5)
    model, weights = first_of(relationship_learning(strength=0.5, epsilon=1e-12), inbox)
    assert model == pytest.approx([2.25, 0])
    assert weights is None
    # Two alike: Ω = ½ [[1, 1], [1, 1]], of which own model is all eigenvalue 1.
    alike = one_agent([1, 1], [1, 1], step_size=0.5)
    assert first_of(relationship_learning(strength=0.5, epsilon=1e-12), alike)[0] == pytest.approx([0.8, 0.8])
    assert first_of(relationship_learning(strength=0.0), alike)[0] == pytest.approx([1, 1])


def test_mean_regularised_goes_part_of_the_way() -> None:
    inbox = one_agent([4, 0], [0, 2], None, [2, 4])
    model, weights = first_of(mean_regularised(strength=0.3), inbox)
    assert weights == pytest.approx([0.8, 0.1, 0, 0.1])
    assert model == pytest.approx([3.4, 0.6])
    assert first_of(mean_regularised(strength=1.0), inbox) == first_of(rules.average(), inbox)
    assert first_of(mean_regularised(strength=0.0), inbox) == first_of(rules.alone(), inbox)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("f-resilient:f=1.5", "whole number"),
        ("f-resilient:smoothing=2", "ν"),
        ("f-resilient:search=random", "known: exact, greedy"),
        ("relationship-learning:strength=-1", "strength is -1"),
        ("relationship-learning:epsilon=0", "epsilon is 0"),
        ("mean-regularised:strength=1.1", "strength is 1.1"),
    ],
)
def test_settings_out_of_bounds_are_refused(text: str, said: str) -> None:
    named = {"f-resilient": f_resilient, "relationship-learning": relationship_learning}
    with pytest.raises(BadInput, match=said):
        made(text, "rule", named | {"mean-regularised": mean_regularised})


# Against loops --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("search", ["greedy", "exact"])
@given(seed=st.integers(0, 2**31), f=st.sampled_from([0.0, 0.3, 0.5, 1, 2, 9]), dense=st.booleans())
@settings(max_examples=10, deadline=None)
def test_f_resilient_equals_a_loop(search: Any, seed: int, f: float, dense: bool) -> None:
    distances: dict[tuple[int, int], Average] = {}
    for round in ears(random_story(seed, dense=dense), f_resilient(f=f, search=search)):
        for ear in round:
            phi = {
                who: distances.setdefault((ear.agent, who), Average()).observe(
                    float((ear.previous[:3] - message).norm() ** 2), ear.nu
                )
                for who, message in ear.messages.items()
            }
            neighbours = [who for who in ear.messages if who != ear.agent]
            count = math.ceil(f * len(neighbours) - 1e-9) if f < 1 else min(int(f), len(neighbours))
            leave = by_cost(ear, phi, neighbours, count) if search == "exact" else by_rank(ear, phi, neighbours, count)
            close(ear, inverse({who: value for who, value in phi.items() if who not in leave}))


def by_cost(ear: Ear, phi: dict[int, float], neighbours: list[int], count: int) -> tuple[int, ...]:
    def cost(leave: tuple[int, ...]) -> float:
        weights = inverse({who: value for who, value in phi.items() if who not in leave})
        return ear.loss(torch.stack([weight * ear.messages[who] for who, weight in weights.items()]).sum(0))

    return min(itertools.combinations(neighbours, count), key=cost)


def by_rank(ear: Ear, phi: dict[int, float], neighbours: list[int], count: int) -> tuple[int, ...]:
    weights = inverse(phi)
    return tuple(sorted(neighbours, key=lambda who: -(weights[who] ** 2) * ear.loss(ear.messages[who]))[:count])


def test_subsets_in_pieces_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    story = random_story(3)
    usual = story.outcome(f_resilient(f=2, search="exact"))
    monkeypatch.setattr("varangian.core.layout.PIECE", 200)
    for one, other in zip(usual, story.outcome(f_resilient(f=2, search="exact")), strict=True):
        torch.testing.assert_close(one, other)


@given(seed=st.integers(0, 2**31), strength=st.floats(0.01, 10), epsilon=st.floats(1e-3, 1))
@settings(max_examples=15, deadline=None)
def test_relationship_learning_equals_the_matrices_of_the_paper(seed: int, strength: float, epsilon: float) -> None:
    for round in ears(random_story(seed), relationship_learning(strength, epsilon)):
        for ear in round:
            theta = np.stack([message.numpy() for message in ear.messages.values()], axis=1)
            _, singular, right = np.linalg.svd(theta, full_matrices=False)
            root = right.T @ np.diag(singular) @ right
            np.testing.assert_allclose(root @ root, theta.T @ theta, atol=1e-9)
            omega = root / np.trace(root) + epsilon * np.eye(len(root))
            step = theta @ np.linalg.inv(np.eye(len(root)) + ear.mu * strength * np.linalg.inv(omega))
            np.testing.assert_allclose(ear.combined[:3].numpy(), step[:, 0], atol=1e-7)
            assert ear.weights is None


@given(seed=st.integers(0, 2**31), strength=st.floats(0, 1))
@settings(max_examples=10, deadline=None)
def test_mean_regularised_equals_a_loop(seed: int, strength: float) -> None:
    for round in ears(random_story(seed), mean_regularised(strength)):
        for ear in round:
            weights = dict.fromkeys(ear.messages, strength / len(ear.messages))
            weights[ear.agent] += 1 - strength
            close(ear, weights)


# What they are good for -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Noisy:
    """Every agent sees its own mean with noise; a sample is that many numbers."""

    mean: Tensor

    @property
    def agents(self) -> int:
        return len(self.mean)

    def samples(self, draws: Draws, start: int, rounds: int, dtype: torch.dtype) -> Sample:
        return (self.mean.to(dtype) + draws.normal_rounds("noise", start, rounds, self.mean.shape[1], dtype),)

    def to(self, device: torch.device) -> Noisy:
        return self


def means(agents: int, width: int, of: Tensor | None = None) -> Task:
    """Estimate a mean; everybody's is the same unless given."""
    mean = torch.ones(agents, width, dtype=torch.float64) if of is None else of
    curvature = torch.eye(width, dtype=torch.float64).expand(agents, width, width)
    model = Formula(width, lambda theta, sample: (theta - sample[0]).square().sum(-1))
    return Task(model, Noisy(mean), step_size=0.05, exact=Quadratic(mean, curvature))


def regret(task: Any, rule: Any, byzantine: int = 0, attack: Any = None) -> float:
    result = simulate(task, rule=rule, attack=attack, byzantine=byzantine, rounds=60, seeds=2)
    return float(result["regret"].where(~result["byzantine_agent"]).isel(round=slice(-20, None)).mean())


@pytest.mark.parametrize("search", ["greedy", "exact"])
@pytest.mark.parametrize(
    ("attack", "victim"),
    [(uniform(15, 16), rules.average()), (pulling((0.0, 0.0)), rules.distance_based())],
    ids=["uniform", "pulling"],
)
def test_f_resilient_bears_liars_that_ruin_others(search: Any, attack: Any, victim: Any) -> None:
    resilient, ruined = (
        regret(target_localization(agents=20), rule, byzantine=4, attack=attack)
        for rule in (f_resilient(f=3, search=search), victim)
    )
    assert resilient < 0.1 * ruined


def test_pulling_towards_the_mean_helps_agents_who_learn_the_same() -> None:
    task = means(8, 2)
    assert regret(task, mean_regularised(0.3)) < 0.5 * regret(task, rules.alone())


@pytest.fixture
def along_a_line() -> Task:
    """Twelve different tasks in ten dimensions that differ in one direction only."""
    place = torch.linspace(-3, 3, 12, dtype=torch.float64)
    return means(12, 10, torch.outer(place, torch.full((10,), 0.5, dtype=torch.float64)))


def test_relationship_learning_finds_the_direction_that_tasks_share(along_a_line: Task) -> None:
    alone, average = (regret(along_a_line, rule) for rule in (rules.alone(), rules.average()))
    learnt = regret(along_a_line, relationship_learning(strength=0.1))
    assert learnt < 0.9 * alone < 0.9 * average
