"""Bucketing and adaptive clipping: by hand, around other rules, and what their papers show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from inboxes import first_of, one_agent
from means import error, estimation
from torch import Tensor

from varangian import BadInput, Graph, rules, simulate
from varangian.attacks import gaussian
from varangian.core.inbox import Inbox
from varangian.experiments.spec import catalogue, made
from varangian.rules.base import Combined
from varangian.rules.preaggregation import bucketing, clipped
from varangian.testing import check_rule

torch.set_num_threads(1)

RULES = [
    bucketing(rules.krum(f=1), size=3),
    bucketing(rules.loss_based()),
    bucketing(rules.balance(), size=1),
    clipped(rules.loss_based(), f=1),
    clipped(rules.bucketing(rules.average())),
    bucketing(rules.clipped(rules.geometric_median())),
]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_around_other_rules_they_keep_the_contract(rule: Any) -> None:
    check_rule(rule)


class Seen:
    """Not a rule of its own: it shows what the rule inside another one sees."""

    def init(self, table: Tensor) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
        self.inbox = inbox
        return rules.average().combine(inbox, state)


def seen_by(wrapper: type[Any], inbox: Inbox, **settings: Any) -> tuple[list[list[float]], list[bool], Any]:
    """What agent 0's inner rule sees: the messages, and which were heard; and what the wrapper returns."""
    inner = Seen()
    rule = wrapper(inner, **settings)
    combined = rule.combine(inbox, rule.init(inbox.own.new_zeros(inbox.heard.shape)))
    return inner.inbox.received()[0].tolist(), inner.inbox.heard[0].tolist(), combined


# Bucketing ------------------------------------------------------------------------------------------------------

POWERS = [[1.0, 0], [2, 0], [4, 0], [8, 0], [16, 0]]
"""Sums of different powers of two are different, so a bucket shows its members."""


def members(total: float) -> set[int]:
    return {place for place in range(5) if round(total) >> place & 1}


def test_every_neighbour_is_in_one_bucket_and_the_agent_in_none() -> None:
    messages, heard, _ = seen_by(bucketing, one_agent([-1, 3], *POWERS), size=2)
    assert messages[0] == [-1, 3] and heard == [True] * 4
    buckets = [members(2 * messages[1][0]), members(2 * messages[2][0]), members(messages[3][0])]
    assert sorted(map(len, buckets)) == [1, 2, 2], "the last bucket is smaller"
    assert set.union(*buckets) == set(range(5))


def test_silent_neighbours_are_in_no_bucket() -> None:
    few, heard, _ = seen_by(bucketing, one_agent([0, 0], POWERS[0], None, POWERS[2], None, POWERS[4]), size=2)
    assert heard == [True, True, True, False]
    assert members(2 * few[1][0]) | members(few[2][0]) == {0, 2, 4}
    assert first_of(bucketing(), one_agent([7, 0], None, None))[0] == [7, 0]


def test_a_neighbours_weight_is_its_part_of_the_buckets_weight() -> None:
    model, weights = first_of(bucketing(rules.average(), size=2), one_agent([0, 0], *POWERS))
    assert weights is not None and weights[0] == 0.25
    assert sorted(weights[1:]) == pytest.approx([0.125] * 4 + [0.25])
    assert model[0] == pytest.approx(sum(w * m[0] for w, m in zip(weights[1:], POWERS, strict=True)))
    assert first_of(bucketing(rules.median()), one_agent([0, 0], *POWERS))[1] is None


def test_size_one_is_the_rule_itself() -> None:
    inbox = one_agent([0, 0], *POWERS, None)
    for rule in (rules.krum(f=1), rules.trimmed_mean(f=1), rules.loss_based()):
        (model, weights), expected = first_of(bucketing(rule, size=1), inbox), first_of(rule, inbox)
        assert model == pytest.approx(expected[0])
        assert weights == pytest.approx(expected[1])


def test_buckets_change_from_round_to_round_and_not_with_the_order_of_slots() -> None:
    def buckets(round: int, turned: bool = False) -> list[float]:
        inbox = one_agent([0, 0], *POWERS, round=round)
        if turned:
            inbox = inbox.in_order(torch.tensor([0, 5, 3, 1, 2, 4]).expand(6, 6))
        return sorted(message[0] for message in seen_by(bucketing, inbox, size=2)[0])

    assert len({tuple(buckets(round)) for round in range(20)}) > 5
    assert all(buckets(round) == buckets(round, turned=True) for round in range(20))


def test_what_the_inner_rule_remembers_of_neighbours_starts_afresh() -> None:
    rule, table = bucketing(rules.loss_based()), torch.zeros(2, 6)
    assert rule.init(table) == ()
    (rounds,) = bucketing(rules.balance()).init(table)
    assert rounds.shape == (2,), "what it remembers per agent stays"
    inbox = one_agent([3, 0], *POWERS)
    assert first_of(rule, inbox, inbox) == first_of(bucketing(rules.loss_based(smoothing=1.0)), inbox)


def test_an_inbox_without_random_numbers_is_told() -> None:
    inbox = replace(one_agent([0, 0], *POWERS), pairs=None)
    with pytest.raises(BadInput, match="no random numbers"):
        first_of(bucketing(), inbox)


def test_bucketing_brings_robust_functions_nearer_to_the_mean_of_unlike_agents() -> None:
    """The paper's starting point: without an adversary, where most neighbours have 0 and some have 1, the median of the
    models is 0 in every round. The median of buckets is nearer to their mean, 0.3."""
    values = [[1.0, 0]] * 9 + [[0.0, 0]] * 21

    def distance(rule: Any) -> float:
        inboxes = [one_agent([0.3, 0], *values, round=round) for round in range(40)]
        return abs(sum(first_of(rule, inbox)[0][0] for inbox in inboxes) / len(inboxes) - 0.3)

    assert distance(rules.median()) == pytest.approx(0.3)
    assert distance(bucketing(rules.median(), size=5)) < 0.1


def run(**settings: Any) -> Any:
    task = estimation(torch.full((20, 5), 3.0, dtype=torch.float64))
    settings = {"rule": bucketing(rules.median()), "attack": gaussian(30.0, 1.0), "byzantine": 4, **settings}
    return simulate(task, Graph.ring(20, 4), rounds=8, **settings)


def test_seeds_together_equal_seeds_alone_and_differ() -> None:
    together = run(seeds=[3, 5])["msd"]
    for place, seed in enumerate((3, 5)):
        assert (run(seeds=[seed])["msd"].values[0] == together.values[place]).all()


def test_a_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    class Interrupt:
        def start(self, *_: Any) -> None: ...

        def end(self, *_: Any) -> None: ...

        def round(self, world: Any, state: Any, *_: Any) -> None:
            if state.round == 4:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=tmp_path, callbacks=[Interrupt()])
    assert (run(checkpoint=tmp_path, resume=True)["msd"] == run()["msd"]).all()


# Adaptive clipping ----------------------------------------------------------------------------------------------


def test_the_farthest_are_clipped_to_the_next_one() -> None:
    # n = 6 and f = 1: j = ⌊2 · 1/6 · 5⌋ = 1, so that only the farthest is clipped, from 8 to 4.
    inbox = one_agent([1, 0], [2, 0], [1, 2], [1, -3], [5, 0], [1, 8])
    messages, _, combined = seen_by(clipped, inbox, f=1)
    assert sorted(messages) == sorted([[1, 0], [2, 0], [1, 2], [1, -3], [5, 0], [1, 4]])
    assert combined.weights[0].tolist() == pytest.approx([0.25, 1 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 12])
    # f = 2: j = ⌊2 · 2/6 · 4⌋ = 2, so that two are clipped to 3.
    messages, _, _ = seen_by(clipped, inbox, f=2)
    assert sorted(messages) == sorted([[1, 0], [2, 0], [1, 2], [1, -3], [4, 0], [1, 3]])


def test_clipping_is_as_in_byzfl_around_a_mean() -> None:
    # The example of byzfl's ARC(1). It measures from zero, and here the agent is at zero, as one more model.
    inbox = one_agent([0, 0, 0], [1, 2, 3], [4, 5, 6], [7, 8, 9])
    messages, _, _ = seen_by(clipped, inbox, f=1)
    assert messages[3] == pytest.approx([4.41004009, 5.04004582, 5.67005155])


def test_nothing_is_clipped_without_byzantine_neighbours() -> None:
    inbox = one_agent([0, 0], [1, 0], [1e30, 0])
    assert first_of(clipped(rules.average(), f=0), inbox)[0] == first_of(rules.average(), inbox)[0]


def test_a_message_from_far_away_moves_the_mean_no_farther_than_an_honest_one() -> None:
    inbox = one_agent([0, 0], [1, 0], [0, 1], [0, -1], [1e100, 0])
    model, _ = first_of(clipped(rules.average(), f=1), inbox)
    assert model == pytest.approx([2 / 5, 0])


def test_an_inner_rule_keeps_its_memory_of_each_neighbour() -> None:
    """Neighbours change places by distance; what is remembered of them does not."""
    one, two = one_agent([3, 0], [1, 0], [9, 0]), one_agent([3, 0], [9, 0], [2, 0])
    rule = rules.loss_based()
    assert first_of(clipped(rule, f=0), one, two)[1] == pytest.approx(first_of(rule, one, two)[1])


def test_clipping_tames_an_average_and_keeps_a_robust_rule_robust() -> None:
    task = estimation(torch.full((20, 5), 3.0, dtype=torch.float64))

    def reached(rule: Any) -> float:
        return error(task, Graph.complete(20), rule, gaussian(300.0, 1.0), 4)

    assert reached(clipped(rules.average())) < reached(rules.average()) / 1000
    assert reached(clipped(rules.trimmed_mean())) < 2 * reached(rules.trimmed_mean())


# Both -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "says"), [(lambda: bucketing(size=0), "size is 0"), (lambda: clipped(f=-1), "is -1")])
def test_settings_out_of_bounds_are_refused(make: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        make()


def test_they_are_made_from_text() -> None:
    named = catalogue(rules)
    assert made("bucketing:size=3,rule=krum:f=2", "rule", named) == bucketing(rules.krum(f=2.0), size=3)
    assert made("clipped:f=1,rule=bucketing:rule=median", "rule", named) == clipped(bucketing(rules.median()), f=1.0)
