"""Robust functions: cases computed by hand, what goes in and comes out, and errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from robust_table import RULES
from torch import Tensor

from varangian import robust
from varangian.core.errors import BadInput
from varangian.robust.network import sort_columns, sort_rows


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


LINE = column(0, 1, 2, 4, 5)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: robust.mean(column(1, 2, 9)), 4),
        (lambda: robust.median(column(7, 1, 3)), 3),
        (lambda: robust.median(column(7, 1, 3, 4)), 3.5),
        (lambda: robust.median(column(7)), 7),
        (lambda: robust.trimmed_mean(column(9, 1, 3, 5, -90), 1), 3),
        (lambda: robust.trimmed_mean(column(9, 1, 3, 5, -90), 2), 3),
        (lambda: robust.trimmed_mean(column(9, 1, 3, 7), 0), 5),
        # The median is 2, from which 5 is farthest.
        (lambda: robust.mean_around_median(LINE, 1), 7 / 4),
        (lambda: robust.mean_around_median(column(0, 1, 2, 8, 9), 2), 1),
        # The median is 3, and 1 and 5 are equally far from it: the smaller is kept.
        (lambda: robust.mean_around_median(column(1, 2, 3, 4, 5), 1), 2.5),
        # Scores over the two nearest others: 5, 2, 5, 5, 10.
        (lambda: robust.krum(LINE, 1), 1),
        # The lowest four scores leave out 5.
        (lambda: robust.multi_krum(LINE, 1), 7 / 4),
        (lambda: robust.multi_krum(LINE, 1, m=1), 1),
        (lambda: robust.monna(LINE, 1), 7 / 4),
        (lambda: robust.monna(LINE, 2, own=4), 11 / 3),
        # Of all threes, {0, 1, 2} alone has diameter 2.
        (lambda: robust.minimum_diameter_average(LINE, 2), 1),
        (lambda: robust.minimum_diameter_average(LINE, 0), 12 / 5),
        (lambda: robust.centerpoint(column(7, 1, 3)), 3),
        # The differences from 0 are clipped to 0, 1, 2, 2, 2.
        (lambda: robust.self_centred_clipping(LINE, 0, 2.0), 7 / 5),
        (lambda: robust.self_centred_clipping(LINE, 1, 2.0, weights=[0, 0.5, 0, 0, 0.25]), 1.5),
        (lambda: robust.centred_clipping(LINE, 2.0, torch.zeros(1)), 7 / 5),
        # From 1.4: −1.4, −0.4, 0.6, 2, 2.
        (lambda: robust.centred_clipping(LINE, 2.0, torch.zeros(1), iterations=2), 1.4 + 2.8 / 5),
        # From the median, 2: −1, −1, 0, 1, 1.
        (lambda: robust.centred_clipping(LINE, 1.0), 2),
        (lambda: robust.centred_clipping(LINE, 10.0), 12 / 5),
    ],
)
def test_a_case_by_hand(call: Callable[[], Tensor], expected: float) -> None:
    torch.testing.assert_close(call(), torch.tensor([expected], dtype=torch.float64), atol=1e-12, rtol=1e-12)


def test_krum_by_hand_in_the_plane() -> None:
    # The two nearest others of each of the first four: 1.04 + 1.44, 1 + 1.44, 1 + 1, 1 + 1.04.
    square = torch.tensor([[0.0, 1.2], [0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [9.0, 9.0]])
    weights = robust.krum_weights(square, 1)
    assert weights.tolist() == [0, 0, 1, 0, 0]
    assert robust.krum(square, 1).tolist() == [1, 0]


@pytest.mark.parametrize("n", [5, 40])
def test_ties_go_to_the_lower_number(n: int) -> None:
    alike = torch.ones(n, 2)
    for weights in (robust.multi_krum_weights(alike, 1, m=3), robust.monna_weights(alike, 2)):
        taken = int(weights.count_nonzero())
        assert bool((weights[:taken] > 0).all())
    assert robust.krum_weights(alike, 1)[0] == 1
    assert bool((robust.minimum_diameter_average_weights(alike, 2)[:-2] > 0).all())


def test_the_geometric_median_of_a_triangle_is_its_fermat_point() -> None:
    # Seen from the Fermat point of a triangle the corners are 120° apart.
    corners = torch.tensor([[0.0, 0.0], [4.0, 0.0], [1.0, 3.0]], dtype=torch.float64)
    point = robust.geometric_median(corners, tolerance=1e-12, iterations=1000)
    towards = torch.nn.functional.normalize(corners - point, dim=1)
    torch.testing.assert_close(towards.sum(0), torch.zeros(2, dtype=torch.float64), atol=1e-6, rtol=0)


def test_the_geometric_median_of_a_majority_in_one_place_is_that_place() -> None:
    vectors = torch.tensor([[5.0, 5.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [-90.0, 3.0]])
    torch.testing.assert_close(robust.geometric_median(vectors), torch.tensor([1.0, 2.0]), atol=1e-4, rtol=0)


def test_mixing_by_hand() -> None:
    mixed = robust.nearest_neighbour_mixing(LINE, 3)
    torch.testing.assert_close(mixed, column(0.5, 0.5, 1.5, 4.5, 4.5))
    weights = robust.nearest_neighbour_mixing_weights(LINE, 3)
    torch.testing.assert_close(weights @ LINE, mixed)
    assert torch.equal(weights.count_nonzero(1), torch.full((5,), 2))


def test_clipping_by_hand() -> None:
    vectors = torch.tensor([[4.0, 5.0], [1.3, 1.4], [1.0, 1.0]])
    clipped = robust.clip(vectors, torch.ones(2), 1.0)
    torch.testing.assert_close(clipped, torch.tensor([[1.6, 1.8], [1.3, 1.4], [1.0, 1.0]]))
    assert torch.equal(clipped[1:], vectors[1:])
    assert torch.equal(robust.clip(vectors, torch.ones(2), 0.0), torch.ones(3, 2))
    assert torch.equal(robust.clip(vectors, torch.ones(2), math.inf), vectors)


def test_distances_by_hand() -> None:
    vectors = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
    mask = torch.tensor([True, True, False])
    inf = math.inf
    assert robust.squared_distances(vectors, mask).tolist() == [[0, 25, inf], [25, 0, inf], [inf, inf, inf]]
    assert robust.squared_distances_to(vectors, torch.tensor([0.0, 2.0]), mask).tolist() == [4, 13, inf]


def test_a_radius_for_each_neighbourhood() -> None:
    vectors = column(0, 10).expand(2, 2, 1)
    radius = torch.tensor([1.0, 4.0], dtype=torch.float64)
    assert robust.self_centred_clipping(vectors, 0, radius).flatten().tolist() == [0.5, 2]
    zero = torch.zeros(1, dtype=torch.float64)
    assert robust.centred_clipping(vectors, radius, zero).flatten().tolist() == [0.5, 2]
    assert robust.clip(vectors, zero, radius).flatten().tolist() == [0, 1, 0, 4]


@pytest.mark.parametrize("n", [*range(1, 20), 31, 32, 33, 64, 65, 100])
@pytest.mark.parametrize("columns", [3, 9000])
def test_columns_are_sorted(n: int, columns: int) -> None:
    generator = torch.Generator().manual_seed(n)
    vectors = torch.randint(0, 50, (1, n, columns), generator=generator).float()
    expected = vectors[0].sort(0).values

    def all_ranks(rows: object, _: slice) -> Tensor:
        assert isinstance(rows, list)
        assert all(bool((low <= high).all()) for low, high in pairwise(rows))
        return torch.stack(rows).sum(0)

    torch.testing.assert_close(
        sort_columns(vectors, tuple(range(n)), all_ranks, torch.float32)[0], expected.sum(0), rtol=0, atol=0
    )
    for ranks in [(n // 2,), (0,), (n - 1,), (n // 3, n // 2), tuple(range(n // 4, n))]:
        got = sort_columns(vectors, ranks, lambda rows, _: torch.stack(list(rows)).sum(0), torch.float32)
        assert torch.equal(got[0], expected[list(ranks)].sum(0))
        rows = sort_rows((n, columns), lambda table: table.copy_(vectors[0]), ranks, vectors)
        assert torch.equal(torch.stack(rows), expected[list(ranks)])


@pytest.mark.parametrize("n", [7, 8, 9, 30])
@pytest.mark.parametrize("d", [1, 600, 4096, 4097])
def test_a_plain_stack_is_sorted_one_way_or_another(n: int, d: int) -> None:
    """Few columns are sorted by NumPy, many by a network; nan is nobody either way."""
    vectors = torch.randn(n, d, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    ranked = vectors.sort(0).values
    middle = (ranked[(n - 1) // 2] + ranked[n // 2]) / 2
    torch.testing.assert_close(robust.median(vectors), middle)
    torch.testing.assert_close(robust.trimmed_mean(vectors, 2), ranked[2:-2].mean(0))
    nearest = (vectors - middle).abs().argsort(0)[: n - 1]
    torch.testing.assert_close(robust.mean_around_median(vectors, 1), vectors.gather(0, nearest).mean(0))
    with_nan = torch.cat((vectors, torch.full((1, d), torch.nan, dtype=torch.float64)))
    assert torch.equal(robust.median(with_nan), robust.median(vectors))
    largest = torch.full((n, d), torch.finfo(torch.float32).max)
    assert bool(robust.trimmed_mean(largest, 2).isfinite().all())


@pytest.mark.parametrize(("neighbourhoods", "d"), [(1, 40_001), (3, 20_000), (700, 3), (5000, 9), (2, 1)])
def test_blocks_cover_everything_once(neighbourhoods: int, d: int) -> None:
    vectors = torch.randn(neighbourhoods, 3, d, generator=torch.Generator().manual_seed(0))
    got = robust.median(vectors, mask=torch.ones(neighbourhoods, 3, dtype=torch.bool))
    assert torch.equal(got, vectors.median(1).values)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_type_comes_back_as_it_went_in(name: str, dtype: torch.dtype) -> None:
    vectors = torch.randn(9, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    before = vectors.clone()
    result = RULES[name](vectors, 2)
    assert result.dtype == dtype
    assert result.shape == (30,)
    assert torch.equal(vectors, before)
    rough = 4 * torch.finfo(dtype).eps + 1e-6
    torch.testing.assert_close(result.double(), RULES[name](vectors.double(), 2), atol=rough, rtol=rough)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_numpy_in_numpy_out(name: str, dtype: type) -> None:
    vectors = np.random.default_rng(2).normal(size=(9, 30)).astype(dtype)
    result = RULES[name](vectors, 2)
    assert isinstance(result, np.ndarray)
    assert result.dtype == dtype
    assert np.array_equal(result, RULES[name](torch.from_numpy(vectors), 2).numpy())


def test_numpy_views_that_torch_cannot_hold() -> None:
    vectors = np.arange(12.0).reshape(4, 3)
    frozen = vectors.copy()
    frozen.flags.writeable = False
    assert np.array_equal(robust.median(frozen), [4.5, 5.5, 6.5])
    assert np.array_equal(robust.median(vectors[::-1, ::-1]), [6.5, 5.5, 4.5])
    mask = np.array([True, False, False, False])
    assert np.array_equal(robust.median(vectors, mask=mask), vectors[0])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x: robust.trimmed_mean(x, 3), "trimmed_mean needs 2f < n, but n is 5 and f is 3"),
        (lambda x: robust.mean_around_median(x, 3), "mean_around_median needs 2f < n, but n is 5 and f is 3"),
        (lambda x: robust.krum(x, 2), "krum needs 2f + 2 < n, but n is 5 and f is 2"),
        (lambda x: robust.multi_krum(x, 2), "multi_krum needs 2f + 2 < n, but n is 5 and f is 2"),
        (lambda x: robust.monna(x, 3), "monna needs 2f < n, but n is 5 and f is 3"),
        (
            lambda x: robust.nearest_neighbour_mixing(x, 5),
            "nearest_neighbour_mixing needs f < n, but n is 5 and f is 5",
        ),
        (lambda x: robust.trimmed_mean(x[None], 3), "trimmed_mean needs 2f < n, but n is 5 and f is 3"),
        (lambda x: robust.trimmed_mean(x, -1), "trimmed_mean needs f to be a whole number of 0 or more, not -1"),
        (lambda x: robust.trimmed_mean(x, 1.0), "trimmed_mean needs f to be a whole number of 0 or more, not 1.0"),
        (
            lambda x: robust.krum(x, torch.tensor([1, 1])),
            "krum needs f to be a whole number, or a tensor () of them, not (2,)",
        ),
        (
            lambda x: robust.multi_krum(x, 1, m=6),
            "multi_krum averages m of n vectors, 1 ≤ m ≤ n, but n is 5 and m is 6",
        ),
        (lambda x: robust.monna(x, 1, own=5), "own must be the number of a vector, from 0 to 4, but is 5"),
        (lambda x: robust.clip(x, torch.zeros(3), 1.0), "must have the shape (2,) of one vector, but has (3,)"),
        (lambda x: robust.centred_clipping(x, -1.0), "a radius must not be negative, but is -1.0"),
        (
            lambda x: robust.centred_clipping(x, 1.0, iterations=0),
            "centred_clipping needs at least one iteration, not 0",
        ),
        (lambda x: robust.self_centred_clipping(x, 0, torch.ones(2)), "a radius is one number, or one for each"),
        (
            lambda x: robust.self_centred_clipping(x, 0, 1.0, [1.0]),
            "there must be one weight for each of 5 vectors, but their shape is (1,)",
        ),
        (lambda x: robust.geometric_median(x, iterations=0), "geometric_median needs iterations ≥ 1"),
        (
            lambda x: robust.median(x[0]),
            "vectors must be a stack (n, d) with at least one number, but their shape is (2,)",
        ),
        (
            lambda x: robust.median(x[:0]),
            "vectors must be a stack (n, d) with at least one number, but their shape is (0, 2)",
        ),
        (
            lambda x: robust.median(x.int()),
            "vectors must be a torch or NumPy array of floating-point numbers, not torch.int32",
        ),
        (
            lambda x: robust.median(x.int().numpy()),
            "vectors must be a torch or NumPy array of floating-point numbers, not int32",
        ),
        (
            lambda x: robust.median(list(x)),
            "vectors must be a torch or NumPy array of floating-point numbers, not list",
        ),
        (lambda x: robust.median(x, mask=torch.ones(4, dtype=torch.bool)), "it must be (5,) of torch.bool, not (4,)"),
        (lambda x: robust.median(x, mask=torch.ones(5)), "it must be (5,) of torch.bool, not (5,) of torch.float32"),
    ],
)
def test_bad_input_says_what_is_wrong_in_one_line(call: Callable[[Tensor], object], says: str) -> None:
    with pytest.raises(BadInput) as error:
        call(torch.zeros(5, 2))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_too_many_subsets_are_refused_by_their_number() -> None:
    with pytest.raises(BadInput, match="would look at 593775 subsets of 30 vectors, but at most 200000 are allowed"):
        robust.minimum_diameter_average(torch.zeros(30, 2), 6)


def test_krum_inside_other_transformations() -> None:
    vectors, mask = torch.randn(5, 7, 3), torch.ones(5, 7, dtype=torch.bool)
    one_by_one = torch.stack([robust.krum(v, 1, mask=m) for v, m in zip(vectors, mask, strict=True)])
    torch.testing.assert_close(torch.func.vmap(lambda v, m: robust.krum(v, 1, mask=m))(vectors, mask), one_by_one)

    traced = torch.jit.trace(lambda v, m: robust.krum_weights(v, 1, mask=m), (vectors[0], mask[0]), check_trace=False)
    torch.testing.assert_close(traced(vectors[1], mask[1]), robust.krum_weights(vectors[1], 1, mask=mask[1]))
