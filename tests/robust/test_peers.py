"""Robust functions against those of ByzFL, where it is installed; where definitions differ, that they do."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import robust_peers
import torch
from torch import Tensor

from varangian import robust


@pytest.fixture(scope="module")
def byzfl() -> ModuleType:
    try:
        return robust_peers.byzfl()
    except ModuleNotFoundError:
        pytest.skip("ByzFL is not installed")


Same = Callable[[ModuleType, int], Callable[[Any], Any]]

SAME: dict[str, tuple[Same, Callable[[Any, int], Any]]] = {
    "mean": (lambda fl, f: fl.Average(), lambda x, f: robust.mean(x)),
    "median": (lambda fl, f: fl.Median(), lambda x, f: robust.median(x)),
    "trimmed_mean": (lambda fl, f: fl.TrMean(f), robust.trimmed_mean),
    "mean_around_median": (lambda fl, f: fl.Meamed(f), robust.mean_around_median),
    "monna": (lambda fl, f: fl.MoNNA(f), robust.monna),
    "minimum_diameter_average": (lambda fl, f: fl.MDA(f), robust.minimum_diameter_average),
    "nearest_neighbour_mixing": (lambda fl, f: fl.NNM(f), robust.nearest_neighbour_mixing),
    "centred_clipping": (
        lambda fl, f: fl.CenteredClipping(L=3, tau=4.0),
        lambda x, f: robust.centred_clipping(x, 4.0, x[0] * 0, iterations=3),
    ),
    # Theirs takes a fixed number of steps from zero and an absolute smoothing; with enough and little it is the same.
    "geometric_median": (lambda fl, f: fl.GeometricMedian(nu=1e-5, T=300), lambda x, f: robust.geometric_median(x)),
}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize(("n", "f"), [(5, 1), (10, 2), (11, 5), (12, 0)])
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_where_definitions_agree_so_do_results(byzfl: ModuleType, name: str, n: int, f: int, kind: str) -> None:
    theirs, ours = SAME[name]
    vectors: Any = torch.randn(n, 40, generator=torch.Generator().manual_seed(n)) * 2 + 1
    if kind == "numpy":
        vectors = vectors.double().numpy()
    expected = theirs(byzfl, f)(vectors.copy() if kind == "numpy" else vectors.clone())
    np.testing.assert_allclose(np.asarray(ours(vectors, f)), np.asarray(expected), atol=1e-5)


def krum_of(vectors: Tensor, f: int, more: int, m: int) -> Tensor:
    """The m lowest sums of squared distances to the n − f − 2 + more nearest others."""
    n = len(vectors)
    nearest = torch.cdist(vectors, vectors).square().sort(1).values[:, 1 : n - f - 1 + more]
    return vectors[nearest.sum(1).argsort()[:m]].mean(0)


@pytest.mark.parametrize(("n", "f"), [(7, 1), (10, 2), (13, 5)])
def test_krum_is_that_of_the_paper_and_theirs_counts_one_neighbour_more(byzfl: ModuleType, n: int, f: int) -> None:
    vectors = torch.randn(n, 6, generator=torch.Generator().manual_seed(n), dtype=torch.float32)
    torch.testing.assert_close(robust.krum(vectors, f), krum_of(vectors, f, 0, 1))
    torch.testing.assert_close(robust.multi_krum(vectors, f), krum_of(vectors, f, 0, n - f))
    torch.testing.assert_close(byzfl.Krum(f)(vectors), krum_of(vectors, f, 1, 1))
    torch.testing.assert_close(byzfl.MultiKrum(f)(vectors), krum_of(vectors, f, 1, n - f))


def test_one_neighbour_more_can_choose_another_vector(byzfl: ModuleType) -> None:
    vectors = torch.tensor([0.0, 1.0, 2.0, 4.0, 5.0])[:, None]
    # To two nearest others: 5, 2, 5, 5, 10. To three: 21, 11, 9, 14, 26.
    assert robust.krum(vectors, 1).item() == 1
    assert byzfl.Krum(1)(vectors).item() == 2


def test_byzpy_takes_the_lower_of_two_middle_values() -> None:
    try:
        theirs = robust_peers.byzpy("aggregators.coordinate_wise").CoordinateWiseMedian()
    except ModuleNotFoundError:
        pytest.skip("ByzPy is not installed")
    vectors = torch.tensor([1.0, 2.0, 3.0, 10.0])[:, None]
    assert theirs.aggregate(list(vectors)).item() == 2
    assert robust.median(vectors).item() == 2.5
