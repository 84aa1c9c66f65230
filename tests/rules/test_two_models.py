"""Ditto and APFL: by hand, against loops that read as the papers do, and a scenario from each paper."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from contracts import beyond_defaults
from hypothesis import given, settings
from hypothesis import strategies as st
from inboxes import one_agent, random_story
from torch import Tensor, nn

from varangian import BadInput, Graph, Task, rules, simulate
from varangian.attacks import silent, uniform
from varangian.core.execution import DEFAULT
from varangian.core.inbox import SecondModel
from varangian.core.scene import Scene
from varangian.engine.round import play_round
from varangian.engine.state import State, begin
from varangian.engine.world import prepare
from varangian.rules.two_models import apfl, ditto
from varangian.studies import target_localization
from varangian.testing import check_rule

torch.set_num_threads(1)

RULES = [ditto(), ditto(rules.median(), 0.0), ditto(rules.loss_based(), 3.0), apfl(), apfl(rules.krum(), 0.9, False)]


@pytest.mark.parametrize("rule", beyond_defaults(RULES), ids=repr)
def test_every_rule_keeps_the_contract(rule: Any) -> None:
    check_rule(rule)


# By hand --------------------------------------------------------------------------------------------------------


def personal(now: list[float], before: list[float], agents: int = 2) -> SecondModel:
    rows = (torch.tensor(values, dtype=torch.float64).expand(agents, -1) for values in (now, before))
    return SecondModel(*rows)


def test_ditto_trains_the_personal_model_and_pulls_it_towards_the_combined_one() -> None:
    inbox = one_agent([2, 0], [4, 2], previous=[1, 1], step_size=0.1)
    inbox = replace(inbox, second=personal([4, 0], [5, 1]))
    combined = ditto(strength=2.0).combine(inbox, ())
    assert combined.models[0].tolist() == [3, 1], "the mean of what was sent"
    assert combined.weights is not None and combined.weights[0].tolist() == [0.5, 0.5]
    # v − μ∇ℓ(v) = (4, 0), less μλ (v − w) = 0.2 · (4, 0).
    assert combined.personal is not None
    assert combined.personal[0].tolist() == pytest.approx([3.2, 0])


def test_apfl_steps_at_the_mixture_and_learns_the_proportion() -> None:
    # α = ½, w = (1, 1) and m = (2, 2): so v = (3, 3). The step at m is (−0.2, 0.1).
    inbox = one_agent([2, 0], [4, 2], previous=[1, 1])
    inbox = replace(inbox, second=personal([1.8, 2.1], [2, 2]))
    combined = apfl().combine(inbox, apfl().init(inbox.own.new_zeros(2, 2)))
    # α = ½ + ⟨(2, 2), (−0.2, 0.1)⟩ = 0.3; v = (3 − 0.1, 3 + 0.05); the combined model is (3, 1).
    assert combined.state.alpha[0].item() == pytest.approx(0.3)
    assert combined.personal is not None
    assert combined.personal[0].tolist() == pytest.approx([0.3 * 2.9 + 0.7 * 3, 0.3 * 3.05 + 0.7 * 1])
    fixed = apfl(adaptive=False).combine(inbox, apfl().init(inbox.own.new_zeros(2, 2)))
    assert fixed.state.alpha[0].item() == 0.5
    assert fixed.personal is not None
    assert fixed.personal[0].tolist() == pytest.approx([2.95, 2.025])


def test_the_proportion_stays_within_its_bounds() -> None:
    inbox = one_agent([2, 0], [4, 2], previous=[1, 1])
    for now, alpha in (([2.0, 9.0], 1.0), ([2.0, -9.0], 0.01)):
        moved = replace(inbox, second=personal(now, [2, 2]))
        assert apfl().combine(moved, apfl().init(inbox.own.new_zeros(2, 2))).state.alpha[0].item() == alpha


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ditto(strength=-1.0), "strength is -1"),
        (lambda: apfl(alpha=0.0), "α must lie between"),
        (lambda: ditto(apfl()), "a second model already"),
        (lambda: rules.verified(ditto()), "must not have a personal one"),
        (lambda: rules.patient(apfl()), "must not have a personal one"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        make()


# Against loops --------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**31), strength=st.sampled_from([0.0, 0.5, 2.0]))
@settings(max_examples=10, deadline=None)
def test_ditto_agent_by_agent(seed: int, strength: float) -> None:
    story = random_story(seed)
    for inbox, _, combined in story.play(ditto(strength=strength)):
        assert combined.personal is not None
        for k in range(story.graph.agents):
            v, now, w = inbox.personal.before[k], inbox.personal.now[k], inbox.previous[k]
            expected = [float(now[i] - 0.1 * strength * (v[i] - w[i]) if i < 3 else now[i]) for i in range(4)]
            assert combined.personal[k].tolist() == pytest.approx(expected, abs=1e-12)


@given(seed=st.integers(0, 2**31), alpha=st.sampled_from([0.05, 0.5, 1.0]))
@settings(max_examples=10, deadline=None)
def test_apfl_with_a_local_model_of_its_own(seed: int, alpha: float) -> None:
    """A loop that holds v itself, as the paper does, over several rounds."""
    numbers = torch.Generator().manual_seed(seed)
    aim = torch.randn(3, 2, generator=numbers, dtype=torch.float64)
    world = prepare([Scene(points(aim), Graph.complete(3))], [0], 0, DEFAULT, torch.float64)
    rule, mu = apfl(alpha=alpha), 0.1
    v, w = world.start.clone(), world.start.clone()
    a = torch.full((3, 1), alpha, dtype=torch.float64)
    with torch.no_grad():
        state = begin(world, rule, silent())
        for _ in range(6):
            state, _ = play_round(world, rule, silent(), state)
            slope = 2 * (a * v + (1 - a) * w - aim)
            learned = (a - mu * ((v - w) * slope).sum(1, keepdim=True)).clamp(0.01, 1)
            v, w, a = v - mu * a * slope, (w - mu * 2 * (w - aim)).mean(0).expand(3, 2), learned
            torch.testing.assert_close(state.used, a * v + (1 - a) * w, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(state.models, w, rtol=1e-9, atol=1e-9)


def points(aim: Tensor, step_size: float = 0.1) -> Task:
    """Every agent looks for its own point: the loss of θ is ‖θ − aim‖²."""

    def loss(predicted: Tensor, y: Tensor) -> Tensor:
        return (predicted - y).square().sum(-1).mean()

    torch.manual_seed(0)
    data = [(torch.ones(1, 1, dtype=aim.dtype), one[None]) for one in aim]
    return Task.supervised(nn.Linear(1, aim.shape[1], bias=False), loss, data, batch=1, step_size=step_size)


# From the papers ------------------------------------------------------------------------------------------------


def last(task: Task, rule: Any, rounds: int = 150) -> State:
    world = prepare([Scene(task, Graph.complete(task.agents))], [0], 0, DEFAULT, torch.float64)
    with torch.no_grad():
        state = begin(world, rule, silent())
        for _ in range(rounds):
            state, _ = play_round(world, rule, silent(), state)
    return state


def test_federated_point_estimation() -> None:
    """The setting of Ditto's analysis: tasks are drawn around one point, and each agent sees its own with noise.

    The best λ follows from the two variances. It beats both learning alone and the mean of all.
    """
    numbers = torch.Generator().manual_seed(0)
    spread, noise, agents = 1.0, 1.0, 60
    truth = 5 + spread * torch.randn(agents, 1, generator=numbers, dtype=torch.float64)
    seen = truth + noise * torch.randn(agents, 1, generator=numbers, dtype=torch.float64)
    best = 2 * noise**2 / spread**2  # the loss here is twice that of the paper

    def error(models: Tensor) -> float:
        return float((models - truth).square().mean())

    found = {strength: last(points(seen), ditto(strength=strength)).used for strength in (0.0, best)}
    torch.testing.assert_close(found[0.0], seen, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found[best], (2 * seen + best * seen.mean()) / (2 + best), rtol=1e-6, atol=1e-6)
    alone, mean = error(found[0.0]), error(seen.mean().expand_as(seen))
    assert error(found[best]) < 0.7 * min(alone, mean)


@cache
def regret(rule: Any, byzantine: int) -> float:
    study = target_localization(agents=20)
    result = simulate(study, rule=rule, attack=uniform(15, 16), byzantine=byzantine, rounds=150, seeds=2)
    return float(result["regret"].where(~result["byzantine_agent"]).isel(round=slice(-50, None)).mean())


@pytest.mark.parametrize("byzantine", [0, 4])
def test_personal_models_suffer_less_from_others_than_the_mean(byzantine: int) -> None:
    """Tasks differ, and some agents are Byzantine: who can go its own way is far better off."""
    mean = regret(rules.average(), byzantine)
    assert regret(ditto(strength=0.1), byzantine) < 0.1 * mean
    assert regret(apfl(), byzantine) < 0.8 * mean


def test_the_proportion_follows_how_different_the_tasks_are() -> None:
    """As in APFL's experiments: an agent unlike the others relies on its local model, one like them does not."""
    aim = torch.tensor([[0.0]] * 9 + [[6.0]], dtype=torch.float64)
    alpha = last(points(aim, 0.02), apfl(), rounds=40).rule[0].alpha
    assert float(alpha[9]) > 0.95
    assert float(alpha[:9].max()) < 0.75
