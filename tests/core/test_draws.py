"""A draw depends on (seed, purpose, round, agent, column) and on nothing else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from varangian.core.draws import Draws, PairDraws, prefetched

torch.set_num_threads(1)
quickly = settings(max_examples=60, deadline=None)
seeds = st.one_of(st.integers(0, 50), st.integers(0, 2**63 - 1))
rounds = st.one_of(st.integers(0, 20), st.integers(0, 2**30))
KINDS = ("uniform", "normal")
BOTH = [torch.float32, torch.float64]


def drawn(draws: Draws, kind: str, round: int, width: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return getattr(draws, kind)("noise", round, width, dtype)


@quickly
@given(seeds, rounds, st.sampled_from(KINDS), st.integers(1, 6), st.sampled_from(BOTH))
def test_a_draw_does_not_change_with_who_else_is_there(
    seed: int, round: int, kind: str, width: int, dtype: torch.dtype
) -> None:
    few, many = Draws.of(seed, 3), Draws.of(seed, 40)
    assert torch.equal(drawn(few, kind, round, width, dtype), drawn(many, kind, round, width, dtype)[:3])
    order = torch.tensor([17, 2, 30, 2])
    assert torch.equal(
        drawn(many.take(order), kind, round, width, dtype), drawn(many, kind, round, width, dtype)[order]
    )


@quickly
@given(st.lists(seeds, min_size=1, max_size=4), rounds, st.sampled_from(KINDS), st.integers(1, 5))
def test_a_draw_does_not_change_with_seeds_that_share_a_run(
    several: list[int], round: int, kind: str, width: int
) -> None:
    parts = [Draws.of(seed, 4) for seed in several]
    apart = torch.cat([drawn(part, kind, round, width) for part in parts])
    assert torch.equal(drawn(Draws.join(parts), kind, round, width), apart)


@quickly
@given(seeds, rounds, st.integers(1, 9), st.integers(1, 5), st.sampled_from(BOTH))
def test_a_draw_does_not_change_with_the_block_it_is_drawn_in(
    seed: int, start: int, count: int, width: int, dtype: torch.dtype
) -> None:
    draws = Draws.of(seed, 3)
    for block, single in ((draws.uniform_rounds, draws.uniform), (draws.normal_rounds, draws.normal)):
        together = block("noise", start, count, width, dtype)
        assert together.shape == (count, 3, width)
        apart = torch.stack([single("noise", start + i, width, dtype) for i in range(count)])
        assert torch.equal(together, apart)


def test_a_draw_does_not_change_with_what_was_drawn_before() -> None:
    fresh, used = Draws.of(7, 5), Draws.of(7, 5)
    torch.manual_seed(3)
    for round in (9, 1, 5):
        used.normal("other", round, 3), used.uniform("noise", round, 2), used.normal("noise", 4, 2)
    torch.rand(10)
    for kind in KINDS:
        assert torch.equal(drawn(fresh, kind, 4, 2), drawn(used, kind, 4, 2))


def test_drawing_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    Draws.of(0, 5).normal("noise", 0, 3)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("kind", KINDS)
def test_every_address_gives_another_number(kind: str) -> None:
    numbers = [
        getattr(Draws.of(seed, 20), kind)(purpose, round, 4, torch.float64)
        for seed in range(5)
        for purpose in ("noise", "noisf", "", "skip")
        for round in range(20)
    ]
    values = torch.cat(numbers).flatten()
    assert len(values.unique()) == len(values)


def test_neighbouring_addresses_do_not_resemble_each_other() -> None:
    """Numbers along every axis are uncorrelated with the next, to five standard errors."""
    block = torch.stack([Draws.of(seed, 40).normal_rounds("noise", 0, 50, 6, torch.float64) for seed in range(8)])
    for dim in range(4):
        size = block.shape[dim]
        product = block.narrow(dim, 0, size - 1) * block.narrow(dim, 1, size - 1)
        assert abs(float(product.mean())) < 5 / product.numel() ** 0.5
    other = torch.stack([Draws.of(seed, 40).normal_rounds("skip", 0, 50, 6, torch.float64) for seed in range(8)])
    assert abs(float((block * other).mean())) < 5 / block.numel() ** 0.5


@pytest.mark.parametrize("dtype", BOTH)
def test_uniform_draws_are_uniform(dtype: torch.dtype) -> None:
    values = Draws.of(3, 200).uniform_rounds("noise", 0, 100, 10, dtype)
    assert values.dtype == dtype
    assert float(values.min()) >= 0
    assert float(values.max()) < 1
    n = values.numel()
    for power in (1, 2, 3, 4):
        error = float(values.double().pow(power).mean()) - 1 / (power + 1)
        assert abs(error) < 5 / n**0.5
    counts = torch.histc(values.double(), 50, 0, 1)
    assert float(((counts - n / 50).square() / (n / 50)).sum()) < 49 + 5 * (2 * 49) ** 0.5


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("width", [1, 5, 10])
def test_normal_draws_are_normal(dtype: torch.dtype, width: int) -> None:
    values = Draws.of(3, 200).normal_rounds("noise", 0, 1000 // width, width, dtype)
    assert values.dtype == dtype
    assert bool(values.isfinite().all())
    flat, n = values.double().flatten(), values.numel()
    for power, moment, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float(flat.pow(power).mean()) - moment) < 5 * (spread / n) ** 0.5
    assert abs(float((flat.abs() < 1).double().mean()) - 0.682689) < 5 * 0.5 / n**0.5
    if width > 1:  # two numbers come from one word, but must be independent
        product = values[..., 0].double() * values[..., 1].double()
        assert abs(float(product.mean())) < 5 / product.numel() ** 0.5


def test_float32_draws_are_float64_draws_with_fewer_digits() -> None:
    draws = Draws.of(1, 50)
    for kind in KINDS:
        assert torch.allclose(
            drawn(draws, kind, 3, 4, torch.float32).double(), drawn(draws, kind, 3, 4), rtol=1e-4, atol=1e-5
        )


@quickly
@given(st.integers(1, 100), st.lists(st.integers(0, 300), min_size=1, max_size=12))
def test_drawing_ahead_serves_any_order_and_asks_whole_blocks(size: int, asked: list[int]) -> None:
    calls: list[tuple[int, int]] = []

    def draw(start: int, count: int) -> list[int]:
        calls.append((start, count))
        return [10 * round for round in range(start, start + count)]

    one = prefetched(draw, rounds=size)
    assert [one(round) for round in asked] == [10 * round for round in asked]
    assert all(start % count == 0 and count <= size and count <= max(16, start) for start, count in calls)


def test_drawing_ahead_draws_each_block_once() -> None:
    calls: list[int] = []
    one = prefetched(lambda start, count: calls.append(start) or list(range(start, start + count)), rounds=8)
    for round in range(24):
        one(round)
    assert calls == [0, 8, 16]


def test_a_short_run_draws_few_rounds_and_a_long_one_ever_more_at_a_time() -> None:
    calls: list[tuple[int, int]] = []
    one = prefetched(lambda start, count: calls.append((start, count)) or list(range(start, start + count)), rounds=64)
    for round in range(200):
        one(round)
    assert calls == [(0, 16), (16, 16), (32, 32), (64, 64), (128, 64), (192, 64)]


@quickly
@given(seeds, rounds, st.sampled_from(BOTH))
def test_a_pairs_draw_depends_on_the_two_and_nothing_else(seed: int, round: int, dtype: torch.dtype) -> None:
    receivers, senders = torch.tensor([3, 0, 5]), torch.tensor([[3, 1, 4, 2], [0, 5, 4, 3], [5, 0, 1, 2]])
    drawn = PairDraws(Draws.of(seed, 6), receivers, senders).uniform("order", round, dtype)
    assert drawn.dtype == dtype and float(drawn.min()) >= 0 and float(drawn.max()) < 1
    # Two networks side by side, other rows and other slots: the same pair has the same number.
    rows = torch.tensor([5, 3, 1, 0, 2, 4])
    place = rows.argsort()
    joined = Draws.join([Draws.of(seed ^ 1, 6), Draws.of(seed, 6).take(rows)])
    again = PairDraws(joined, place[receivers[1:]] + 6, place[senders[1:].flip(1)] + 6).uniform("order", round, dtype)
    assert torch.equal(again, drawn[1:].flip(1))


def test_pairs_rounds_purposes_and_directions_differ() -> None:
    everyone = torch.arange(40)
    pairs = PairDraws(Draws.of(0, 40), everyone, everyone.expand(40, 40))
    one, later, other = (pairs.uniform(*which) for which in (("a", 0), ("a", 1), ("b", 0)))
    for numbers in (later, other, one.T):
        off_diagonal = ~torch.eye(40, dtype=torch.bool)
        assert abs(float(torch.corrcoef(torch.stack((one[off_diagonal], numbers[off_diagonal])))[0, 1])) < 0.08
    assert abs(float(one.mean()) - 0.5) < 0.02 and len(one.unique()) == 1600
