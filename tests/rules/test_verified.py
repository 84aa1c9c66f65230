"""Rules around rules, paired tests and interpolation: by hand, against loops, and what they are good for."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from contracts import beyond_defaults
from hypothesis import given, settings
from hypothesis import strategies as st
from inboxes import Average, close, ears, first_of, inverse, one_agent, random_story
from torch import Tensor

from varangian import BadInput, Graph, rules, simulate
from varangian.attacks import uniform
from varangian.core.models.base import Formula, Sample
from varangian.experiments.spec import made
from varangian.rules.interpolated import interpolated
from varangian.rules.multitask import relationship_learning
from varangian.rules.verified import paired, patient, verified
from varangian.studies import target_localization
from varangian.testing import check_rule
from varangian.testing.scenarios import Story

torch.set_num_threads(1)

average, loss_based = rules.average(), rules.loss_based()
ALL = dict.fromkeys([rules.alone, rules.average, rules.loss_based, verified, patient, paired, interpolated])
NAMED = {rule.__name__.replace("_", "-"): rule for rule in ALL}
RULES = [
    verified(),
    verified(rules.distance_based(), smoothing=1.0, judge="same"),
    verified(paired(), smoothing=0.02),
    verified(relationship_learning()),
    patient(),
    patient(average, rounds=1),
    patient(verified(relationship_learning()), rounds=2),
    paired(),
    paired(significance=0.0, smoothing=None, judge="same"),
    interpolated(),
    interpolated(shares=(0.3,), smoothing=1.0, judge="same"),
]


@pytest.mark.parametrize("rule", beyond_defaults(RULES), ids=repr)
def test_every_rule_keeps_the_contract(rule: Any) -> None:
    check_rule(rule)


# By hand --------------------------------------------------------------------------------------------------------


def test_verified_takes_the_combined_model_once_it_has_been_better_for_long_enough() -> None:
    # Own loss 1; the average with (3, 0) has 4, that with (-1, 0) has 0. With ν = ½ the smoothed differences are
    # 3/2, 3/4 − 1/2 and 3/8 − 1/4 − 1/2 times something positive.
    bad, good = (one_agent([1, 0], message, forgetting=0.5) for message in ([3, 0], [-1, 0]))
    assert first_of(verified(average), bad) == ([1, 0], [1, 0])
    assert first_of(verified(average), bad, good) == ([1, 0], [1, 0])
    assert first_of(verified(average), bad, good, good) == ([0, 0], [0.5, 0.5])
    assert first_of(verified(average), good, good, bad) == ([1, 0], [1, 0])
    assert first_of(verified(average, smoothing=1.0), bad, good) == ([0, 0], [0.5, 0.5])
    assert first_of(verified(average, smoothing=0.1), good, good, good, good, bad) == ([2, 0], [0.5, 0.5])


def test_verified_does_not_take_what_has_no_loss_and_does_not_remember_it() -> None:
    good, huge = (one_agent([1, 0], message) for message in ([-1, 0], [1e200, 0]))
    assert first_of(verified(average), good, good, huge) == ([1, 0], [1, 0])
    assert first_of(verified(average), huge, good) == ([0, 0], [0.5, 0.5])


def test_without_a_loss_of_its_own_an_agent_takes_what_has_one() -> None:
    def unlucky(theta: Tensor, sample: Sample) -> Tensor:
        return torch.where(theta[..., 0] == 77, math.nan, theta.square().sum(-1))

    inbox = replace(one_agent([77, 0], [3, 0], [3, 4]), model=Formula(2, unlucky))
    assert first_of(verified(average), inbox)[1] == pytest.approx([1 / 3] * 3)
    assert first_of(paired(), inbox)[1] == pytest.approx([0, 25 / 34, 9 / 34])


def test_verified_tells_no_weights_where_the_rule_has_none() -> None:
    inbox = one_agent([3, 0], [0, 1], aim=[2, 0], step_size=0.5)
    shrunk = relationship_learning(strength=0.5, epsilon=1e-12)
    assert first_of(verified(shrunk), inbox) == (pytest.approx([2.25, 0]), None)
    assert first_of(verified(shrunk), replace(inbox, samples={"next": (inbox.own,)})) == ([3, 0], None)


def test_patient_waits_while_the_rule_gathers_evidence() -> None:
    bad, good = (one_agent([1, 0], message, forgetting=0.5) for message in ([3, 0], [0, 0]))
    rule = patient(loss_based, rounds=2)
    assert first_of(rule, good) == ([1, 0], [1, 0])
    assert first_of(rule, good, good) == ([1, 0], [1, 0])
    assert first_of(rule, good, good, good) == (pytest.approx([0, 0]), pytest.approx([0, 1]))
    # Smoothed losses of 9/8, of which the rule knows because it looked on.
    assert first_of(rule, bad, good, good) == first_of(loss_based, bad, good, good) == ([1, 0], [1, 0])
    assert first_of(patient(loss_based, rounds=0), good) == first_of(loss_based, good)


def test_paired_keeps_whoever_is_not_significantly_worse() -> None:
    # Own loss 4, theirs 3 and 6: differences −1, 2, which with ν = ½ weigh 1/3, 2/3. Mean 1, variance 3 − 1 = 2,
    # Σw² = 5/9, a standard error of √(10/9) = 1.054. Smoothed losses 4 and 5.
    better, worse = (one_agent([2, 0], [math.sqrt(loss), 0], forgetting=0.5) for loss in (3, 6))
    kept, left_out = pytest.approx([5 / 9, 4 / 9]), [1, 0]
    assert first_of(paired(significance=1.0, smoothing=None), better, worse)[1] == kept
    assert first_of(paired(significance=0.9, smoothing=None), better, worse)[1] == left_out
    assert first_of(paired(significance=9.0), worse)[1] == left_out, "one sample has no spread"


def test_paired_does_not_pardon_a_rare_lie_for_the_spread_that_it_makes() -> None:
    honest, lie = one_agent([1, 0], [1, 0]), one_agent([1, 0], [1e6, 0])
    past = [honest] * 60
    for rounds in ([*past, lie], [*past, lie, *past, lie], [*past, lie, lie]):
        assert first_of(paired(), *rounds)[1] == [1, 0]
    # Were it not for the bound, two standard errors would be more than the mean.
    nu, weight = 0.02, 0.02 / (1 - 0.98**61)
    concentration = nu * (1 + 0.98**61) / ((2 - nu) * (1 - 0.98**61))
    assert 2 * math.sqrt((weight - weight**2) * concentration) > weight


def test_interpolated_goes_towards_a_neighbour_as_far_as_it_helps() -> None:
    # Own loss 16. Towards (−6, 0): 36 all the way, 1 at half of it, 2.25 at a quarter. Towards (8, 0): 64, 36, 25.
    inbox = one_agent([4, 0], [-6, 0], [8, 0], None)
    model, weights = first_of(interpolated(), inbox)
    assert weights == pytest.approx([9 / 17, 8 / 17, 0, 0])
    assert model == pytest.approx([(36 - 48) / 17, 0])
    # A quarter only: 16 and 2.25, so 2.25/18.25 for oneself, 16/18.25 for the mixture, a quarter of it the neighbour's.
    assert first_of(interpolated(shares=(0.25,)), inbox)[1] == pytest.approx([14.25 / 18.25, 4 / 18.25, 0, 0])
    assert first_of(interpolated(shares=(1.0,)), inbox) == ([4, 0], [1, 0, 0, 0])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("verified:smoothing=0", "ν"),
        ("verified:rule=averge", "did you mean 'average'"),
        ("patient:rounds=-1", "-1 rounds"),
        ("paired:significance=-1", "significance"),
        ("paired:smoothing=2", "ν"),
        ("interpolated:shares=1/0", "shares"),
        ("interpolated:shares=1.5", "shares"),
        ("interpolated:smoothing=-1", "ν"),
    ],
)
def test_settings_out_of_bounds_are_refused(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        made(text, "rule", NAMED)
    with pytest.raises(BadInput, match="shares"):
        interpolated(shares=())


def test_rules_within_rules_can_be_typed() -> None:
    def typed(text: str) -> Any:
        return made(text, "rule", NAMED)

    assert typed("verified") == verified(average)
    assert typed("verified:rule=loss-based") == verified(loss_based)
    assert typed("verified:smoothing=0.02,rule=loss-based:keep=all,smoothing=0.5") == verified(
        rules.loss_based(keep="all", smoothing=0.5), smoothing=0.02
    )
    assert typed("patient:rounds=3,rule=verified:judge=same,rule=average") == patient(
        verified(average, judge="same"), rounds=3
    )
    assert typed("interpolated:shares=1/0.5") == interpolated(shares=(1.0, 0.5))
    assert typed("paired:smoothing=none,significance=3") == paired(3.0, None)


# Against loops --------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**31), nu=st.sampled_from([None, 0.2, 1.0]), dense=st.booleans())
@settings(max_examples=10, deadline=None)
def test_verified_equals_a_loop(seed: int, nu: float | None, dense: bool) -> None:
    excess: dict[int, Average] = {}
    for round in ears(random_story(seed, dense=dense), verified(average, nu)):
        for ear in round:
            mean = torch.stack(list(ear.messages.values())).mean(0)
            found = excess.setdefault(ear.agent, Average())
            taken = found.observe(ear.loss(mean) - ear.loss(ear.own), nu or ear.nu) <= 0
            who = ear.messages if taken else [ear.agent]
            close(ear, dict.fromkeys(who, 1 / len(who)))


@given(seed=st.integers(0, 2**31), z=st.floats(0, 4), nu=st.sampled_from([None, 0.02, 0.5, 1.0]))
@settings(max_examples=15, deadline=None)
def test_paired_equals_a_loop(seed: int, z: float, nu: float | None) -> None:
    loss, excess, square = (dict[tuple[int, int], Average]() for _ in range(3))
    for round in ears(random_story(seed), paired(z, nu)):
        for ear in round:
            own = ear.loss(ear.own)
            kept: dict[int, float] = {}
            for who, message in ear.messages.items():
                phi, d, v = (store.setdefault((ear.agent, who), Average()) for store in (loss, excess, square))
                risk = phi.observe(ear.loss(message), nu or ear.nu)
                mean = d.observe(ear.loss(message) - own, nu or ear.nu)
                spread = v.observe((ear.loss(message) - own) ** 2, nu or ear.nu) - mean**2
                variance = max(0.0, min(spread, loss[ear.agent, ear.agent].mean ** 2))
                if mean <= z * math.sqrt(variance * d.concentration):
                    kept[who] = risk
            close(ear, inverse(kept))


@given(
    seed=st.integers(0, 2**31),
    shares=st.sampled_from([(1.0,), (1.0, 0.5, 0.25), (0.3, 0.9)]),
    nu=st.sampled_from([None, 0.1, 1.0]),
    dense=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_interpolated_equals_a_loop(seed: int, shares: tuple[float, ...], nu: float | None, dense: bool) -> None:
    losses: dict[tuple[int, int, float], Average] = {}
    for round in ears(random_story(seed, dense=dense), interpolated(shares, nu)):
        for ear in round:
            own = ear.own[:3]
            best: dict[int, tuple[float, float]] = {}
            for who, message in ear.messages.items():
                for share in shares:
                    phi = losses.setdefault((ear.agent, who, share), Average())
                    phi.observe(ear.loss(own + share * (message - own)), nu or ear.nu)
                    risk, mine = phi.mean, losses[ear.agent, ear.agent, share].mean
                    if (who == ear.agent or risk <= mine) and (who not in best or risk < best[who][0]):
                        best[who] = risk, share
            part = inverse({who: risk for who, (risk, _) in best.items()})
            weights = {who: part[who] * share for who, (_, share) in best.items()}
            weights[ear.agent] += 1 - sum(weights.values())
            close(ear, weights)


def test_mixtures_in_pieces_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    story = random_story(3)
    usual = story.outcome(interpolated())
    monkeypatch.setattr("varangian.engine.compute.evaluator.FEW", 0)  # else all messages are one piece
    monkeypatch.setattr("varangian.engine.compute.evaluator._IN_CACHE", 20)
    for one, other in zip(usual, story.outcome(interpolated()), strict=True):
        torch.testing.assert_close(one, other)


@given(seed=st.integers(0, 2**31), rounds=st.integers(0, 4))
@settings(max_examples=10, deadline=None)
def test_patient_is_alone_and_then_as_if_it_had_always_followed_the_rule(seed: int, rounds: int) -> None:
    story = random_story(seed)
    waiting = story.outcome(patient(loss_based, rounds))
    for seen, alone, after in zip(waiting, story.outcome(rules.alone()), story.outcome(loss_based), strict=True):
        assert torch.equal(seen, torch.cat((alone[:rounds], after[rounds:])))


# What they promise ----------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**31), smoothing=st.sampled_from([None, 0.02, 1.0]), dense=st.booleans())
@settings(max_examples=15, deadline=None)
def test_interpolating_all_the_way_is_the_paper_bit_for_bit(seed: int, smoothing: float | None, dense: bool) -> None:
    story = random_story(seed, dense=dense)
    theirs = story.outcome(rules.loss_based(smoothing))
    for one, other in zip(story.outcome(interpolated((1.0,), smoothing)), theirs, strict=True):
        assert torch.equal(one, other)


def test_interpolating_all_the_way_is_the_paper_in_a_whole_run() -> None:
    study = target_localization(agents=20)
    settings_of_run: dict[str, Any] = {"attack": uniform(15, 16), "byzantine": 4, "rounds": 50, "seeds": 2}
    one, other = (simulate(study, rule=rule, **settings_of_run) for rule in (interpolated((1.0,)), loss_based))
    assert one["regret"].equals(other["regret"])


@given(seed=st.integers(0, 2**31), nu=st.sampled_from([None, 0.02, 1.0]))
@settings(max_examples=15, deadline=None)
def test_paired_without_slack_is_the_paper_where_everyone_is_always_heard(seed: int, nu: float | None) -> None:
    story = random_story(seed)
    story = replace(story, sent=story.own[..., :3])
    for one, other in zip(story.outcome(paired(0.0, nu)), story.outcome(rules.loss_based(nu)), strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(
    "rule",
    [interpolated(smoothing=1.0), paired(0.0, 1.0), verified(average, 1.0), verified(relationship_learning(), 1.0)],
    ids=["interpolated", "paired", "verified average", "verified relationship"],
)
@given(seed=st.integers(0, 2**31))
@settings(max_examples=10, deadline=None)
def test_with_known_risks_nobody_is_worse_off_for_having_listened(rule: Any, seed: int) -> None:
    """The second claim of Theorem 1, the sample being the whole risk."""
    for round in ears(random_story(seed), rule):
        for ear in round:
            assert ear.loss(ear.combined) <= ear.loss(ear.own) * (1 + 1e-9)


@pytest.mark.parametrize("rule", [verified(), patient(rounds=3), paired(), interpolated()], ids=repr)
def test_memories_are_taken_along_when_the_graph_changes(rule: Any) -> None:
    """Neighbours come and go; in between, everyone is as in a graph that was always so."""
    study, graphs = target_localization(agents=8), (Graph.ring(8), Graph.complete(8))
    task = study.scene(0).task
    changing = simulate(task, lambda round: graphs[round // 3 % 2], rule=rule, rounds=12)
    assert bool(changing["regret"].notnull().all())
    same = simulate(task, lambda round: Graph.ring(8), rule=rule, rounds=12)
    assert same["regret"].equals(simulate(task, Graph.ring(8), rule=rule, rounds=12)["regret"])


# What they are good for -----------------------------------------------------------------------------------------


@cache
def regret(rule: Any, byzantine: int = 0, agents: int = 20, rounds: int = 60, seeds: int = 3) -> float:
    study = target_localization(agents=agents)
    result = simulate(study, rule=rule, attack=uniform(15, 16), byzantine=byzantine, rounds=rounds, seeds=seeds)
    return float(result["regret"].where(~result["byzantine_agent"]).isel(round=slice(-50, None)).mean())


@pytest.mark.parametrize("byzantine", [0, 4])
def test_verification_rescues_the_average(byzantine: int) -> None:
    assert regret(verified(), byzantine) < 0.2 * regret(average, byzantine)
    assert regret(verified(), byzantine, rounds=300) < 0.01 * regret(average, byzantine, rounds=300)


def test_patience_does_not_take_a_bland_lie_for_help() -> None:
    """Points near all targets are better than an agent that starts at zero, and then hard to unlearn."""
    many = {"byzantine": 16, "rounds": 150}
    assert regret(patient(loss_based, 50), **many) < 0.5 * regret(loss_based, **many)


def test_after_long_enough_paired_and_interpolated_gain_more_than_the_paper() -> None:
    long = {"byzantine": 20, "agents": 100, "rounds": 1000, "seeds": 1}
    alone, paper = regret(rules.alone(), **long), regret(loss_based, **long)
    strict, tested = regret(interpolated(smoothing=0.02), **long), regret(paired(), **long)
    assert paper < 0.9 * alone
    assert strict < 0.85 * paper
    assert tested < 0.6 * paper
    assert tested < regret(verified(paired(), 0.02), **long) < 0.75 * paper


def test_stories_of_these_tests_hold_silence_and_strangers() -> None:
    """The loops above are worth something only if there is somebody to leave out."""
    story: Story = random_story(1)
    assert 0.1 < float(story.sent.isnan().double().mean()) < 0.5
    assert 8 < len(story.graph.senders) < 64
