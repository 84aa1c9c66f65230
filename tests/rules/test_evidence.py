"""Evidence without masks says what evidence with masks would."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from varangian.rules.evidence import Smoothed, by_inverse, everyone, not_worse, smooth

quickly = settings(deadline=None, max_examples=150)
values = st.sampled_from([0.0, 1e-300, 1e-3, 0.5, 1.0, 7.0, 1e30, 1e300, math.inf, math.nan, -math.inf])


@st.composite
def tables(draw: st.DrawFn, kinds: st.SearchStrategy[float] = values) -> Tensor:
    agents, slots = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    return torch.tensor([[draw(kinds) for _ in range(slots)] for _ in range(agents)], dtype=torch.float64)


@quickly
@given(st.lists(tables(), min_size=1, max_size=4), st.sampled_from([0.05, 0.5, 1.0]), st.sampled_from([0.0, 2.0]))
def test_smoothing_one_neighbour_at_a_time(observed: list[Tensor], nu: float, start: float) -> None:
    observed = [table for table in observed if table.shape == observed[0].shape]
    state = Smoothed.start(torch.zeros_like(observed[0]), start)
    phi, times = torch.full_like(observed[0], start).tolist(), torch.zeros_like(observed[0]).tolist()
    for table in observed:
        evidence, state = smooth(table, nu, state)
        for k, row in enumerate(table.tolist()):
            for slot, value in enumerate(row):
                if not math.isfinite(value):
                    assert float(evidence[k, slot]) == math.inf
                    continue
                phi[k][slot] = (1 - nu) * phi[k][slot] + nu * value
                times[k][slot] += 1
                mass = 1.0 if start else 1 - (1 - nu) ** times[k][slot]
                assert float(evidence[k, slot]) == pytest.approx(phi[k][slot] / mass, rel=1e-9, abs=1e-300)
        assert bool(state.total.isfinite().all())


evidences = st.sampled_from([-3.0, 0.0, 1e-30, 0.5, 0.5000001, 2.0, 1e38, math.inf])


@quickly
@given(tables(evidences))
def test_who_is_not_worse(evidence: Tensor) -> None:
    for row, kept in zip(evidence.tolist(), not_worse(evidence).tolist(), strict=True):
        assert kept == [value <= row[0] and value < math.inf for value in row]


@quickly
@given(tables(evidences))
def test_weights_by_inverse(evidence: Tensor) -> None:
    kept = everyone(evidence)
    for row, weights in zip(evidence.tolist(), by_inverse(evidence, kept).tolist(), strict=True):
        finite = [value for value in row if value < math.inf]
        if not finite:
            assert weights == [1.0] + [0.0] * (len(row) - 1)
            continue
        perfect = [value <= 0 for value in row]
        if any(perfect):
            expected = [is_perfect / sum(perfect) for is_perfect in perfect]
        else:
            smallest = min(finite)
            shares = [smallest / value for value in row]
            expected = [share / sum(shares) for share in shares]
        assert weights == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("size", [1e-38, 1e-30, 1.0, 1e30, 3e38])
def test_weights_in_single_precision_at_any_scale(size: float) -> None:
    """Neither sums of inverses nor inverses of the largest numbers are lost."""
    evidence = torch.tensor([[size, size, 1.0 * size, math.inf]])
    weights = by_inverse(evidence, everyone(evidence))[0].tolist()
    assert weights == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0], rel=1e-5)
