"""Rows of one matrix or of another."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from varangian.core.layout import FEW, rows_where
from varangian.core.messages import all_finite, finite_rows


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.sampled_from([1, FEW, FEW + 1, 40]))
def test_rows_are_those_of_where(taken: list[bool], columns: int) -> None:
    take = torch.tensor(taken)[:, None]
    new, old = torch.randn(len(taken), columns), torch.randn(len(taken), columns)
    new[~take[:, 0]] = torch.nan
    before = new.clone()
    assert torch.equal(rows_where(take, new, old), torch.where(take, new, old))
    assert torch.equal(new.nan_to_num(7), before.nan_to_num(7)), "an argument has changed"


def test_rows_have_gradients() -> None:
    new, old = (torch.ones(3, 20, requires_grad=True) for _ in range(2))
    rows_where(torch.tensor([[True], [False], [True]]), new, old).sum().backward()
    assert new.grad is not None and new.grad[:, 0].tolist() == [1, 0, 1]
    assert old.grad is not None and old.grad[:, 0].tolist() == [0, 1, 0]


def test_what_is_traced_holds_for_other_rows_too() -> None:
    new, old = torch.ones(2, 20), torch.zeros(2, 20)
    everyone = torch.ones(2, 1, dtype=torch.bool)

    def kept(take: torch.Tensor, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
        return rows_where(take & finite_rows(new), new, old)

    traced = make_fx(kept, tracing_mode="fake")(everyone, new, old)
    new[1, 3] = torch.inf
    assert torch.equal(traced(everyone, new, old), torch.tensor([[1.0], [0.0]]).expand(2, 20))
    stacked = torch.func.vmap(kept)(everyone[None], new[None], old[None])
    assert torch.equal(stacked[0], torch.tensor([[1.0], [0.0]]).expand(2, 20))


@pytest.mark.parametrize("columns", [FEW, 20])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_one_number_spoils_its_row_only(columns: int, bad: float) -> None:
    rows = torch.ones(3, columns)
    rows[1, 2] = bad
    assert not all_finite(rows)
    assert finite_rows(rows)[:, 0].tolist() == [True, False, True]


def test_numbers_whose_sum_overflows_are_finite() -> None:
    rows = torch.full((3, 20), 3e38)
    assert not all_finite(rows) and finite_rows(rows).all()
    rows[0, :10], rows[1, :10] = -3e38, torch.inf
    assert finite_rows(rows)[:, 0].tolist() == [True, False, True]
