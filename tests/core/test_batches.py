"""Batches are planned for many rounds at a time. They must be those of single rounds."""

from __future__ import annotations

import pytest
import torch

from varangian.core.batches import Batches, Pool
from varangian.core.draws import Draws


@pytest.mark.parametrize(
    ("counts", "batch", "epoch"),
    [
        ([20, 20], 10, "longest"),
        ([7, 3, 5], 2, "longest"),
        ([7, 3, 5], 2, "shortest"),
        ([3, 1], 2, 50),
        ([2**17], 3, 9),
    ],
)
def test_batches_are_the_places_of_their_rounds(counts: list[int], batch: int, epoch: str | int) -> None:
    items = torch.arange(float(sum(counts)))[:, None]
    members = list(torch.arange(sum(counts)).split(counts))
    batches = Batches.of(Pool.of(items, items, members), batch, epoch)  # type: ignore[arg-type]
    draws = Draws.of(3, len(counts))
    rounds = [*range(2 * batches.rounds_per_pass + 3)][:120]
    for round in [*reversed(rounds), 1000]:
        (x,) = {tuple(part.flatten().tolist()) for part in batches.samples(draws, round, 1, torch.float32)}
        expected = batches.pool.members.gather(1, batches.places(draws, round, 0, batch))
        assert list(x) == expected.flatten().tolist()


def test_planning_ahead_holds_little() -> None:
    # An epoch of a million rounds must not be planned as a whole.
    items = torch.arange(6.0)[:, None]
    batches = Batches.of(Pool.of(items, items, [torch.arange(3), torch.arange(3, 6)]), 2, 10**6)
    assert batches.planned * batches.agents * batches.batch <= 2**17
    x, _ = batches.samples(Draws.of(0, 2), 10**6 - 1, 2, torch.float32)
    assert x.shape == (2, 2, 2, 1)
