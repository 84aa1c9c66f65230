"""The rules of the paper, by hand. `tests/engine/test_round.py` compares them with loops."""

from __future__ import annotations

import pytest
from inboxes import first_of, one_agent

from varangian import BadInput, rules


@pytest.mark.parametrize("rule", [rules.distance_based, rules.loss_based])
def test_a_first_value_of_phi_counts_as_an_observation(rule: type[rules.distance_based]) -> None:
    """Own 0, neighbours 2 and 4: distances and losses are 0, 4 and 16. From 1, with ν = ½, φ is 0.5, 2.5 and 8.5."""
    inbox = one_agent([0.0], [2.0], [4.0])
    made = rule(start=1.0) if rule is rules.distance_based else rules.loss_based(start=1.0, keep="all")
    weights = first_of(made, inbox)[1]
    inverse = [1 / 0.5, 1 / 2.5, 1 / 8.5]
    assert weights == pytest.approx([value / sum(inverse) for value in inverse])


def test_distances_hardly_count_with_the_numbers_of_the_authors_program() -> None:
    """φ = 0.999 + 0.001 d² is 0.999, 1.003 and 1.099 for distances 0, 2 and 10."""
    weights = first_of(rules.distance_based(start=1.0, smoothing=0.001), one_agent([0.0], [2.0], [10.0]))[1]
    inverse = [1 / 0.999, 1 / 1.003, 1 / 1.099]
    assert weights == pytest.approx([value / sum(inverse) for value in inverse])
    assert first_of(rules.distance_based(smoothing=0.001), one_agent([0.0], [2.0], [10.0]))[1] == pytest.approx(
        [1, 0, 0]
    )


def test_one_step_ahead_goes_uphill() -> None:
    """ℓ = θ², own 1, μ = 0.1: the target is 1 + 0.1 · 2 = 1.2. So a neighbour at 1.4 is as near as one at 1.0."""
    inbox = one_agent([1.0], [1.4], step_size=0.1)
    assert inbox.one_step_ahead()[0].tolist() == pytest.approx([1.2])
    assert first_of(rules.distance_based(target="ahead"), inbox)[1] == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("start", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("rule", [rules.distance_based, rules.loss_based])
def test_a_start_that_makes_no_sense_is_refused(rule: type[rules.loss_based], start: float) -> None:
    with pytest.raises(BadInput, match="φ starts at 0 or a positive number"):
        rule(start=start)
