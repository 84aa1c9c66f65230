"""The leash: the best share of the way so far, checked by trying every share, and its guarantee."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from varangian.rules.leash import Leash, pull, within_reach

GRID = torch.linspace(0, 1, 201, dtype=torch.float64)
numbers = st.floats(-20, 20)
rounds = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=30)


def parabola(half: float, whole: float) -> Tensor:
    """The parabola through (0, 0), (½, half) and (1, whole), on the grid."""
    return whole * GRID * (2 * GRID - 1) + half * 4 * GRID * (1 - GRID)


@settings(max_examples=100, deadline=None)
@given(
    losses=rounds,
    most=st.sampled_from([0.0, 5.0, math.inf]),
    forgetting=st.sampled_from([0.005, 0.1, 1.0]),
    trust=st.sampled_from([0.0, 3.0]),
)
def test_it_takes_the_best_share_so_far_and_loses_to_no_fixed_share(
    losses: list[tuple[float, float]], most: float, forgetting: float, trust: float
) -> None:
    state, total, ours = Leash.start(torch.zeros(1, dtype=torch.float64)), torch.zeros_like(GRID), 0.0
    for half, whole in losses:
        pair = [torch.tensor([value], dtype=torch.float64) for value in (half, whole)]
        w, goes, state = pull(*pair, most, forgetting, trust, state)
        counted = parabola(min(half, most), whole) if goes else most * GRID
        total = total * (1 - forgetting) + counted
        assert 0 <= float(w) <= 1
        assert goes or w == 0, "who does not go stays at the anchor"
        assert not goes or whole <= most
        assert half <= most or w in (0, 1), "nobody stops on a hill"
        penalty = trust * (1 - GRID) ** 2
        found = float(state.slope * w + state.bend * w**2 + trust * (1 - w) ** 2)
        assert not goes or found <= float((total + penalty).min()) + 1e-9
        ours = ours * (1 - forgetting) + float(whole * w * (2 * w - 1) + half * 4 * w * (1 - w))
        assert ours <= float((total + penalty).min()) + 1e-9, "for every w: ours ≤ F(w) + λ (1 − w)²"


def test_by_hand() -> None:
    start = Leash.start(torch.zeros(3, dtype=torch.float64))
    # (1 − w)² + w² less 1 has its least value at ½. −w is least at 1. w (1 − w) is least at both ends, and 0 is taken.
    half, whole = (torch.tensor(v, dtype=torch.float64) for v in ([-0.5, -0.5, 0.25], [0.0, -1.0, 0.0]))
    assert pull(half, whole, 5.0, 0.1, 0.0, start)[0].tolist() == [0.5, 1.0, 0.0]
    assert pull(half, whole, 5.0, 0.1, 2.0, start)[0].tolist() == [0.75, 1.0, 1.0]


def test_beyond_a_hill_the_agent_goes_all_the_way_or_stays() -> None:
    nan = float("nan")
    half = torch.tensor([9.0, nan, 9.0, 9.0, 1.0], dtype=torch.float64)
    whole = torch.tensor([-1.0, -1.0, 1.0, nan, -0.5], dtype=torch.float64)
    # Until now ¼ was best, by far for the last agent.
    before = Leash(torch.full_like(half, -1.0), torch.full_like(half, 2.0))
    before.slope[-1], before.bend[-1] = -1000.0, 2000.0
    w, goes, after = pull(half, whole, 5.0, 0.5, 0.0, before)
    assert w.tolist() == [1.0, 1.0, 0.0, 0.0, w[-1].item()] and 0.2 < w[-1] < 0.3
    assert goes.tolist() == [True, True, False, False, True]
    assert after.slope[2:4].tolist() == [4.5, 4.5], "half of what was, and 5 w"
    assert after.bend[2:4].tolist() == [1.0, 1.0]


def test_what_is_far_is_cut_to_the_distance_that_is_allowed() -> None:
    anchor = torch.zeros(3, 2)
    candidate = torch.tensor([[3.0, 4.0], [0.0, 0.0], [30.0, 40.0]])
    most = torch.tensor([float("inf"), 1.0, 25.0])
    towards, share, distance = within_reach(candidate, anchor, most)
    torch.testing.assert_close(towards, torch.tensor([[3.0, 4.0], [0.0, 0.0], [3.0, 4.0]]))
    torch.testing.assert_close(share[:, 0], torch.tensor([1.0, 1.0, 0.1]))
    assert distance.tolist()[0] == 25.0
    assert distance.tolist()[2] == 25.0
