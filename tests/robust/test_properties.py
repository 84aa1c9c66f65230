"""Robust functions: what must hold for any vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from robust_table import RULES, WEIGHTS, max_tolerated
from torch import Tensor

from varangian import robust

WITH_A_FAVOURITE = {"monna", "self_centred_clipping"}
"""These look at the others from vector 0."""
WITH_TIES = {"minimum_diameter_average"}
"""Many subsets have the same two vectors farthest apart; the first is taken."""
WITH_A_RADIUS = {"self_centred_clipping", "centred_clipping"}

crowds = st.tuples(st.integers(0, 10**6), st.integers(3, 12), st.integers(2, 6), st.integers(0, 5))
"""A seed, n, d and f before it is lowered to what n bears."""
few = settings(max_examples=12, deadline=None)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_near(got: Tensor, expected: Tensor, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", sorted(RULES.keys() - WITH_A_FAVOURITE - WITH_TIES))
@few
@given(crowds)
def test_the_order_of_vectors_does_not_matter(name: str, crowd: tuple[int, int, int, int]) -> None:
    seed, n, d, f = crowd
    if name == "centerpoint":
        d = 2  # Beyond the plane groups are made in the order of the vectors.
    if name == "krum":
        n = max(n, 6)  # With one neighbour that counts, the nearest two have the same score.
        f = min(f, n - 5)
    vectors, f = draw(seed, n, d), max_tolerated(name, f, n)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    rule = RULES[name]
    if name == "geometric_median":  # The start may be a tie, so only the end of the search is the same.
        rule = lambda vectors, f: robust.geometric_median(vectors, iterations=5000, tolerance=1e-10)  # noqa: E731
    assert_near(rule(vectors[order], f), rule(vectors, f))


def test_the_geometric_median_of_a_tie_is_found_from_both_sides() -> None:
    """Two vectors are as central as each other, and the search from either is slow."""
    vectors, order = draw(3, 4, 2), torch.tensor([1, 0, 3, 2])
    found = [robust.geometric_median(v, iterations=5000, tolerance=1e-10) for v in (vectors, vectors[order])]
    assert_near(*found)


@pytest.mark.parametrize("name", RULES)
@few
@given(crowds)
def test_moving_all_vectors_moves_the_result(name: str, crowd: tuple[int, int, int, int]) -> None:
    seed, n, d, f = crowd
    vectors, f, by = draw(seed, n, d), max_tolerated(name, f, n), 10 * draw(seed + 1, d)
    assert_near(RULES[name](vectors + by, f), RULES[name](vectors, f) + by)


@pytest.mark.parametrize("name", sorted(RULES.keys() - WITH_A_RADIUS))
@few
@given(crowds, st.sampled_from([1e-20, 1e-3, 7.0, 1e20]))
def test_scaling_all_vectors_scales_the_result(name: str, crowd: tuple[int, int, int, int], by: float) -> None:
    seed, n, d, f = crowd
    vectors, f = draw(seed, n, d), max_tolerated(name, f, n)
    assert_near(RULES[name](vectors * by, f) / by, RULES[name](vectors, f))


@few
@given(crowds, st.sampled_from([1e-20, 1e-3, 7.0, 1e20]))
def test_clipping_scales_with_its_radius(crowd: tuple[int, int, int, int], by: float) -> None:
    seed, n, d, _ = crowd
    x = draw(seed, n, d)
    assert_near(robust.centred_clipping(x * by, by) / by, robust.centred_clipping(x, 1.0))
    assert_near(robust.self_centred_clipping(x * by, 0, by) / by, robust.self_centred_clipping(x, 0, 1.0))
    assert_near(robust.clip(x * by, x[0] * by, by) / by, robust.clip(x, x[0], 1.0))
    assert robust.clip(x, x[0], 1.0).sub(x[0]).norm(dim=1).max() <= 1 + 1e-9


@pytest.mark.parametrize("name", RULES)
@few
@given(crowds, st.integers(1, 5))
def test_many_neighbourhoods_at_once_are_each_as_if_alone(
    name: str, crowd: tuple[int, int, int, int], neighbourhoods: int
) -> None:
    seed, n, d, f = crowd
    rng = np.random.default_rng(seed)
    vectors = draw(seed, neighbourhoods, n, d)
    mask = torch.from_numpy(rng.random((neighbourhoods, n)) < 0.8)
    mask[:, 0] = True
    liars = torch.from_numpy(rng.integers(0, f + 1, neighbourhoods))
    whatever = vectors.masked_fill(~mask[..., None], float("nan"))
    together = RULES[name](whatever, liars, mask=mask)
    the_same = RULES[name](vectors[None], f, mask=mask[None])[0]
    for which in range(neighbourhoods):
        there = vectors[which, mask[which]]
        if "krum" in name and len(there) < 3:
            expected = there[:1] if name == "krum" else there
            assert_near(together[which], expected.mean(0))
            continue
        alone = RULES[name](there, max_tolerated(name, int(liars[which]), len(there)))
        assert_near(together[which], alone)
        assert_near(the_same[which], RULES[name](there, max_tolerated(name, f, len(there))))


@pytest.mark.parametrize("name", WEIGHTS)
@few
@given(crowds)
def test_weights_are_convex_and_make_the_result(name: str, crowd: tuple[int, int, int, int]) -> None:
    seed, n, d, f = crowd
    vectors, f = draw(seed, 2, n, d), max_tolerated(name, f, n)
    mask = draw(seed + 1, 2, n) < 1
    mask[:, 0] = True
    weights = WEIGHTS[name](vectors, f, mask=mask)
    assert_near(weights.sum(-1), torch.ones(2, dtype=torch.float64), 1e-12)
    assert bool((weights >= 0).all())
    assert bool((weights[~mask] == 0).all())
    assert_near((weights[:, None] @ vectors)[:, 0], RULES[name](vectors, f, mask=mask), 1e-12)
    plain = WEIGHTS[name](vectors[0], f)
    assert_near(plain @ vectors[0], RULES[name](vectors[0], f), 1e-12)


@few
@given(crowds)
def test_mixing_with_a_mask(crowd: tuple[int, int, int, int]) -> None:
    seed, n, d, f = crowd
    vectors, f = draw(seed, 2, n, d), min(f, n - 1)
    mask = draw(seed + 1, 2, n) < 1
    mask[:, 0] = True
    mixed = robust.nearest_neighbour_mixing(vectors.masked_fill(~mask[..., None], float("inf")), f, mask=mask)
    assert mixed.shape == vectors.shape
    for which in range(2):
        there = vectors[which, mask[which]]
        expected = robust.nearest_neighbour_mixing(there, min(f, len(there) - 1))
        assert_near(mixed[which, mask[which]], expected)
        assert_near(mixed[which, ~mask[which]], expected[:1].expand(n - len(there), d))


@few
@given(crowds, st.sampled_from(["float32", "float64"]))
def test_distances_are_those_of_every_pair(crowd: tuple[int, int, int, int], dtype: str) -> None:
    seed, n, d, _ = crowd
    vectors = draw(seed, 2, n, d).to(getattr(torch, dtype))
    exact = (vectors.double()[:, :, None] - vectors.double()[:, None]).square().sum(-1)
    rough = 1e-5 if dtype == "float32" else 1e-12
    for got in (robust.squared_distances(vectors), torch.stack([robust.squared_distances(x) for x in vectors])):
        assert got.dtype == vectors.dtype
        assert_near(got.double(), exact, rough)
        assert bool((got.diagonal(dim1=1, dim2=2) == 0).all())
        assert torch.equal(got, got.mT)
    assert_near(robust.squared_distances_to(vectors, vectors[:, 1]).double(), exact[:, 1], rough)
    assert_near(robust.squared_distances_to(vectors[0], vectors[0, 1]).double(), exact[0, 1], rough)


@few
@given(crowds)
def test_the_geometric_median_is_lower_than_its_surroundings(crowd: tuple[int, int, int, int]) -> None:
    seed, n, d, _ = crowd
    vectors = draw(seed, n, d)
    point = robust.geometric_median(vectors)

    def total(z: Tensor) -> float:
        return float((vectors - z).norm(dim=-1).sum())

    lowest = min(total(point + 1e-2 * step) for step in draw(seed + 2, 30, d))
    assert total(point) <= min(lowest, *(total(x) for x in vectors)) + 1e-4


@few
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 30))
def test_coordinatewise_rules_are_those_of_numpy(seed: int, n: int, d: int) -> None:
    # Integers, so that many are equal.
    vectors = np.random.default_rng(seed).integers(-5, 6, (n, d)).astype(float)
    f = (n - 1) // 3
    np.testing.assert_allclose(robust.median(vectors), np.median(vectors, axis=0), atol=1e-12)
    in_order = np.sort(vectors, axis=0)[f : n - f]
    np.testing.assert_allclose(robust.trimmed_mean(vectors, f), in_order.mean(0), atol=1e-12)
    far = np.abs(vectors - np.median(vectors, axis=0))
    # Of values equally far the smaller is kept.
    kept = np.lexsort((vectors, far), axis=0)[: n - f]
    around = np.take_along_axis(vectors, kept, axis=0).mean(0)
    np.testing.assert_allclose(robust.mean_around_median(vectors, f), around, atol=1e-12)


@few
@given(st.integers(0, 10**6), st.integers(3, 9), st.integers(1, 3))
def test_selection_rules_are_their_definitions(seed: int, n: int, d: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(n, d))
    f = (n - 3) // 2
    squared = ((vectors[:, None] - vectors) ** 2).sum(-1)
    scores = np.sort(squared, axis=1)[:, 1 : n - f - 1].sum(1)
    np.testing.assert_allclose(robust.krum(vectors, f), vectors[scores.argmin()], atol=1e-12)
    best = np.argsort(scores, kind="stable")[: n - f]
    np.testing.assert_allclose(robust.multi_krum(vectors, f), vectors[best].mean(0), atol=1e-12)
    near = np.argsort(squared, axis=1, kind="stable")[:, : n - f]
    np.testing.assert_allclose(robust.nearest_neighbour_mixing(vectors, f), vectors[near].mean(1), atol=1e-12)
    np.testing.assert_allclose(robust.monna(vectors, f, own=1), vectors[near[1]].mean(0), atol=1e-12)
