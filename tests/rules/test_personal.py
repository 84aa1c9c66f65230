"""Rules from personalised learning: by hand, against loops that read as the papers do, and what they are good for."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from contracts import beyond_defaults
from hypothesis import given, settings
from hypothesis import strategies as st
from inboxes import close, ears, first_of, one_agent, random_story
from torch import Tensor

from varangian import BadInput, rules, simulate
from varangian.attacks import sleeper, uniform
from varangian.core.models.base import Formula, Sample
from varangian.rules.personal import fedfomo, pens
from varangian.studies import target_localization
from varangian.testing import check_rule

torch.set_num_threads(1)


RULES = [fedfomo(), fedfomo(judge="same"), pens(), pens(top=1, rounds=1), pens(top=3, rounds=2, judge="same")]


@pytest.mark.parametrize("rule", beyond_defaults(RULES), ids=repr)
def test_every_rule_keeps_the_contract(rule: Any) -> None:
    check_rule(rule)


# By hand --------------------------------------------------------------------------------------------------------


def test_fedfomo_weighs_by_gain_per_distance() -> None:
    # The last model (4, 0) has loss 16. Gains: own (3, 0) 7 over distance 1; (2, 0) 12 over 2; (0, 3) 7 over 5;
    # (5, 0) loses 9; and who is silent gains nothing.
    inbox = one_agent([3, 0], [2, 0], [0, 3], [5, 0], None, previous=[4, 0])
    model, weights = first_of(fedfomo(), inbox)
    assert weights == pytest.approx([7 / 14.4, 6 / 14.4, 1.4 / 14.4, 0, 0])
    assert model == pytest.approx([(21 + 12) / 14.4, 4.2 / 14.4])


def test_fedfomo_keeps_its_own_model_where_nobody_gains() -> None:
    assert first_of(fedfomo(), one_agent([3, 0], [2, 0], [0, 3], previous=[1, 0])) == ([3, 0], [1, 0, 0])
    assert first_of(fedfomo(), one_agent([1, 0], [1, 0], previous=[1, 0])) == ([1, 0], [1, 0])


def test_fedfomo_takes_what_has_a_loss_where_its_last_model_has_none() -> None:
    def unlucky(theta: Tensor, sample: Sample) -> Tensor:
        return torch.where(theta[..., 0] == 77, math.nan, theta.square().sum(-1))

    # All gain the same over nothing, and one is twice as near.
    inbox = replace(one_agent([77, 0], [73, 0], [75, 0], previous=[77, 0]), model=Formula(2, unlucky))
    assert first_of(fedfomo(), inbox)[1] == pytest.approx([0, 1 / 3, 2 / 3])


def test_fedfomo_gives_nothing_to_what_is_too_far_to_be_measured() -> None:
    inbox = one_agent([1e160, 0], [0, 0], [0, 1], previous=[1e160, 0])
    assert first_of(fedfomo(), inbox) == ([1e160, 0], [1, 0, 0])


GOOD, FAIR, BAD = [1.0, 0], [0, 2.0], [3.0, 0]


def test_pens_averages_the_best_and_then_those_it_chose_too_often_for_chance() -> None:
    one, two = (one_agent([5, 5], *messages) for messages in ([GOOD, FAIR, BAD], [GOOD, BAD, FAIR]))
    third = pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
    rule = pens(top=2, rounds=3)
    assert first_of(rule, one)[1] == third
    # Chosen 3, 2 and 1 times in three rounds where chance would have it 2.
    assert first_of(rule, one, one, two)[1] == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])
    assert first_of(rule, one, one, two, two)[1] == [0.5, 0.5, 0, 0]
    assert first_of(rule, one, one, one, two)[1] == third
    assert first_of(rule, one, one, one, two, two, two)[1] == third, "what is settled stays settled"


def test_pens_expects_less_of_each_where_there_are_more() -> None:
    # Four rounds among two, the second chosen once; then one among four, chosen again: twice where chance has 2.25.
    few = one_agent([5, 5], GOOD, FAIR, None, None)
    other = one_agent([5, 5], FAIR, GOOD, None, None)
    many = one_agent([5, 5], BAD, GOOD, BAD, BAD)
    rule = pens(top=1, rounds=5)
    assert first_of(rule, few, few, few, other, many, many)[1] == [0.5, 0.5, 0, 0, 0]
    assert first_of(rule, few, few, other, other, many, many)[1] == [0.5, 0, 0.5, 0, 0]


def test_pens_takes_equals_together_and_all_where_there_are_few() -> None:
    assert first_of(pens(top=1), one_agent([5, 5], GOOD, BAD, GOOD))[1] == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])
    inbox = one_agent([5, 5], GOOD, None)
    assert first_of(pens(top=4, rounds=1), inbox)[1] == [0.5, 0.5, 0]
    assert first_of(pens(top=4, rounds=1), inbox, inbox)[1] == [1, 0, 0], "nothing was learnt by choosing all"


@pytest.mark.parametrize(("wrong", "said"), [({"top": 0}, "top is 0"), ({"rounds": 0}, "rounds is 0")])
def test_settings_out_of_bounds_are_refused(wrong: dict[str, int], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        pens(**wrong)


# Against loops --------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**31), dense=st.booleans())
@settings(max_examples=15, deadline=None)
def test_fedfomo_equals_a_loop(seed: int, dense: bool) -> None:
    for round in ears(random_story(seed, dense=dense), fedfomo()):
        for ear in round:
            before = ear.loss(ear.previous)
            share: dict[int, float] = {}
            for who, message in ear.messages.items():
                gain = (before - ear.loss(message)) / float((message - ear.previous[:3]).norm())
                share[who] = max(0.0, gain)
            total = sum(share.values())
            close(ear, {who: value / total for who, value in share.items()} if total else {ear.agent: 1.0})


@given(seed=st.integers(0, 2**31), top=st.integers(1, 4), rounds=st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_pens_equals_a_loop(seed: int, top: int, rounds: int) -> None:
    chosen, expected = Counter[tuple[int, int]](), dict[tuple[int, int], float]()
    for at, round in enumerate(ears(random_story(seed), pens(top, rounds))):
        for ear in round:
            others = [who for who in ear.messages if who != ear.agent]
            if at < rounds:
                best = sorted(others, key=lambda who: ear.loss(ear.messages[who]))[:top]
                for who in others:
                    edge = ear.agent, who
                    expected[edge] = expected.get(edge, 0) + min(1, top / len(others))
                chosen.update((ear.agent, who) for who in best)
            else:
                best = [who for who in others if chosen[ear.agent, who] > expected.get((ear.agent, who), 0) + 1e-9]
            close(ear, dict.fromkeys([ear.agent, *best], 1 / (1 + len(best))))


# What they are good for -----------------------------------------------------------------------------------------


def regret(rule: Any, attack: Any = None, byzantine: int = 0) -> float:
    study = target_localization(agents=20)
    result = simulate(study, rule=rule, attack=attack, byzantine=byzantine, rounds=60, seeds=3)
    return float(result["regret"].where(~result["byzantine_agent"]).isel(round=slice(-20, None)).mean())


@pytest.mark.parametrize(("attack", "byzantine"), [(None, 0), (uniform(15, 16), 4)])
@pytest.mark.parametrize(("rule", "part"), [(fedfomo(), 0.2), (pens(rounds=30), 0.7)], ids=["fedfomo", "pens"])
def test_choosing_by_loss_beats_averaging_over_tasks(rule: Any, part: float, attack: Any, byzantine: int) -> None:
    assert regret(rule, attack, byzantine) < part * regret(rules.average(), attack, byzantine)


def test_pens_trusts_for_ever_whom_it_chose() -> None:
    """What a reader should know: who behaves while it chooses can lie for the rest of the run."""
    late = sleeper(until=35, then=uniform(500, 600))
    assert regret(pens(rounds=30), late, 4) > 100 * regret(rules.loss_based(), late, 4)
