"""Cross-fitted comparison: by hand, against a loop, and what it is good for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from contracts import beyond_defaults
from inboxes import first_of, one_agent
from torch import nn
from torch.nn.functional import mse_loss

from varangian import BadInput, Task, attacks, rules, simulate
from varangian.core.inbox import FoldModels, Inbox, SecondModel
from varangian.core.models.base import Formula
from varangian.engine.results import summary
from varangian.rules.cross_fitted import cross_fitted
from varangian.testing import check_rule

torch.set_num_threads(1)

RULES = [cross_fitted(), cross_fitted(forgetting=1.0, eta=0.0, slack=9.0), cross_fitted(folds=2, eta=50.0, slack=0.0)]


@pytest.mark.parametrize("rule", beyond_defaults(RULES), ids=repr)
def test_every_rule_keeps_the_contract(rule: Any) -> None:
    check_rule(rule)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"folds": 1}, "two folds"),
        ({"eta": -1.0}, "η must be"),
        ({"slack": -1.0}, "slack must"),
        ({"forgetting": 0.0}, "ν"),
    ],
)
def test_impossible_settings_are_refused(settings: Any, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        cross_fitted(**settings)


# By hand --------------------------------------------------------------------------------------------------------


def heard(folds: list[float], anchor: float, own: float, *messages: float | None, items: float = 2.0) -> Inbox:
    """The inbox of agent 0 with these fold models. The loss of θ is θ²; each fold has one item."""
    inbox = one_agent([own], *([m] if m is not None else None for m in messages))
    rows = torch.full_like(inbox.own, anchor)
    models = tuple(torch.full_like(inbox.own, fold) for fold in folds)
    sample = inbox.samples["next"]
    return replace(
        inbox,
        second=SecondModel(rows, rows),
        folds=FoldModels(models, ((sample,),) * len(folds), torch.full_like(rows, items)),
        samples={**inbox.samples, "unseen": sample},
    )


def test_those_kept_weigh_the_same_and_the_anchor_less_the_more_they_gain() -> None:
    # The fold models' loss is (9 + 7) / 2 = 8. The losses 4 and 2 gain 1/2 and 3/4 of it. With two items, the anchor
    # weighs 1 beside e^1, e^1.5, and (e + e^1.5) / 2 for the agent itself.
    inbox = heard([3.0, math.sqrt(7)], 5.0, 1.0, 2.0, math.sqrt(2), 3.0)
    model, weights = first_of(cross_fitted(folds=2), inbox)
    anchor = 1 / (1 + 1.5 * (math.e + math.e**1.5))
    each = (1 - anchor) / 3
    assert weights == pytest.approx([anchor + each, each, each, 0.0])
    assert model == pytest.approx([anchor * 5.0 + each * (1.0 + 2.0 + math.sqrt(2))])


def test_a_neighbour_that_knows_far_less_than_the_median_is_left_out() -> None:
    # They know 1/2, 15/16 and nearly 15/16 of the loss 16.
    inbox = heard([4.0, 4.0], 5.0, 1.0, math.sqrt(8), 1.0, 1.01, items=50.0)
    _, weights = first_of(cross_fitted(folds=2), inbox)
    assert weights is not None
    assert weights[1] == 0.0
    assert weights[2:] == pytest.approx([1 / 3, 1 / 3], rel=1e-3)


def test_with_more_items_knowledge_is_measured_better() -> None:
    # They know 3/4 and all of the loss 16. With 4 items a quarter less is within reach of chance, with 50 it is not.
    few, many = (heard([4.0, 4.0], 5.0, 2.0, 2.0, 0.0, 0.1, items=items) for items in (4.0, 50.0))
    assert (first_of(cross_fitted(folds=2), few)[1] or [0.0])[1] > 0.2
    assert (first_of(cross_fitted(folds=2), many)[1] or [1.0])[1] == 0.0


def test_a_neighbour_much_farther_away_than_the_median_is_left_out() -> None:
    # All are equally good. They are 0.1, 0.1, 0.2 and 2 away from the agent.
    inbox = heard([4.0, 4.0], 5.0, 1.0, 0.9, 1.1, 0.8, -1.0, items=50.0)
    model, weights = first_of(cross_fitted(folds=2), inbox)
    assert weights == pytest.approx([0.25, 0.25, 0.25, 0.25, 0.0], rel=1e-3)
    assert model == pytest.approx([3.8 / 4], rel=1e-3)


def test_a_model_that_knows_nothing_is_left_out_although_its_loss_is_lower() -> None:
    # At first the fold models' loss is 4: so much costs knowing nothing. Later they know one item and are sure of an
    # error in the other, with losses 0 and 100. The losses 4 and 1 of the neighbours are better, but 4 is no knowledge.
    first, later = heard([2.0, 2.0], 2.0, 2.0, 2.0, 2.0), heard([0.0, 10.0], 5.0, 1.0, 2.0, 1.0)
    _, weights = first_of(cross_fitted(folds=2, forgetting=1.0), first, later)
    assert weights is not None
    assert weights[1] == 0.0
    assert weights[2] > 0.3
    # If the fold models know nothing either, half of that is nothing. A tenth is still asked for.
    ignorant = heard([2.0, 10.0], 5.0, 1.0, 2.0, 1.0)
    _, weights = first_of(cross_fitted(folds=2, forgetting=1.0), first, ignorant)
    assert weights is not None
    assert weights[1] == 0.0
    assert weights[2] > 0.3


def test_where_nobody_is_better_the_agent_goes_back_to_its_anchor() -> None:
    model, weights = first_of(cross_fitted(folds=2), heard([1.0, 1.0], 4.0, 2.0, 3.0, None))
    assert weights == [1.0, 0.0, 0.0]
    assert model == [3.0]


def test_one_bad_message_after_many_good_ones_is_left_out() -> None:
    good, bad = heard([2.0, 2.0], 2.0, 1.0, 0.5), heard([2.0, 2.0], 2.0, 1.0, 2.5)
    _, weights = first_of(cross_fitted(folds=2), good, good, good, bad)
    assert weights == [1.0, 0.0]


def test_the_unit_of_the_loss_does_not_matter() -> None:
    def scaled(by: float) -> Inbox:
        inbox = heard([3.0, 2.0], 2.0, 1.0, 0.5, 0.7)
        return replace(inbox, model=Formula(1, lambda theta, sample: by * (theta - sample[0]).square().sum(-1)))

    one, other = (first_of(cross_fitted(folds=2), scaled(by)) for by in (1.0, 1000.0))
    assert one[0] == pytest.approx(other[0])
    assert one[1] == pytest.approx(other[1])


def test_fold_models_that_have_diverged_are_no_reason_to_listen() -> None:
    _, weights = first_of(cross_fitted(folds=2), heard([math.inf, 1.0], 4.0, 2.0, 3.0))
    assert weights == [1.0, 0.0]


def test_a_rule_that_forgets_to_ask_is_told() -> None:
    class forgetful(rules.average):
        def combine(self, inbox: Inbox, state: tuple[()]) -> Any:
            return inbox.cross_fitted

    data = [(torch.ones(4, 1), torch.ones(4, 1))] * 2
    with pytest.raises(BadInput, match="set its attribute folds"):
        simulate(Task.supervised(nn.Linear(1, 1), mse_loss, data), rule=forgetful(), rounds=1)


# What it is good for --------------------------------------------------------------------------------------------


def few_items(agents: int = 12, items: int = 8) -> Task:
    """All agents learn the same noisy line in ten dimensions, from fewer items than it has coefficients."""
    draw = torch.Generator().manual_seed(2)
    truth = torch.randn(10, 1, generator=draw)

    def data(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(count, 10, generator=draw)
        return x, x @ truth + 0.5 * torch.randn(count, 1, generator=draw)

    torch.manual_seed(0)
    return Task.supervised(
        nn.Linear(10, 1, bias=False),
        mse_loss,
        [data(items) for _ in range(agents)],
        test=[data(40) for _ in range(agents)],
        batch=2,
        step_size=0.05,
    )


def loss_of(rule: Any, attack: Any) -> float:
    result = simulate(few_items(), rule=rule, rounds=120, attack=attack, byzantine=0 if attack is None else 2)
    return float(summary(result)[0]["test_loss_mean"])


def test_few_items_are_enough_to_listen_and_no_attack_makes_it_worse_than_alone() -> None:
    alone, average = loss_of(rules.alone(), None), loss_of(rules.average(), None)
    gain = (alone - loss_of(cross_fitted(), None)) / (alone - average)
    assert gain > 0.7
    for attack in (attacks.sign_flip(), attacks.alie(), attacks.uniform(0, 0.1), attacks.null_space()):
        assert loss_of(cross_fitted(), attack) < loss_of(rules.alone(), attack), attack
