"""Centrepoints: how deep they lie, counted."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from varangian import robust

Array = np.ndarray


def depth_in_the_plane(point: Array, points: Array) -> int:
    """The fewest points in a closed half-plane around `point`: between the directions where a point passes the line."""
    apart = points - point
    size = np.abs(apart).max() or 1.0
    passes = np.sort(
        np.concatenate([np.arctan2(apart[:, 1], apart[:, 0]) + turn for turn in (math.pi / 2, -math.pi / 2)])
    )
    between = (passes + np.append(passes[1:], passes[0] + 2 * math.pi)) / 2
    directions = np.concatenate((between, passes))
    ahead = np.stack((np.cos(directions), np.sin(directions)), 1) @ apart.T
    return int((ahead >= -1e-7 * size).sum(1).min())


CLOUDS = {
    "normal": lambda rng, n: rng.normal(size=(n, 2)),
    "on a line": lambda rng, n: rng.normal(size=(n, 1)) * [2.0, -3.0] + [1.0, 5.0],
    "on a level line": lambda rng, n: rng.normal(size=(n, 1)) * [1.0, 0.0],
    "integers": lambda rng, n: rng.integers(-2, 3, (n, 2)).astype(float),
    "three clusters": lambda rng, n: np.eye(3)[:, :2][np.arange(n) % 3] * 10 + 1e-3 * rng.normal(size=(n, 2)),
    "on a circle": lambda rng, n: np.stack((np.cos(t := rng.uniform(0, 7, n)), np.sin(t)), 1),
    "all the same": lambda rng, n: np.full((n, 2), 3.0),
}


@pytest.mark.parametrize("cloud", CLOUDS)
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 25))
def test_in_the_plane_every_half_plane_holds_a_third(cloud: str, seed: int, n: int) -> None:
    points = CLOUDS[cloud](np.random.default_rng(seed), n)
    assert depth_in_the_plane(robust.centerpoint(points), points) >= n / 3


def test_the_measure_can_fail() -> None:
    points = np.random.default_rng(0).normal(size=(12, 2))
    assert depth_in_the_plane(np.array([9.0, 9.0]), points) == 0
    assert depth_in_the_plane(points[points[:, 0].argmax()], points) == 1


def test_a_large_crowd() -> None:
    points = np.random.default_rng(1).normal(size=(100, 2)) * [1.0, 50.0]
    assert depth_in_the_plane(robust.centerpoint(points), points) >= 100 / 3


def test_in_the_plane_fewer_than_a_third_cannot_pull_it_out_of_the_honest_hull() -> None:
    rng = np.random.default_rng(2)
    for size in (3.0, 1e6, 1e30, 1e300):
        good = rng.normal(size=(9, 2))
        bad = np.full((4, 2), size) * rng.choice([-1, 1], 2)
        point = robust.centerpoint(np.concatenate((bad, good)))
        # In the hull of the honest: every half-plane around it holds one of them.
        assert depth_in_the_plane(point, good) >= 1


def test_by_hand() -> None:
    square = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 2.0], [4.0, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(robust.centerpoint(square), torch.tensor([2.0, 1.0], dtype=torch.float64))
    # Of three points every half-plane must hold one: the triangle, whose largest disc is centred at its incentre.
    triangle = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
    torch.testing.assert_close(robust.centerpoint(triangle), torch.tensor([1.0, 1.0], dtype=torch.float64))


def test_beyond_the_plane_by_hand() -> None:
    # The last point lies within the tetrahedron of the others: it is their Radon point.
    tetrahedron = torch.tensor([[0.0, 0, 0], [4, 0, 0], [0, 4, 0], [0, 0, 4], [1, 1, 1]], dtype=torch.float64)
    torch.testing.assert_close(robust.centerpoint(tetrahedron), tetrahedron[4])
    # The segment from (0, 0, −1) to (0, 0, 3) meets the triangle at the origin.
    meeting = torch.tensor([[2.0, 0, 0], [-1, 1, 0], [-1, -1, 0], [0, 0, -1], [0, 0, 3]], dtype=torch.float64)
    torch.testing.assert_close(robust.centerpoint(meeting), torch.zeros(3, dtype=torch.float64), atol=1e-9, rtol=0)


@pytest.mark.parametrize(("n", "d", "depth"), [(5, 3, 2), (24, 3, 2), (25, 3, 4), (36, 4, 4), (12, 10, 2), (4, 3, 1)])
@pytest.mark.parametrize("size", [1.0, 1e30])
def test_beyond_the_plane_the_promised_depth(n: int, d: int, depth: int, size: float) -> None:
    rng = np.random.default_rng(n)
    points = rng.normal(size=(n, d))
    points[: depth - 1] *= size
    point = robust.centerpoint(points)
    directions = rng.normal(size=(4000, d))
    # Those that the points themselves suggest are the worst.
    directions = np.concatenate((directions, points - point, point - points))
    directions /= np.abs(directions).max(1, keepdims=True)
    ahead = directions @ (points - point).T
    assert int((ahead >= -1e-6).sum(1).min()) >= depth


def test_with_few_vectors_it_is_the_geometric_median() -> None:
    vectors = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(robust.centerpoint(vectors), robust.geometric_median(vectors))


def test_neighbourhoods_do_not_depend_on_each_other() -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(3000, 9, 2, dtype=torch.float64, generator=generator)
    there = torch.rand(3000, 9, generator=generator) < 0.8
    together = robust.centerpoint(points, mask=there)
    for some in (slice(0, 1), slice(7, 60), slice(1000, 3000)):
        torch.testing.assert_close(
            robust.centerpoint(points[some], mask=there[some]), together[some], atol=1e-10, rtol=0
        )


@pytest.mark.parametrize("d", [2, 3])
def test_it_repeats_to_the_bit(d: int) -> None:
    vectors = torch.randn(30, d, generator=torch.Generator().manual_seed(0))
    assert torch.equal(robust.centerpoint(vectors), robust.centerpoint(vectors.clone()))


def test_the_largest_numbers_have_a_centre() -> None:
    largest = torch.finfo(torch.float64).max
    corners = largest * torch.tensor([[1, 1], [-1, 1], [1, -1], [-1, -1]], dtype=torch.float64)
    assert robust.centerpoint(corners).tolist() == [0.0, 0.0]
