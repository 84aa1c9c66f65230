"""Gifts first, and then something else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attack_views import random_view, sent_by

from varangian import BadInput, attacks, rules, simulate, studies
from varangian.attacks.base import knowledge_of
from varangian.attacks.drifting import variance_inflation
from varangian.attacks.trust import trust_then_strike


def test_gifts_are_better_than_the_victims_own_model() -> None:
    """In this view the true risk is the squared distance to zero."""
    view = random_view(0)
    assert view.round == 0
    for (_, victim), gift in sent_by(trust_then_strike(), view).items():
        assert gift.norm() < 0.9 * view.adapted[victim].norm()


@pytest.mark.parametrize(("gifts", "strikes"), [(0, 1), (1, 1), (2, 3)])
def test_gifts_and_strikes_take_turns(gifts: int, strikes: int) -> None:
    attack, expected = trust_then_strike(gifts, strikes, then=attacks.pulling()), attacks.pulling()
    for seed in range(2 * (gifts + strikes)):  # the round of a random view is its seed
        view = random_view(seed)
        struck = all(torch.equal(row, sent_by(expected, view)[edge]) for edge, row in sent_by(attack, view).items())
        assert struck == (seed % (gifts + strikes) >= gifts)


def test_it_knows_what_it_strikes_with_knows() -> None:
    assert knowledge_of(trust_then_strike()) == ("messages", "sample", "truth")
    assert "rule" in knowledge_of(trust_then_strike(then=attacks.best_response()))


def test_a_strike_is_trusted_after_gifts_and_rejected_without() -> None:
    study, strike = studies.target_localization(agents=30), variance_inflation(drift=30.0, swing=0.0)

    def trusted(attack: Any) -> float:
        """The weight of Byzantine neighbours in rounds 64, 69, …, 99, in which both attacks strike."""
        result = simulate(study, rule=rules.loss_based(), attack=attack, byzantine=6, rounds=100, device="cpu")
        weight = result["byzantine_weight"].where(~result["byzantine_agent"])
        return float(weight.isel(round=slice(64, None, 5)).mean())

    assert trusted(trust_then_strike(gifts=4, strikes=1, then=strike)) > 2 * trusted(strike)


def test_bad_parameters() -> None:
    for gifts, strikes in ((-1, 1), (1, 0)):
        with pytest.raises(BadInput, match="gifts ≥ 0 and strikes ≥ 1"):
            trust_then_strike(gifts, strikes)
    with pytest.raises(BadInput, match="changes data"):
        trust_then_strike(then=attacks.label_flip())
