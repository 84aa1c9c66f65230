"""Clairvoyant references: by hand, against loops and an exact solver, and beside rules that have to find out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from contracts import beyond_defaults
from hypothesis import given, settings
from hypothesis import strategies as st
from inboxes import close, ears, first_of, one_agent, random_story
from scipy.optimize import minimize
from torch import nn

from varangian import BadInput, Graph, Task, attacks, rules, simulate
from varangian.core.inbox import Inbox
from varangian.rules.base import Combined
from varangian.rules.clairvoyant import best_in_hindsight, oracle
from varangian.studies import target_localization
from varangian.testing import check_rule
from varangian.testing.scenarios import Story

torch.set_num_threads(1)


RULES = [oracle(), best_in_hindsight(steps=8), best_in_hindsight(steps=0), best_in_hindsight(steps=3, rate=3.0)]


@pytest.mark.parametrize("rule", beyond_defaults(RULES), ids=repr)
def test_every_rule_keeps_the_contract(rule: Any) -> None:
    check_rule(rule)


# By hand --------------------------------------------------------------------------------------------------------


def test_the_oracle_averages_heard_friends_and_nobody_else() -> None:
    # A friend, a liar with the same task, an honest neighbour with another, a silent friend, and a friend.
    messages = ([2, 0], [9, 9], [0, 4], None, [4, 2])
    inbox = one_agent([0, 1], *messages, groups=[1, 1, 1, 0, 1, 1], byzantine=[2])
    model, weights = first_of(oracle(), inbox)
    assert weights == pytest.approx([1 / 3, 1 / 3, 0, 0, 0, 1 / 3])
    assert model == pytest.approx([2, 1])


def test_the_best_mix_of_two_is_where_the_line_passes_nearest_to_the_aim() -> None:
    # From (0, 0) to (4, 0), nearest to (1, 2) at a quarter of the way.
    model, weights = first_of(best_in_hindsight(steps=40), one_agent([0, 0], [4, 0], aim=[1, 2]))
    assert weights == pytest.approx([0.75, 0.25], abs=1e-3)
    assert model == pytest.approx([1, 0], abs=4e-3)


def test_lies_that_happen_to_help_are_used_and_what_does_not_help_is_not() -> None:
    inbox = one_agent([2, 0], [-2, 0], [50, 50], None, aim=[0, 0], byzantine=[1])
    _, weights = first_of(best_in_hindsight(steps=40), inbox)
    assert weights == pytest.approx([0.5, 0.5, 0, 0], abs=1e-2)


def test_one_huge_message_does_not_hide_the_others() -> None:
    inbox = one_agent([2, 0], [-2, 0], [1e150, -1e150], [1e30, 0], aim=[0, 0])
    _, weights = first_of(best_in_hindsight(steps=40), inbox)
    assert weights == pytest.approx([0.5, 0.5, 0, 0], abs=1e-2)


def test_settings_out_of_bounds_are_refused() -> None:
    for wrong, said in (({"steps": -1}, "-1 steps"), ({"rate": 0.0}, "rate is 0")):
        with pytest.raises(BadInput, match=said):
            best_in_hindsight(**wrong)  # type: ignore[arg-type]


def test_where_nobody_knows_the_risk_that_is_said() -> None:
    data = [(torch.randn(8, 3), torch.randn(8, 1)) for _ in range(3)]
    task = Task.supervised(torch.nn.Linear(3, 1), torch.nn.functional.mse_loss, data)
    with pytest.raises(BadInput, match="true risk"):
        simulate(task, rule=best_in_hindsight(), rounds=1)


# Against loops and a solver -------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**31), dense=st.booleans())
@settings(max_examples=15, deadline=None)
def test_the_oracle_equals_a_loop(seed: int, dense: bool) -> None:
    numbers = torch.Generator().manual_seed(seed)
    group = torch.randint(0, 2, (8,), generator=numbers)
    normal = torch.rand(8, generator=numbers) < 0.7

    class informed(oracle):
        def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
            truth = replace(inbox.truth, group=group, normal=normal)
            return super().combine(replace(inbox, truth=truth), state)

    for round in ears(random_story(seed, dense=dense), informed()):
        for ear in round:
            friends = [who for who in ear.messages if bool(normal[who]) and group[who] == group[ear.agent]]
            friends = list({ear.agent, *friends})
            close(ear, dict.fromkeys(friends, 1 / len(friends)))


@pytest.mark.parametrize("seed", range(6))
def test_the_best_mix_is_nearly_as_good_as_a_solver_finds(seed: int) -> None:
    """In these stories the risk of θ is ‖θ‖²."""
    shortfalls: list[float] = []
    for round in ears(random_story(seed), best_in_hindsight(steps=60)):
        for ear in round:
            theta = torch.stack(list(ear.messages.values())).numpy()
            own, found = float(ear.own[:3].square().sum()), float(ear.combined[:3].square().sum())
            least = smallest(theta)
            assert found <= own + 1e-12
            assert found >= least - 1e-6
            shortfalls.append((found - least) / max(own - least, 1e-9))
    assert np.mean(shortfalls) < 0.01
    assert max(shortfalls) < 0.25


def smallest(theta: np.ndarray[Any, Any]) -> float:
    """min ‖Σ a_l θ_l‖² over the simplex."""
    gram, count = theta @ theta.T, len(theta)
    found = minimize(
        lambda a: a @ gram @ a,
        np.full(count, 1 / count),
        jac=lambda a: 2 * gram @ a,
        bounds=[(0, 1)] * count,
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1, "jac": lambda a: np.ones(count)},
        options={"ftol": 1e-12, "maxiter": 300},
    )
    return float(found.fun)


@given(seed=st.integers(0, 2**31), steps=st.integers(0, 6), rate=st.floats(0.01, 100))
@settings(max_examples=15, deadline=None)
def test_never_worse_than_oneself_or_than_the_weights_before(seed: int, steps: int, rate: float) -> None:
    story = random_story(seed)
    for inbox, (before,), combined in story.play(best_in_hindsight(steps, rate)):
        risk = inbox.truth.risk
        assert bool((risk(combined.models) <= risk(inbox.own) * (1 + 1e-12)).all())
        again = before * inbox.heard
        again = again / again.sum(1, keepdim=True)
        possible = again.isfinite().all(1)
        assert bool((risk(combined.models) <= risk(inbox.mix(again.nan_to_num())) * (1 + 1e-9))[possible].all())


def test_gradients_are_found_where_the_engine_turned_them_off() -> None:
    story = Story.calm(torch.float64, Graph.complete(5))
    with torch.no_grad():
        quiet = story.outcome(best_in_hindsight())
    for one, other in zip(quiet, story.outcome(best_in_hindsight()), strict=True):
        assert torch.equal(one, other)
        assert not one.requires_grad


# Beside rules that have to find out -----------------------------------------------------------------------------


def regret(rule: Any, seeds: Any = 3) -> Any:
    study, attack = target_localization(agents=20), attacks.uniform(15, 16)
    result = simulate(study, rule=rule, attack=attack, byzantine=4, rounds=100, seeds=seeds)
    return result["regret"].where(~result["byzantine_agent"])


def end(rule: Any) -> float:
    return float(regret(rule).isel(round=slice(-20, None)).mean())


def test_the_oracle_shows_how_much_there_is_to_gain() -> None:
    oracles, alone = end(oracle()), end(rules.alone())
    assert oracles < 0.8 * alone
    assert oracles < 0.2 * end(rules.loss_based())


def test_the_best_mix_is_far_ahead_early_on() -> None:
    early = slice(1, 10)
    best, others = (float(regret(rule).isel(round=early).mean()) for rule in (best_in_hindsight(), rules.alone()))
    assert best < 0.3 * others


@pytest.mark.parametrize("rule", [oracle(), best_in_hindsight(steps=5)], ids=["oracle", "best_in_hindsight"])
def test_seeds_side_by_side_do_not_see_each_other(rule: Any) -> None:
    together, apart = regret(rule, seeds=[0, 1]), regret(rule, seeds=[1])
    np.testing.assert_allclose(together.sel(seed=1).values, apart.sel(seed=1).values, rtol=1e-3)


def test_held_out_data_can_be_the_truth() -> None:
    numbers = torch.Generator().manual_seed(0)
    x = torch.randn(6, 40, 3, generator=numbers)
    y = (x @ torch.tensor([1.0, -2.0, 0.5]))[..., None] + torch.randn(6, 40, 1, generator=numbers)
    data = [(x[k, :10], y[k, :10]) for k in range(6)]
    test = [(x[k, 10:], y[k, 10:]) for k in range(6)]
    loss = torch.nn.functional.mse_loss
    task = Task.supervised(torch.nn.Linear(3, 1), loss, data, test=test, batch=5, step_size=0.05)

    def final(rule: Any) -> float:
        return float(simulate(task, rule=rule, rounds=30)["test_loss"][..., -1, :].mean())

    assert final(best_in_hindsight(steps=5)) < final(rules.average()) < final(rules.alone())


def test_a_task_that_only_watches_training_has_no_known_risk() -> None:
    data = [(torch.randn(6, 2), torch.randint(0, 2, (6,))) for _ in range(3)]
    task = Task.supervised(nn.Linear(2, 2), nn.functional.cross_entropy, data, batch=3, watch_training=True)
    with pytest.raises(BadInput, match="true risk of this task is not known"):
        simulate(task, rule=rules.best_in_hindsight(steps=1), rounds=1)
