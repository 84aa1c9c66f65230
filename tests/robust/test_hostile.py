"""Robust functions: vectors that are no vectors, that are too large, and that mean harm."""

from __future__ import annotations

import pytest
import torch
from robust_table import ROBUST, RULES, WEIGHTS
from torch import Tensor

from varangian import robust

N, F = 13, 3
"""Of which F are hostile, and 2F + 2 < N."""


def honest(d: int = 40, dtype: torch.dtype = torch.float32, spread: float = 0.1) -> Tensor:
    noise = torch.randn(N - F, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (1 + spread * noise).to(dtype)


def among(good: Tensor, bad: Tensor, places: tuple[int, ...]) -> Tensor:
    """All good vectors, with copies of a bad one in between."""
    rows = list(good)
    for place in places:
        rows.insert(place, bad)
    return torch.stack(rows)


PLACES = [(4,), (0,), (1, 6, 12), (0, 1, 2)]
"""Where hostile vectors stand: one of them, and F."""


def not_a_vector(kind: str, d: int, dtype: torch.dtype) -> Tensor:
    bad = torch.ones(d, dtype=dtype)
    if kind == "one nan":
        bad[d // 2] = torch.nan
    else:
        bad[:] = {"nan": torch.nan, "inf": torch.inf, "-inf": -torch.inf}[kind]
    return bad


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("places", PLACES, ids=str)
@pytest.mark.parametrize("kind", ["nan", "inf", "-inf", "one nan"])
def test_what_is_no_vector_changes_nothing(name: str, places: tuple[int, ...], kind: str) -> None:
    good = honest()
    vectors = among(good, not_a_vector(kind, 40, torch.float32), places)
    expected = RULES[name](good, F - len(places))
    result = RULES[name](vectors, F)
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)
    everyone = torch.ones(1, len(vectors), dtype=torch.bool)
    torch.testing.assert_close(RULES[name](vectors[None], F, mask=everyone)[0], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("places", PLACES, ids=str)
@pytest.mark.parametrize("value", [1e30, -1e30, 1e38, -1e38, 3.4028234e38, 1e-40, 0.0])
def test_finite_vectors_of_any_size_do_no_harm(name: str, places: tuple[int, ...], value: float) -> None:
    good = honest()
    vectors = among(good, torch.full((40,), value), places)
    if places[0] == 0 and name in ("monna", "self_centred_clipping"):
        vectors = vectors.flip(0)  # These believe vector 0: it is honest by definition.
    masked = RULES[name](vectors[None], F, mask=torch.ones(1, len(vectors), dtype=torch.bool))[0]
    assert bool(masked.isfinite().all())
    # Single honest vectors lie within 0.4 of the honest mean in each coordinate, averages nearer. A neighbourhood is
    # looked at from slot 0, the receiver itself.
    for result in [RULES[name](vectors, F)] + [masked] * (0 not in places):
        assert bool(result.isfinite().all())
        assert float((result - good.mean(0)).abs().max()) < 0.45


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("sign", ["same", "both"])
def test_even_when_all_are_as_large_as_can_be(name: str, dtype: torch.dtype, sign: str) -> None:
    vectors = torch.full((N, 5), torch.finfo(dtype).max, dtype=dtype)
    if sign == "both":
        vectors[::2] *= -1
    for result in (RULES[name](vectors, F), RULES[name](vectors[None], F, mask=torch.ones(1, N, dtype=torch.bool))):
        assert result.dtype == dtype
        assert bool(result.isfinite().all())


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("value", [1e38, 1e30, torch.nan, torch.inf])
def test_weights_never_go_to_what_is_far_or_no_vector(name: str, value: float) -> None:
    vectors = among(honest(), torch.full((40,), value), (3, 5, 7))
    weights = WEIGHTS[name](vectors, F)
    assert float(weights[[3, 5, 7]].max()) < 1e-20
    assert float(weights.sum()) == pytest.approx(1)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_where_nobody_is_present_it_is_vector_0_made_finite(name: str, value: float) -> None:
    vectors = torch.full((2, 7, 3), value)
    vectors[:, 0] = torch.tensor([1.0, torch.nan, -torch.inf])
    expected = torch.tensor([1.0, 0.0, torch.finfo(torch.float32).min])
    assert torch.equal(RULES[name](vectors[0], 2), expected)
    nobody = RULES[name](vectors, 2, mask=torch.zeros(2, 7, dtype=torch.bool))
    assert torch.equal(nobody, expected.expand(2, 3))


@pytest.mark.parametrize("name", RULES)
def test_more_bad_vectors_than_foreseen_still_leave_the_others(name: str) -> None:
    vectors = among(honest(d=3)[:2], torch.full((3,), torch.nan), (0, 1, 1, 1, 1))
    result = RULES[name](vectors, 1)
    assert bool(result.isfinite().all())
    assert float((result - 1).abs().max()) < 0.5


def test_mixing_and_clipping_survive() -> None:
    good = honest()
    for value in (torch.nan, torch.inf, 1e30, 1e38):
        vectors = among(good, torch.full((40,), value), (2, 5, 8))
        everyone = torch.ones(1, N, dtype=torch.bool)
        hostile = torch.zeros(N, dtype=torch.bool)
        hostile[[2, 5, 8]] = True
        for mixed in (
            robust.nearest_neighbour_mixing(vectors, F),
            robust.nearest_neighbour_mixing(vectors[None], F, mask=everyone)[0],
        ):
            assert bool(mixed.isfinite().all())
            torch.testing.assert_close(mixed[~hostile], good.mean(0).expand(N - F, 40))
        for clipped in (
            robust.clip(vectors, good[0], 1.0),
            robust.clip(vectors[None], good[0], 1.0, mask=everyone)[0],
        ):
            assert float((clipped - good[0]).norm(dim=1).max()) < 1 + 1e-5
        near = robust.squared_distances(vectors)
        assert bool((near[hostile][:, ~hostile] > 1e30).all())
        assert not bool(near.isnan().any())
        assert not bool(robust.squared_distances_to(vectors, good[0]).isnan().any())


def attack(kind: str, good: Tensor) -> Tensor:
    mean, spread = good.mean(0), good.std(0)
    return {
        "far": mean + 100,
        "reversed": -10 * mean,
        "huge": torch.full_like(mean, 1e30),
        "hidden": mean + 20 * spread,
    }[kind]


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("kind", ["far", "reversed", "huge", "hidden"])
def test_it_has_an_effect(name: str, kind: str) -> None:
    """Under attack each lies at least three times nearer to the honest mean than the average of all does."""
    good = honest()
    vectors = among(good, attack(kind, good), (3, 6, 9))

    def off(result: Tensor) -> float:
        return float((result - good.mean(0)).double().norm())

    assert 3 * off(RULES[name](vectors, F)) < off(robust.mean(vectors))


@pytest.mark.parametrize("liar", ["none", "reversed", "1e30", "1e4 away"])
@pytest.mark.parametrize("place", [0, 3])
def test_float32_is_accurate_where_vectors_nearly_agree(liar: str, place: int) -> None:
    generator = torch.Generator().manual_seed(3)
    base = torch.randn(20_000, generator=generator)
    vectors = base * (1 + 1e-4 * torch.randn(10, 20_000, generator=generator))
    if liar != "none":
        vectors[place] = {"reversed": -base, "1e30": torch.full_like(base, 1e30), "1e4 away": base + 1e4}[liar]
    sure = vectors.double()
    good = torch.arange(10) != place
    exact = (sure[good][:, None] - sure[good]).square().sum(-1)
    torch.testing.assert_close(robust.squared_distances(vectors)[good][:, good].double(), exact, rtol=1e-4, atol=0)
    if place != 0:  # Slot 0 of a neighbourhood is the receiver itself.
        torch.testing.assert_close(
            robust.squared_distances(vectors[None])[0][good][:, good].double(), exact, rtol=1e-4, atol=0
        )
    true = robust.geometric_median(sure)
    spread = float((sure[good] - true).norm(dim=1).mean())
    assert float((robust.geometric_median(vectors).double() - true).norm()) < 1e-3 * spread
    assert torch.equal(robust.krum_weights(vectors, 2).double(), robust.krum_weights(sure, 2))
    mixing = robust.nearest_neighbour_mixing_weights
    assert torch.equal(mixing(vectors, 2)[good] > 0, mixing(sure, 2)[good] > 0)


@pytest.mark.parametrize("name", [*RULES, "nearest_neighbour_mixing", "squared_distances", "clip"])
@pytest.mark.parametrize("shape", [(2, 9, 2), (9, 3)], ids=["neighbourhoods", "plain"])
def test_nothing_waits_for_an_accelerator(name: str, shape: tuple[int, ...]) -> None:
    """Tensors on the meta device have no numbers: whoever looks at one fails."""
    vectors = torch.empty(shape, device="meta")
    shape, d = shape[:-1], shape[-1]
    mask = torch.empty(shape, dtype=torch.bool, device="meta")
    if name == "squared_distances":
        assert robust.squared_distances(vectors, mask).shape == (*shape, 9)
        assert robust.squared_distances_to(vectors, vectors[..., 0, :], mask).shape == shape
        assert robust.squared_distances(vectors).shape == (*shape, 9)
    elif name == "clip":
        assert robust.clip(vectors, vectors[..., 0, :], 1.0, mask=mask).shape == vectors.shape
    elif name == "nearest_neighbour_mixing":
        assert robust.nearest_neighbour_mixing(vectors, 2, mask=mask).shape == vectors.shape
    else:
        f = torch.empty(shape[:-1], dtype=torch.long, device="meta")
        for result in (RULES[name](vectors, f, mask=mask), RULES[name](vectors, 2)):
            assert result.shape == (*shape[:-1], d)
