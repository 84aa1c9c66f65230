"""CS₊-RG: by hand, against a loop, and where its paper says it holds."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from inboxes import close, ears, first_of, one_agent, random_story
from means import error, estimation

from varangian import BadInput, Graph, rules
from varangian.attacks import spectral_dissensus
from varangian.rules.robust_gossip import cs_plus_rg
from varangian.testing import check_rule

torch.set_num_threads(1)


def test_other_settings_keep_the_contract() -> None:
    check_rule(cs_plus_rg(f=1, step=0.5))


def test_twice_as_many_as_are_byzantine_are_clipped_to_the_next_one() -> None:
    # Distances 1, 2, 4 and 8 of four neighbours. With f = 1 the two farthest pull as far as the third, which is at 2.
    inbox = one_agent([0, 0], [1, 0], [0, 2], [4, 0], [0, -8])
    model, weights = first_of(cs_plus_rg(f=1), inbox)
    assert weights == pytest.approx([1 - 2.75 / 5, 0.2, 0.2, 0.1, 0.05])
    assert model == pytest.approx([(1 + 2) / 5, (2 - 2) / 5])
    assert first_of(cs_plus_rg(f=1, step=0.5), inbox)[0] == pytest.approx([0.3, 0])
    assert first_of(cs_plus_rg(f=0), inbox)[0] == pytest.approx([1, -6 / 5]), "the plain mean"


def test_too_few_neighbours_for_f_leave_the_agent_alone() -> None:
    assert first_of(cs_plus_rg(f=1), one_agent([3, 0], [1, 0], [0, 2])) == ([3, 0], [1, 0, 0])
    assert first_of(cs_plus_rg(f=2), one_agent([3, 0], [1, 0], [0, 2], None)) == ([3, 0], [1, 0, 0, 0])
    assert first_of(cs_plus_rg(f=2), one_agent([3, 0], None, None)) == ([3, 0], [1, 0, 0])


@pytest.mark.parametrize("wrong", [{"f": -1}, {"f": 1.5}, {"step": 0.0}, {"step": 1.5}])
def test_settings_out_of_bounds_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput, match=f"is {next(iter(wrong.values()))}"):
        cs_plus_rg(**wrong)


@given(seed=st.integers(0, 2**31), dense=st.booleans(), f=st.integers(0, 3))
@settings(max_examples=15, deadline=None)
def test_it_equals_a_loop(seed: int, dense: bool, f: int) -> None:
    for round in ears(random_story(seed, dense=dense), cs_plus_rg(f=f)):
        for ear in round:
            far = {who: float((m - ear.own[:3]).norm()) for who, m in ear.messages.items() if who != ear.agent}
            ranked = sorted(far.values(), reverse=True)
            b = min(f, len(far))
            radius = math.inf if not b else ranked[2 * b] if 2 * b < len(ranked) else 0.0
            heard = len(far) + 1
            pulls = {who: min(1.0, radius / distance) / heard for who, distance in far.items()}
            if ear.agent in ear.messages:  # an agent whose own message was lost has no row to give weight to
                close(ear, {**pulls, ear.agent: 1 - sum(pulls.values())})


def disagreement(rule: object) -> float:
    """How far apart agents stay that only gossip: two cliques with few edges between them, under attack."""
    one, other = range(8), range(8, 16)
    inside = [(a, b) for part in (one, other) for a in part for b in part if a != b]
    across = [(a, 8 + (a + shift) % 8) for a in one for shift in range(3)]
    byzantine = [(liar, victim) for liar in (16, 17) for victim in range(16)]
    graph = Graph.from_edges(18, [*inside, *across, *((b, a) for a, b in across), *byzantine])
    start = torch.tensor([[1.0]] * 8 + [[-1.0]] * 8 + [[0.0]] * 2, dtype=torch.float64)
    task = estimation(torch.zeros_like(start), start, step_size=0.0)
    return error(task, graph, rule, spectral_dissensus(1.0), [16, 17], rounds=50)


def test_agents_agree_under_the_attack_of_its_paper_where_nearest_neighbour_averaging_does_not() -> None:
    """The gap to NNA, which this library calls `monna`, is the one that the paper shows."""
    assert disagreement(cs_plus_rg(f=2)) < 0.01
    assert disagreement(rules.monna(f=2)) > 0.5
