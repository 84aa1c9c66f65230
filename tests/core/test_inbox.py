"""An agent without a new sample has no losses, and so neither judges nor listens."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from inboxes import first_of, one_agent

from varangian import rules
from varangian.core.inbox import Inbox
from varangian.core.task import JudgedOn
from varangian.rules.mixture_loss import judged


def without(on: JudgedOn, inbox: Inbox) -> Inbox:
    """The same inbox, in which no agent has a new sample of this kind."""
    nobody = torch.zeros_like(inbox.fresh)
    return replace(inbox, fresh=nobody) if on == "next" else replace(inbox, trained=nobody)


@pytest.mark.parametrize("on", ["next", "same"])
def test_every_loss_on_an_old_sample_is_infinite(on: JudgedOn) -> None:
    inbox = one_agent([3.0], [1.0], [2.0])
    old, other = without(on, inbox), without("same" if on == "next" else "next", inbox)
    everyone = torch.ones_like(inbox.heard)
    for box, expected in ((inbox, [9.0, 1.0, 4.0]), (other, [9.0, 1.0, 4.0]), (old, [math.inf] * 3)):
        assert box.loss(on)[0].tolist() == expected
        assert box.loss_where(everyone, on)[0].tolist() == expected
        assert box.loss_of(lambda messages, agents: messages, on)[0].tolist() == expected
        assert judged(box, box.received(), on)[0].tolist() == expected
        assert box.distance(box.own)[0].tolist() == [0.0, 2.0, 1.0]


@pytest.mark.parametrize("judge", ["next", "same"])
def test_an_old_sample_is_no_evidence(judge: JudgedOn) -> None:
    """Aim 0, ν = ½. The neighbour is at 1, then at 5, then at 2; the agent is at 3.

    Judged three times, φ_lk / mass = (1/8 + 25/4 + 4/2) / (7/8) = 9.57 is worse than 9. Without the second round it is
    (1/4 + 4/2) / (3/4) = 3, and the weights are (1/9, 1/3) up to their sum.
    """
    rule = rules.loss_based(judge=judge)
    first, second, third = (one_agent([3.0], [at], forgetting=0.5) for at in (1.0, 5.0, 2.0))
    assert first_of(rule, first, second, third) == ([3.0], [1.0, 0.0])
    assert first_of(rule, first, without(judge, second)) == ([3.0], [1.0, 0.0])
    model, weights = first_of(rule, first, without(judge, second), third)
    assert weights == pytest.approx([0.25, 0.75])
    assert model == pytest.approx([2.25])


JUDGING = [
    rules.loss_based(),
    rules.loss_based(keep="all"),
    rules.paired(),
    rules.interpolated(),
    rules.sparing(back_off=4),
    rules.verified(rules.average()),
    rules.patient(rules.loss_based(), rounds=0),
    rules.ubar(),
    rules.fedfomo(),
    rules.pens(top=1),
    rules.pens(top=1, rounds=1),
    rules.f_resilient(f=1),
    rules.f_resilient(f=1, search="exact"),
]


@pytest.mark.parametrize("rule", JUDGING, ids=repr)
def test_a_rule_that_judges_does_not_listen_without_a_new_sample(rule: Any) -> None:
    inbox = one_agent([3.0], [1.0], [2.0], [0.5], previous=[4.0])
    assert first_of(rule, inbox, inbox)[0] != [3.0]
    assert first_of(rule, inbox, without("next", inbox)) == ([3.0], [1.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize("rule", [rules.average(), rules.median(), rules.distance_based()], ids=repr)
def test_a_rule_that_does_not_judge_needs_no_sample(rule: Any) -> None:
    inbox = one_agent([3.0], [1.0], [2.0], previous=[4.0])
    assert first_of(rule, without("next", inbox)) == first_of(rule, inbox) != ([3.0], [1.0, 0.0, 0.0])
