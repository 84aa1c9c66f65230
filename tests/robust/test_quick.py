"""Robust functions: the quick way through a plain stack on a CPU gives what the careful way gives."""

from __future__ import annotations

import pytest
import torch
from robust_table import RULES
from torch import Tensor

from varangian import robust
from varangian.robust import gram
from varangian.robust.stack import Present
from varangian.robust.weights import lowest


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def carefully(name: str, vectors: Tensor, f: int) -> Tensor:
    """The result for a batch of one, which is never looked at."""
    return RULES[name](vectors[None], f, mask=torch.ones(1, len(vectors), dtype=torch.bool))[0]


@pytest.mark.parametrize("name", sorted(RULES.keys() - {"minimum_diameter_average", "centerpoint"}))
@pytest.mark.parametrize("n", [5, 12, 30, 70])
def test_the_quick_way_is_the_careful_way(name: str, n: int) -> None:
    vectors = draw(n, 50)
    torch.testing.assert_close(RULES[name](vectors, 1), carefully(name, vectors, 1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 9, 11, 12, 13, 16, 17, 18, 28, 32, 33, 34, 45, 66])
@pytest.mark.parametrize("at_once", [2**20, 64])
def test_distances_of_any_number_of_vectors(n: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are of 16 rows and of some columns at a time, and n vectors need not fill them."""
    monkeypatch.setattr(gram, "QUICK_AT_ONCE", at_once)
    vectors = draw(n, 23)
    exact = (vectors.double()[:, None] - vectors.double()).square().sum(-1)
    torch.testing.assert_close(robust.squared_distances(vectors).double(), exact, rtol=1e-5, atol=1e-5)
    to_last = robust.squared_distances_to(vectors, vectors[-1])
    torch.testing.assert_close(to_last.double(), exact[-1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(7,), (3, 7), (40, 12)])
@pytest.mark.parametrize("values", [2, 4, 10**6], ids=["many ties", "some ties", "no ties"])
def test_of_scores_that_tie_the_lower_number_wins(shape: tuple[int, ...], values: int) -> None:
    scores = torch.randint(values, shape, generator=torch.Generator().manual_seed(1)).double()
    for how_many in range(1, shape[-1] + 1):
        first = scores.argsort(dim=-1, stable=True)[..., :how_many]
        expected = torch.zeros_like(scores).scatter_(-1, first, 1 / how_many)
        present = Present(None, shape[-1], 0)
        assert torch.equal(lowest(scores, how_many, present), expected)
        assert torch.equal(lowest(scores, how_many, present, torch.float32), expected.float())


@pytest.mark.parametrize("radius", [0.0, 1e-50, 1e-30, 5.0, 6.0, 1e30, float("inf")])
@pytest.mark.parametrize("far", [0.0, 1e-30, 5.0, 1e14, 1e20, 3e38, float("inf"), float("nan")])
@pytest.mark.parametrize("centre", [0.0, 1.0, 1e20, 3e38, float("nan")])
def test_clipping_at_its_borders(radius: float, far: float, centre: float) -> None:
    """A vector at the centre, one at distance 5 from zero, and one at any distance; also with centres that are no
    vectors."""
    vectors = torch.tensor([[0.0, 0.0], [3.0, 4.0], [far, 0.0]])
    around = torch.tensor([centre, 0.0])
    quick = robust.centred_clipping(vectors, radius, around, iterations=2)
    careful = robust.centred_clipping(vectors[None], radius, around, iterations=2, mask=torch.ones(1, 3) > 0)[0]
    assert bool(quick.isfinite().all())
    # What is left of a far centre is a rounding error.
    rounding = 1e-6 * max(1.0, float(around.nan_to_num().max()))
    torch.testing.assert_close(quick, careful, rtol=1e-5, atol=rounding)


@pytest.mark.parametrize("shape", [(3, 10), (20, 10), (3, 2**15 + 1), (20, 2**15 + 1)])
def test_the_mean_of_few_and_many_short_and_long_vectors(shape: tuple[int, int]) -> None:
    vectors = draw(*shape)
    torch.testing.assert_close(robust.mean(vectors), vectors.double().mean(0).float())
    large = torch.full(shape, 3e38)
    torch.testing.assert_close(robust.mean(large), large[0])
    vectors[1, 5] = torch.nan
    torch.testing.assert_close(robust.mean(vectors), vectors[torch.arange(shape[0]) != 1].mean(0))


def test_input_is_not_changed() -> None:
    for name, rule in RULES.items():
        vectors = draw(9, 30)
        before = vectors.clone()
        result = rule(vectors, 1)
        assert torch.equal(vectors, before), name
        result.zero_()
        assert torch.equal(vectors, before), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_of_two_that_are_nearest_to_each_other_krum_takes_the_first(dtype: torch.dtype) -> None:
    # With n = 3 and f = 0, a score is the distance to the one nearest vector, so two scores are the same number.
    for seed in range(200):
        vectors = torch.randn(3, 33, generator=torch.Generator().manual_seed(seed)).to(dtype)
        apart = (vectors[:, None] - vectors).double().square().sum(-1)
        nearest = (apart + torch.eye(3) * 1e9).flatten().argsort()[:2]
        first = int(min(nearest.min() // 3, nearest.min() % 3))
        assert int(robust.krum_weights(vectors, 0).argmax()) == first
