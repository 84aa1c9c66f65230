"""Targets that drift and jump: the samples and the exact risk follow them, and the anchored rule does as well."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from varangian import BadInput, rules, simulate
from varangian.core.draws import Draws
from varangian.core.task import at_round
from varangian.studies import target_localization


def optimum(study: target_localization, round: int) -> Tensor:
    exact = study.task(0).exact
    assert exact is not None
    found = at_round(exact, round).optimum  # type: ignore[attr-defined]
    assert isinstance(found, Tensor)
    return found


def test_targets_are_where_they_should_be() -> None:
    still, moving = target_localization(agents=4), target_localization(agents=4, drift=0.5, jump=2.0)
    first = optimum(still, 0)
    torch.testing.assert_close(optimum(moving, 0), first)
    headings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], dtype=torch.float64)
    torch.testing.assert_close(optimum(moving, 10), first + 5 * headings)
    torch.testing.assert_close(optimum(moving, 100), first + 52 * headings)
    torch.testing.assert_close(optimum(moving, 200), first + 100 * headings)


@pytest.mark.parametrize("settings", [{"drift": 0.03}, {"jump": 4.0}, {"drift": 0.01, "jump": 1.0}])
def test_samples_point_at_where_the_target_is_now(settings: dict[str, float]) -> None:
    """Without noise, y = θ*ᵀu in every round; drawn together or one after another."""
    study = target_localization(agents=8, direction_noise=(0, 0), distance_noise=(0, 0), **settings)
    stream, draws = study.task(0).stream, Draws.of(0, 8)
    u, y = stream.samples(draws, 95, 10, torch.float64)
    for i in range(10):
        target = optimum(study, 95 + i)
        torch.testing.assert_close((u[i] * target).sum(-1), y[i])
        alone = stream.samples(draws, 95 + i, 1, torch.float64)
        torch.testing.assert_close(alone[0][0], u[i])
        torch.testing.assert_close(alone[1][0], y[i])


def test_the_regret_is_that_of_the_round() -> None:
    """An agent that never learns has the regret of standing still, which grows as its target moves away."""
    study = target_localization(agents=4, drift=0.1, step_size=1e-9)
    result = simulate(study, rule=rules.alone(), rounds=30)
    exact = study.task(0).exact
    assert exact is not None
    start = torch.zeros(4, 2, dtype=torch.float64)
    for round in (1, 10, 30):
        expected = at_round(exact, round)(start)["regret"]
        torch.testing.assert_close(
            torch.tensor(result["regret"].sel(round=round).values[0]).double(), expected, rtol=1e-3, atol=1e-3
        )


@pytest.mark.parametrize("settings", [{"drift": 0.005}, {"jump": 1.0}])
def test_the_anchored_rule_follows(settings: dict[str, float]) -> None:
    result = simulate(target_localization(agents=40, **settings), rule=rules.anchored(), rounds=240, seeds=2)
    regret, alone = (result[name].isel(round=slice(40, None)).mean() for name in ("regret", "alone_regret"))
    assert float(regret) < float(alone)


@pytest.mark.parametrize("settings", [{"drift": -1.0}, {"jump": math.nan}])
def test_what_makes_no_sense_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(BadInput, match="must be 0 or a positive"):
        target_localization(**settings)
