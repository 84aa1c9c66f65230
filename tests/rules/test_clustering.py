"""Threshold clustering: by hand, against a loop, and among clusters of tasks."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from inboxes import Ear, close, ears, first_of, one_agent, random_story
from means import error, estimation, two_clusters

from varangian import BadInput, Graph, rules
from varangian.attacks import gaussian
from varangian.rules.clustering import between_groups, threshold_clustering
from varangian.testing import check_rule

torch.set_num_threads(1)


def test_other_settings_keep_the_contract() -> None:
    check_rule(threshold_clustering(radius=1.5, iterations=2))


def test_far_models_are_replaced_by_the_centre() -> None:
    # Radius 2: only (1, 0) is near. The centre moves to (0 + 1 + 0 + 0)/4 and then to (0 + 1 + ¼ + ¼)/4.
    inbox = one_agent([0, 0], [1, 0], [0, 9], [5, 0])
    assert first_of(threshold_clustering(radius=2.0, iterations=1), inbox) == ([0.25, 0], [0.75, 0.25, 0, 0])
    model, weights = first_of(threshold_clustering(radius=2.0, iterations=2), inbox)
    assert model == pytest.approx([0.375, 0]) and weights == pytest.approx([0.625, 0.375, 0, 0])
    model, _ = first_of(threshold_clustering(radius=2.0, iterations=50), inbox)
    assert model == pytest.approx([0.5, 0]), "at last it is the mean of the near ones"


def test_a_centre_that_moves_reaches_new_models() -> None:
    # (1.4, 0) is beyond the radius 1.2 of (0, 0), but not of (0.3, 0), the first centre.
    inbox = one_agent([0, 0], [0.9, 0], [1.4, 0])
    assert first_of(threshold_clustering(radius=1.2, iterations=1), inbox)[0] == pytest.approx([0.3, 0])
    assert first_of(threshold_clustering(radius=1.2, iterations=2), inbox)[0] == pytest.approx([2.3 / 3, 0])


def test_by_default_the_radius_divides_near_from_far() -> None:
    near, far, byzantine = [[1, 0], [0, 1], [-1, 0]], [[8, 0], [0, 9]], [[0, -1e30]]
    inbox = one_agent([0, 0], *near, *far, *byzantine)
    _, weights = first_of(threshold_clustering(f=1, iterations=1), inbox)
    assert weights == pytest.approx([4 / 7, 1 / 7, 1 / 7, 1 / 7, 0, 0, 0])
    _, trusting = first_of(threshold_clustering(f=0, iterations=1), inbox)
    assert trusting == pytest.approx([2 / 7, *[1 / 7] * 5, 0]), "one far away hides the difference between the others"


def test_one_neighbour_cannot_be_told_near_or_far() -> None:
    assert first_of(threshold_clustering(), one_agent([0, 0], [1, 0], None)) == ([0, 0], [1, 0, 0])
    assert first_of(threshold_clustering(), one_agent([2, 0], None)) == ([2, 0], [1, 0])


def test_groups_divide_where_deviations_are_smallest() -> None:
    distances = [[0.0, 1, 2, 10, 11, math.inf], [5, 5, 5, 5, 5, 5], [1, 1e38, 3e38, 3e38, math.inf, math.inf]]
    middle = between_groups(torch.tensor(distances), torch.tensor([6, 6, 6]))
    torch.testing.assert_close(middle, torch.tensor([[(1 + 10.5) / 2], [5.0], [1.75e38]]))


@pytest.mark.parametrize("wrong", [{"radius": -1.0}, {"f": 1.5}, {"iterations": 0}])
def test_settings_out_of_bounds_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput, match=f"is {next(iter(wrong.values()))}"):
        threshold_clustering(**wrong)  # type: ignore[arg-type]


def clustered(ear: Ear, f: int, iterations: int) -> dict[int, float]:
    """The procedure as the paper has it, on vectors."""
    weights, n = {ear.agent: 1.0}, len(ear.messages)
    for _ in range(iterations):
        centre = sum((w * ear.messages[who] for who, w in weights.items()), torch.zeros(3, dtype=torch.float64))
        far = {who: float((message - centre).norm()) for who, message in ear.messages.items()}
        others = sorted(distance for who, distance in far.items() if who != ear.agent)
        others = others[: len(others) - min(f, len(others) // 2)]
        radius = 0.0
        if len(others) > 1:
            groups = [(others[:at], others[at:]) for at in range(1, len(others))]
            near, away = min(groups, key=lambda pair: sum(map(squares, pair)))
            radius = (sum(near) / len(near) + sum(away) / len(away)) / 2
        kept = {who for who, distance in far.items() if distance <= radius} | {ear.agent}
        weights = {who: (who in kept) / n + weights.get(who, 0.0) * (n - len(kept)) / n for who in {*kept, *weights}}
    return weights


def squares(values: list[float]) -> float:
    return sum((value - sum(values) / len(values)) ** 2 for value in values)


@given(seed=st.integers(0, 2**31), dense=st.booleans(), f=st.integers(0, 2), iterations=st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_it_equals_a_loop(seed: int, dense: bool, f: int, iterations: int) -> None:
    for round in ears(random_story(seed, dense=dense), threshold_clustering(f=f, iterations=iterations)):
        for ear in round:
            if ear.agent in ear.messages:
                close(ear, clustered(ear, f, iterations))


def test_it_learns_with_its_cluster_nearly_as_well_as_if_the_clusters_were_known() -> None:
    """What the paper proves for well separated clusters, here with Byzantine agents."""
    task, graph, attack = estimation(two_clusters()), Graph.complete(20), gaussian(30.0, 1.0)
    alone, known, found = (
        error(task, graph, rule, attack, 4) for rule in (rules.alone(), rules.oracle(), threshold_clustering())
    )
    assert known < found < 1.5 * known < alone / 3
