"""FLTrust and Basil: by hand, against loops, and what their papers promise."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from inboxes import close, ears, first_of, one_agent, random_story
from means import error, estimation
from torch import Tensor

from varangian import Graph, rules
from varangian.attacks import gaussian, sign_flip
from varangian.core.models.base import Formula, Sample
from varangian.rules.trust import basil, fltrust
from varangian.testing import check_rule

torch.set_num_threads(1)


def test_other_settings_keep_the_contract() -> None:
    check_rule(basil(own=True, judge="same"))


# FLTrust --------------------------------------------------------------------------------------------------------


def test_fltrust_follows_whoever_goes_its_way_and_no_farther() -> None:
    # Updates from (1, 0): own (2, 0); (3, 4) has cosine 3/5 and is cut from 5 to 2; (−5, 0) and (0, 7) have no trust.
    inbox = one_agent([3, 0], [4, 4], [-4, 0], [1, 7], None, previous=[1, 0])
    model, weights = first_of(fltrust(), inbox)
    assert weights is None
    assert model == pytest.approx([1 + (2 + 0.6 * 1.2) / 1.6, 0.6 * 1.6 / 1.6])


def test_fltrust_cannot_be_moved_farther_than_training_moves_it() -> None:
    inbox = one_agent([3, 0], [1e30, 1e30], [1e38, 0], previous=[1, 0])
    model, _ = first_of(fltrust(), inbox)
    assert math.dist(model, [1, 0]) <= 2 + 1e-9


def test_fltrust_stays_where_it_did_not_train() -> None:
    assert first_of(fltrust(), one_agent([3, 0], [4, 4], previous=[3, 0]))[0] == [3, 0]
    assert first_of(fltrust(), one_agent([3, 0], None, previous=[1, 0]))[0] == pytest.approx([3, 0])


@given(seed=st.integers(0, 2**31), dense=st.booleans())
@settings(max_examples=15, deadline=None)
def test_fltrust_equals_a_loop(seed: int, dense: bool) -> None:
    for round in ears(random_story(seed, dense=dense), fltrust()):
        for ear in round:
            if ear.agent not in ear.messages:
                continue
            last, total, trusted = ear.previous[:3], torch.zeros(3, dtype=torch.float64), 0.0
            own = ear.own[:3] - last
            for message in ear.messages.values():
                update = message - last
                trust = max(0.0, float(update @ own / update.norm() / own.norm()))
                total, trusted = total + trust * own.norm() / update.norm() * update, trusted + trust
            torch.testing.assert_close(ear.combined, torch.cat((last + total / trusted, ear.own[3:])))


@pytest.mark.parametrize("attack", [gaussian(30.0, 1.0), sign_flip(4.0)], ids=repr)
def test_fltrust_withstands_a_majority(attack: object) -> None:
    """Twelve of twenty are Byzantine, and all learn one task. No function that looks for a middle can do this."""
    task, graph = estimation(torch.full((20, 5), 3.0, dtype=torch.float64)), Graph.complete(20)
    trusting, averaging, alone = (
        error(task, graph, rule, attack, 12) for rule in (fltrust(), rules.average(), rules.alone())
    )
    assert trusting < averaging / 10
    assert trusting < alone


# Basil ----------------------------------------------------------------------------------------------------------


def test_basil_takes_the_best_of_the_others() -> None:
    inbox = one_agent([1, 0], [3, 0], [0, 2], None, [2, 2])
    assert first_of(basil(), inbox) == ([0, 2], [0, 0, 1, 0, 0])
    assert first_of(basil(own=True), inbox) == ([1, 0], [1, 0, 0, 0, 0])
    assert first_of(basil(), one_agent([1, 0], [2, 0], [0, 2])) == ([1, 1], [0, 0.5, 0.5]), "equals share"
    assert first_of(basil(), one_agent([1, 0], None)) == ([1, 0], [1, 0])


def test_basil_never_takes_a_model_without_a_loss() -> None:
    def unlucky(theta: Tensor, sample: Sample) -> Tensor:
        return torch.where(theta[..., 0] == 77, math.nan, theta.square().sum(-1))

    inbox = replace(one_agent([9, 0], [77, 0], [8, 0]), model=Formula(2, unlucky))
    assert first_of(basil(), inbox) == ([8, 0], [0, 0, 1])
    inbox = replace(one_agent([9, 0], [77, 0]), model=Formula(2, unlucky))
    assert first_of(basil(), inbox) == ([9, 0], [1, 0])


@given(seed=st.integers(0, 2**31), dense=st.booleans(), own=st.booleans())
@settings(max_examples=15, deadline=None)
def test_basil_equals_a_loop(seed: int, dense: bool, own: bool) -> None:
    for round in ears(random_story(seed, dense=dense), basil(own=own)):
        for ear in round:
            candidates = [who for who in ear.messages if own or who != ear.agent]
            best = min(candidates, key=lambda who: ear.loss(ear.messages[who]), default=ear.agent)
            if best in ear.messages:
                close(ear, {best: 1.0})


def ring(hears: int) -> Graph:
    """Twenty agents on a ring; each hears so many before it."""
    return Graph.from_edges(20, [((agent - step) % 20, agent) for agent in range(20) for step in range(1, hears + 1)])


def test_basil_needs_to_hear_one_more_than_are_byzantine() -> None:
    """Three Byzantine agents in a row on a ring: to hear four predecessors is enough, to hear three is not."""
    task = estimation(torch.full((20, 5), 3.0, dtype=torch.float64))
    enough, too_few = (error(task, ring(hears), basil(), gaussian(30.0, 1.0), [5, 6, 7]) for hears in (4, 3))
    assert enough < error(task, ring(4), rules.average(), gaussian(30.0, 1.0), [5, 6, 7]) / 100
    assert enough < 1 < too_few
