"""Folds of finite datasets: which items each fold model trains on, and on which items agents judge."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tasks import softmax

from varangian import BadInput
from varangian.core.batches import Batches, Pool
from varangian.core.draws import Draws
from varangian.core.folds import FEW_ITEMS, Folds, few_and_repeated, fold_sample
from varangian.studies import target_localization


def numbered(counts: list[int], batch: int) -> Batches:
    """Agents whose items are numbers, so that a sample shows which items it holds."""
    x = torch.arange(float(sum(counts)))
    return Batches.of(Pool.of(x[:, None], x, list(torch.arange(sum(counts)).split(counts))), batch)


def owned(counts: list[int], agent: int) -> range:
    return range(sum(counts[:agent]), sum(counts[: agent + 1]))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 13), min_size=1, max_size=4), st.integers(1, 6), st.integers(2, 5), st.integers(0, 30))
def test_a_fold_model_trains_on_other_items_than_those_it_judges(
    counts: list[int], batch: int, count: int, round: int
) -> None:
    data = numbered(counts, batch)
    folds, draws = Folds.of(data, count), Draws.of(0, len(counts))
    sample = fold_sample(tuple(part[0] for part in folds.samples(draws, round, 1, torch.float64)))
    just_trained = data.samples(draws, round, 1, torch.float64)[1][0]
    for agent, items in enumerate(counts):
        own, different = owned(counts, agent), min(count, items)
        of_fold = [{own[place] for place in range(items) if place % different == f % different} for f in range(count)]
        if items > 1:
            trained = set(sample.train[1][agent].tolist())
            assert trained <= set(own) - of_fold[round % count]
        judged = sample.judge[1][agent].view(count, folds.judged).tolist()
        for inside, chosen in zip(of_fold, judged, strict=True):
            assert set(chosen) <= inside
            assert len(set(chosen)) == min(folds.judged, len(inside)), "no item twice while there are others"
            unknown = inside - set(just_trained[agent].tolist())
            assert len(set(chosen) & unknown) == min(folds.judged, len(unknown)), "the last batch comes last"


def test_all_items_are_judged_in_an_epoch() -> None:
    data = numbered([32], 8)
    folds = Folds.of(data, 4)
    judged = folds.samples(Draws.of(0, 1), 0, data.rounds_per_pass, torch.float64)[3]
    assert len(set(judged.flatten().tolist())) == 32


def test_folds_do_not_depend_on_how_a_network_is_cut() -> None:
    data, draws = numbered([9, 4, 12, 7], 3), Draws.of(5, 4)
    some = torch.tensor([2, 0])
    whole = Folds.of(data, 4).samples(draws, 3, 4, torch.float64)
    part = Folds.of(data.part(some).compact_copy(), 4).samples(draws.take(some), 3, 4, torch.float64)
    for one, other in zip(part, whole, strict=True):
        assert torch.equal(one, other[:, some])


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(BadInput, match="finite dataset"):
        Folds.of(target_localization(agents=3).scene(0).task.stream, 4)
    with pytest.raises(BadInput, match="at least two folds"):
        Folds.of(numbered([4], 1), 1)


def test_most_agents_have_few_items_and_go_over_them_twice() -> None:
    data, never = numbered([8, 8, 80], 2), torch.zeros(3)
    assert not few_and_repeated(data, 7, never)
    assert few_and_repeated(data, 8, never)
    assert not few_and_repeated(data, 8, torch.full((3,), 0.5))
    assert not few_and_repeated(target_localization(agents=3).scene(0).task.stream, 10**6, never)
    assert few_and_repeated(softmax().stream, 100, 0.0)
    assert few_and_repeated(numbered([FEW_ITEMS], 4), 1000, 0.0)
    assert not few_and_repeated(numbered([FEW_ITEMS + 1], 4), 1000, 0.0)
