"""The stream of target localization: what a sample is, and how it is stored."""

from __future__ import annotations

import pytest
import torch

from varangian.core.draws import Draws
from varangian.studies import target_localization


@pytest.mark.parametrize("rounds", [1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_samples_are_the_equation_and_stored_column_by_column(rounds: int, dtype: torch.dtype) -> None:
    agents = 7
    stream = target_localization(agents=agents).task(0).stream
    draws = Draws.of(3, agents)
    u, y = stream.samples(draws, 2, rounds, dtype)
    assert u.stride() == (2 * agents, 1, agents) and y.is_contiguous()
    noise = draws.normal_rounds("measurement", 2, rounds, 3, dtype).double()
    direction = stream.direction + noise[..., :2] * stream.direction_noise.sqrt()[:, None]  # type: ignore[attr-defined]
    distance = (direction * stream.target).sum(2) + noise[..., 2] * stream.distance_noise.sqrt()  # type: ignore[attr-defined]
    assert u.dtype == y.dtype == dtype
    assert torch.allclose(u.double(), direction, atol=1e-5)
    assert torch.allclose(y.double(), distance, atol=1e-4)
