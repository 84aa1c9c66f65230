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
from inboxes import first_of, one_agent, random_story
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

RULES = [
    anchored(),
    anchored(sudden=0.0, judge="same"),
    anchored(scales=(1.0, 0.3), significance=(5.0, 2.0), own_significance=0.5, leash=0.1, trust=0.0, reach=1.0),
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


def test_those_who_are_no_worse_are_averaged_and_the_agents_own_model_counts_half() -> None:
    # Losses: anchor 4, own 1, then 1 and 81. From (2, 0) to (1/3, 2/3) the loss falls all the way.
    model, weights = first_of(anchored(), heard([2, 0], [1, 0], [0, 1], [9, 0]))
    assert model == pytest.approx([1 / 3, 2 / 3])
    assert weights == pytest.approx([1 / 3, 2 / 3, 0])


def test_the_leash_stops_where_the_loss_is_least() -> None:
    # Alone with a neighbour at (−1.9, 0), the loss along the way from (2, 0) is least at zero: 2 / 3.9 of the way.
    rule = anchored(rules.average(), trust=0.0)
    model, weights = first_of(rule, heard([2, 0], [-1.9, 0], [-1.9, 0]))
    assert model == pytest.approx([0, 0], abs=1e-9)
    assert weights == pytest.approx([1 - 1 / 3.9, 1 / 3.9])


def test_even_the_agents_own_model_is_dropped_if_it_is_worse_than_the_anchor() -> None:
    assert first_of(anchored(), heard([1, 0], [5, 0], [6, 0])) == ([1, 0], [1, 0])
    assert first_of(anchored(), heard([1, 0], [5, 0])) == ([1, 0], [1])


@pytest.mark.parametrize("rounding", [-1e-7, 0.0, 1e-7])
def test_rounding_does_not_decide_whether_a_model_that_is_the_anchor_is_kept(rounding: float) -> None:
    """At first an agent's own model is its anchor, but their losses are computed in different products."""
    same = [1 + rounding, 0]
    assert first_of(anchored(), heard([1, 0], same, same))[1] == pytest.approx([1 / 3, 2 / 3])
    assert first_of(anchored(), heard([1, 0], same, [1.001, 0]))[1] == [1, 0], "a small difference is none of rounding"


def test_without_a_new_sample_nobody_listens_and_nothing_is_remembered() -> None:
    stale, new = heard([2, 0], [5, 0], [0, 1], fresh=False), heard([2, 0], [1, 0], [0, 1])
    assert first_of(anchored(), stale) == ([5, 0], [1, 0])
    start = anchored().init(stale.own.new_zeros(2, 2))
    memory = anchored().combine(stale, start).state
    assert all(torch.equal(*pair) for pair in zip(tree_leaves(memory), tree_leaves(start), strict=True))
    assert first_of(anchored(), stale, new) == first_of(anchored(), new)


def test_a_difference_within_the_noise_is_accepted_once_there_is_some() -> None:
    # Differences of +1 and −1 in turn: their mean is small, their spread is large.
    worse, better = heard([1, 0], [1, 0], [math.sqrt(2), 0]), heard([1, 0], [1, 0], [0, 0])
    assert first_of(anchored(), worse)[1] == [1, 0], "one observation has no spread"
    weights = first_of(anchored(), *[better, worse] * 3)[1]
    assert weights is not None and weights[1] > 0.2
    strict = anchored(significance=(0.0, 0.0, 0.0))
    assert first_of(strict, *[worse, better] * 3, worse)[1] == [1, 0]


def test_a_copy_of_the_agents_own_model_with_an_error_is_dropped_though_it_beats_the_anchor() -> None:
    # The anchor has loss 4, the agent's own model 1, the message 1.21.
    inbox = heard([2, 0], [1, 0], [1.1, 0])
    assert first_of(anchored(), *[inbox] * 5)[1] == [1, 0]
    weights = first_of(anchored(own_significance=1e9, trust=0.0), *[inbox] * 5)[1]
    assert weights == [1, 0], "without any spread there is no slack"
    assert first_of(anchored(), *[heard([2, 0], [1.1, 0], [1, 0])] * 5)[1] == pytest.approx([1 / 3, 2 / 3])


def test_one_very_large_loss_is_not_accepted_and_soon_forgotten() -> None:
    good, bad = heard([2, 0], [1, 0], [0.5, 0]), heard([2, 0], [1, 0], [99, 0])
    weights = first_of(anchored(), *[good] * 9, bad)[1]
    assert weights is not None and weights[1] == 0
    weights = first_of(anchored(), *[good] * 9, bad, *[good] * 30)[1]
    assert weights is not None and weights[1] > 0.5


def test_a_trusted_neighbour_cannot_move_the_agent_far_at_once() -> None:
    # Far away where the sample does not look: the loss knows the first coordinate only.
    def first_only(theta: Tensor, sample: Sample) -> Tensor:
        return theta[..., 0].square()

    def inbox(*message: float) -> Inbox:
        return replace(heard([2, 0], [1, 0], list(message)), model=Formula(2, first_only))

    # The agent's own model has half the weight of a neighbour. So the candidate is usually 1 away from it.
    model, _ = first_of(anchored(), *[inbox(1, 1.5)] * 9, inbox(1, 1000))
    assert model == pytest.approx([1, 2])
    model, _ = first_of(anchored(reach=1e9), *[inbox(1, 1.5)] * 9, inbox(1, 1000))
    assert model[1] > 600


def test_an_agent_whose_anchor_has_no_finite_loss_does_not_listen() -> None:
    def unlucky(theta: Tensor, sample: Sample) -> Tensor:
        return torch.where(theta[..., 0] == 77, math.nan, theta.square().sum(-1))

    inbox = replace(heard([77, 0], [1, 0], [3, 0]), model=Formula(2, unlucky))
    assert first_of(anchored(), inbox) == ([1, 0], [1, 0])


def test_what_another_rule_combines_is_used_on_a_leash() -> None:
    protected = anchored(rules.average())
    good, bad = heard([2, 0], [1, 0], [0, 1]), heard([2, 0], [1, 0], [99, 0])
    assert first_of(protected, good) == (pytest.approx([0.5, 0.5]), pytest.approx([0.5, 0.5]))
    assert first_of(protected, bad) == ([2, 0], [1, 0])
    assert math.dist(first_of(protected, good, good, bad)[0], (2, 0)) < 1.5, "its good rounds count as well"
    assert math.dist(first_of(protected, bad, *[good] * 29)[0], (0.5, 0.5)) < 0.1, "one bad round does not last"
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
        ({"sudden": -1.0}, "sudden must be"),
        ({"trust": math.nan}, "trust must be"),
        ({"leash": 0.0}, "forgetting factor"),
        ({"reach": 0.5}, "reach must be"),
        ({"rule": rules.ditto()}, "must not have a personal one"),
    ],
)
def test_what_makes_no_sense_is_refused(settings_of_rule: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        anchored(**settings_of_rule)


# Against a loop -------------------------------------------------------------------------------------------------


class Series:
    """The mean and the variance of differences with one length of memory, in plain numbers."""

    def __init__(self, nu: float, z: float) -> None:
        self.nu, self.z, self.n, self.mean, self.variance = nu, z, 0, 0.0, 0.0

    def doubt(self, value: float) -> float:
        """The mean as a share of what is still accepted, after one more value."""
        self.n += 1
        p = max(self.nu, 1 / self.n)
        # The variance of a mixture of what was known, with weight 1 − p, and the new value, with weight p.
        after = (1 - p) * self.mean + p * value
        square = (1 - p) * (self.variance + self.mean**2) + p * value**2
        self.mean, self.variance = after, max(square - after**2, 0.0)
        return self.mean / (self.z * math.sqrt(p * min(self.variance, 1.0)) + 1e-5)


@given(seed=st.integers(0, 2**31), dense=st.booleans(), z=st.sampled_from([(2.0, 2.0, 1.5), (0.5, 0.2, 0.1)]))
@settings(max_examples=12, deadline=None)
def test_agent_by_agent(seed: int, dense: bool, z: tuple[float, float, float]) -> None:
    story, rule = random_story(seed, dense=dense), anchored(significance=z, trust=0.5)
    agents = range(story.graph.agents)
    memories = list(zip((0.1, 0.02, 0.005, 0.005), (*z, 2.0), strict=True))
    series: Any = defaultdict(lambda: [Series(nu, z) for nu, z in memories])
    unit, distance, parabolas = [0.0 for _ in agents], [0.0 for _ in agents], [torch.zeros(2).double() for _ in agents]
    for round, (inbox, _, combined) in enumerate(story.play(rule), start=1):
        for k in agents:
            sample, anchor = tuple(part[k] for part in inbox.samples["next"]), inbox.anchor[k]
            alone = float(story.model.loss(anchor, sample))
            unit[k] += max(0.05, 4 / (round + 3)) * (alone - unit[k])

            def excess(model: Tensor, k: int = k, alone: float = alone, sample: Any = sample) -> float:
                return max((float(story.model.loss(model, sample)) - alone) / unit[k], -20.0)

            own, kept = excess(inbox.own[k]), list[tuple[float, Tensor]]()
            for slot, sender in enumerate([k, *story.graph.neighbours(k)]):
                if not bool(inbox.heard[k, slot]):
                    continue
                message = torch.cat((inbox.rows[inbox.source[k, slot]], inbox.own[k, 3:]))
                above = excess(message)
                own = above if slot == 0 else own
                counted, of_own = (min(max(value, -5.0), 5.0) for value in (above, own))
                values = (counted, counted, counted, counted - of_own)
                doubts = [one.doubt(value) for one, value in zip(series[k, sender], values, strict=True)]
                if max(doubts) <= 1 and above <= 5.0:
                    kept.append((0.5 if slot == 0 else min(1.0, 1 - doubts[-1]), message))
            if not bool(inbox.heard[k, 0]):
                continue  # silent agents are Byzantine, and what they think of themselves does not matter
            parabolas[k] *= 1 - 0.005
            expected = anchor
            if kept:
                share = sum(share for share, _ in kept)
                gap = sum((s / share * message for s, message in kept), torch.zeros(4).double()) - inbox.own[k]
                step = float((anchor - inbox.personal.before[k]).square().sum())
                most = math.inf if distance[k] == 0 else 2**2 * max(distance[k], step)
                far = max(float(gap.square().sum()), 1e-300)
                gap = inbox.own[k] + gap * math.sqrt(min(far, most) / far) - anchor
                half, whole = excess(anchor + gap / 2), excess(anchor + gap)
                if half > 5 or whole > 5:
                    parabolas[k] += torch.tensor([5.0, 0.0]).double()
                else:
                    parabolas[k] += torch.tensor([4 * half - whole, 2 * whole - 4 * half]).double()
                    grid = torch.linspace(0, 1, 100_001).double()
                    slope, bend = parabolas[k].tolist()
                    w = float(grid[(slope * grid + bend * grid**2 + 0.5 * (1 - grid) ** 2).argmin()])
                    expected = anchor + w * gap
                    distance[k] += max(0.2, 4 / (round + 3)) * (min(far, most) - distance[k])
            torch.testing.assert_close(combined.models[k], expected, rtol=1e-4, atol=1e-4)


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


def test_the_first_rounds_do_little_harm() -> None:
    result = simulate(target_localization(agents=40), rule=anchored(), rounds=60, seeds=2)
    regret, alone = (result[name].mean(("seed", "agent")) for name in ("regret", "alone_regret"))
    ratio = (regret / alone).values
    assert ratio[5:].max() < 2.5
    assert ratio[30:].max() < 0.8


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
