"""Everything judged against the anchor: by hand, against a loop, and what it is good for."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from contracts import beyond_defaults
from hypothesis import given, settings
from hypothesis import strategies as st
from inboxes import Average, first_of, one_agent, random_story
from torch import Tensor
from torch.utils._pytree import tree_leaves

from varangian import BadInput, Graph, rules, simulate
from varangian.attacks import uniform
from varangian.core.inbox import Inbox, SecondModel
from varangian.core.models.base import Formula, Sample
from varangian.rules.anchored import anchored
from varangian.studies import target_localization
from varangian.testing import check_rule

torch.set_num_threads(1)

E = math.e
STRICT = anchored(significance=(0.0, 0.0, 0.0))
RULES = [
    anchored(),
    STRICT,
    anchored(scales=(0.3,), significance=(2.0,), eta=0.0, judge="same"),
    anchored(units="anchor", eta=0.05, noise=0.2),
    anchored(rules.average()),
    anchored(rules.median(), judge="same"),
    rules.verified(anchored()),
    rules.patient(anchored(), 1),
]


@pytest.mark.parametrize("rule", beyond_defaults(RULES), ids=repr)
def test_every_rule_keeps_the_contract(rule: Any) -> None:
    check_rule(rule)


# By hand --------------------------------------------------------------------------------------------------------


def heard(anchor: list[float], own: list[float], *messages: Any, fresh: bool = True) -> Inbox:
    """The inbox of agent 0 with this anchor. The loss of θ is ‖θ‖²."""
    inbox = one_agent(own, *messages)
    rows = torch.tensor(anchor, dtype=torch.float64).expand_as(inbox.own)
    return replace(inbox, second=SecondModel(rows, rows), fresh=torch.full((len(rows), 1), fresh))


def test_the_anchor_decides_who_is_kept_and_is_always_in_the_mixture() -> None:
    # Losses: anchor 4, own 1, then 1 and 81. The differences are −3, −3 and 77, and exp(−η Σ) is e³, e³ and nothing.
    model, weights = first_of(anchored(), heard([2, 0], [1, 0], [0, 1], [9, 0]))
    total = 2 * E**3 + 1
    assert model == pytest.approx([(E**3 + 2) / total, E**3 / total])
    assert weights == pytest.approx([(E**3 + 1) / total, E**3 / total, 0]), "the anchor's share is the agent's own"


def test_even_the_agents_own_model_is_dropped_if_it_is_worse_than_the_anchor() -> None:
    assert first_of(anchored(), heard([1, 0], [5, 0], [6, 0])) == ([1, 0], [1, 0])
    assert first_of(anchored(), heard([1, 0], [5, 0])) == ([1, 0], [1])


def test_without_sharpness_all_kept_models_weigh_the_same() -> None:
    model, weights = first_of(anchored(eta=0.0), heard([2, 0], [1, 0], [0, 1], None))
    assert model == pytest.approx([1, 1 / 3])
    assert weights == pytest.approx([2 / 3, 1 / 3, 0])


def test_without_a_new_sample_nobody_listens_and_nothing_is_remembered() -> None:
    stale, new = heard([2, 0], [5, 0], [0, 1], fresh=False), heard([2, 0], [1, 0], [0, 1])
    assert first_of(anchored(), stale) == ([5, 0], [1, 0])
    memory = anchored().combine(stale, anchored().init(stale.own.new_zeros(2, 2))).state
    assert not any(leaf.any() for leaf in tree_leaves(memory))
    assert first_of(anchored(), stale, new) == first_of(anchored(), new)


def test_a_difference_within_the_noise_is_accepted_once_there_is_some() -> None:
    # Differences of +1 and −1 in turn: their mean is small, their spread is large.
    worse, better = heard([1, 0], [1, 0], [math.sqrt(2), 0]), heard([1, 0], [1, 0], [0, 0])
    assert first_of(anchored(), worse)[1] == [1, 0], "one observation has no spread"
    weights = first_of(anchored(), *[better, worse] * 3)[1]
    assert weights is not None and weights[1] > 0.2
    assert first_of(STRICT, *[better, worse] * 3)[1] == [1, 0]


def test_an_anchor_without_a_loss_gives_way_to_models_that_have_one() -> None:
    def unlucky(theta: Tensor, sample: Sample) -> Tensor:
        return torch.where(theta[..., 0] == 77, math.nan, theta.square().sum(-1))

    inbox = replace(heard([77, 0], [1, 0], [3, 0]), model=Formula(2, unlucky))
    assert first_of(anchored(), inbox) == ([2, 0], [0.5, 0.5])
    inbox = replace(heard([77, 0], [77, 0], [77, 0]), model=Formula(2, unlucky))
    assert first_of(anchored(), inbox) == ([77, 0], [1, 0])


def test_what_another_rule_combines_is_used_while_it_is_no_worse_than_the_anchor() -> None:
    protected = anchored(rules.average())
    good, bad = heard([2, 0], [1, 0], [0, 1]), heard([2, 0], [1, 0], [99, 0])
    assert first_of(protected, good) == ([0.5, 0.5], [0.5, 0.5])
    assert first_of(protected, bad) == ([2, 0], [1, 0])
    assert first_of(protected, good, good, bad) == ([2, 0], [1, 0]), "one large loss is enough"
    assert first_of(protected, bad, *[good] * 9) == ([2, 0], [1, 0]), "and is remembered"
    assert first_of(protected, replace(good, fresh=torch.tensor([[False]]))) == ([1, 0], [1, 0])
    median = anchored(rules.median())
    assert first_of(median, heard([2, 0], [1, 0], [0, 1], [1, 1])) == ([1, 1], None)
    assert first_of(median, heard([1, 0], [1, 0], [0, 5], [1, 5])) == ([1, 0], None)


@pytest.mark.parametrize(
    ("settings_of_rule", "said"),
    [
        ({"scales": ()}, "shortest memory"),
        ({"scales": (0.1, 1.0, 0.02)}, "shortest memory"),
        ({"scales": (1.0, 0.1, 0.0)}, "forgetting factor"),
        ({"significance": (1.0,)}, "one z"),
        ({"significance": (1.0, 1.0, -1.0)}, "one z"),
        ({"eta": -1.0}, "η must be"),
        ({"noise": 0.0}, "forgetting factor"),
        ({"rule": rules.ditto()}, "must not have a personal one"),
    ],
)
def test_what_makes_no_sense_is_refused(settings_of_rule: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        anchored(**settings_of_rule)


# Against a loop -------------------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**31),
    dense=st.booleans(),
    z=st.sampled_from([(5.0, 3.0, 1.0), (0.5, 0.2, 0.1)]),
    units=st.sampled_from(["loss", "anchor"]),
    nu_noise=st.sampled_from([0.05, 0.3]),
)
@settings(max_examples=12, deadline=None)
def test_agent_by_agent(seed: int, dense: bool, z: tuple[float, ...], units: Any, nu_noise: float) -> None:
    story = random_story(seed, dense=dense)
    rule = anchored(significance=z, eta=0.5, units=units, noise=nu_noise)
    memory: Any = defaultdict(lambda: (Average(), Average()))
    noises: Any = defaultdict(Average)
    sums: Any = defaultdict(float)
    for inbox, _, combined in story.play(rule):
        for k in range(story.graph.agents):
            sample = tuple(part[k] for part in inbox.samples["next"])
            alone = float(story.model.loss(inbox.anchor[k], sample))
            noise = noises[k].observe(alone, nu_noise)
            shares = {"anchor": (1.0, inbox.anchor[k])}
            for slot, sender in enumerate([k, *story.graph.neighbours(k)]):
                if not bool(inbox.heard[k, slot]):
                    continue
                message = torch.cat((inbox.rows[inbox.source[k, slot]], inbox.own[k, 3:]))
                delta = float(story.model.loss(message, sample)) - alone
                sums[k, sender] = 0.98 * sums[k, sender] + (delta / noise if units == "anchor" else delta)
                kept = True
                for nu, allowed in zip(rule.scales, z, strict=True):
                    mean, square = memory[k, sender, nu]
                    d, s = mean.observe(delta, nu), square.observe(delta**2, nu)
                    variance = noise**2 if nu == 1 else min(max(s - d * d, 0.0), noise**2)
                    kept = kept and d <= allowed * math.sqrt(variance * mean.concentration) + 1e-12
                if kept:
                    shares[str(sender)] = (math.exp(-0.5 * sums[k, sender]), message)
            total = sum(share for share, _ in shares.values())
            mix = sum((share / total * model for share, model in shares.values()), torch.zeros(4, dtype=torch.float64))
            torch.testing.assert_close(combined.models[k], mix, rtol=1e-6, atol=1e-6)


# What it is good for --------------------------------------------------------------------------------------------


@cache
def regret(rule: Any, byzantine: int) -> float:
    study = target_localization(agents=40)
    result = simulate(study, rule=rule, attack=uniform(15, 16), byzantine=byzantine, rounds=250, seeds=2)
    return float(result["regret"].where(~result["byzantine_agent"]).isel(round=slice(-50, None)).mean())


@pytest.mark.parametrize("byzantine", [0, 8])
def test_it_gains_over_no_cooperation_and_over_the_paper(byzantine: int) -> None:
    alone = regret(rules.alone(), byzantine)
    assert regret(anchored(), byzantine) < 0.75 * alone
    assert regret(anchored(), byzantine) < 0.75 * regret(rules.loss_based(), byzantine)


def test_in_units_of_the_anchors_loss_the_first_rounds_do_less_harm() -> None:
    def early(rule: Any) -> tuple[float, float]:
        result = simulate(target_localization(agents=40), rule=rule, rounds=40, seeds=2)
        regret, alone = (float(result[name].isel(round=slice(-5, None)).mean()) for name in ("regret", "alone_regret"))
        return regret, alone

    (usual, alone), (scaled, _) = early(anchored()), early(anchored(units="anchor", eta=0.05, noise=0.2))
    assert usual > 1.5 * alone
    assert scaled < alone


def test_it_rescues_rules_that_fail() -> None:
    alone = regret(rules.alone(), 8)
    for rule in (rules.average(), rules.median()):
        assert regret(rule, 8) > 100 * alone
        assert regret(anchored(rule), 8) < 1.1 * alone


def test_memories_are_taken_along_when_the_graph_changes() -> None:
    study, graphs = target_localization(agents=8), (Graph.ring(8), Graph.complete(8))
    task = study.scene(0).task
    changing = simulate(task, lambda round: graphs[round // 3 % 2], rule=anchored(), rounds=12)
    assert bool(changing["regret"].notnull().all())
    same = simulate(task, lambda round: Graph.ring(8), rule=anchored(), rounds=12)
    assert same["regret"].equals(simulate(task, Graph.ring(8), rule=anchored(), rounds=12)["regret"])
