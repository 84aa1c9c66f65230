"""Cases side by side are what each case is alone, for every attack that may share a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from varangian import attacks, rules, simulate, studies
from varangian.attacks.base import AnyAttack
from varangian.engine.side_by_side import Case, can_share, cases_at_once, simulate_cases

STUDY = studies.target_localization(agents=32, rounds=12)  # 2 × 32 rows: torch adds all of them in the same order


def all_attacks() -> list[AnyAttack]:
    made = [getattr(attacks, name) for name in attacks.__all__]
    return [one() for one in made if isinstance(one, type) and hasattr(one, "send") and one is not attacks.Attack]


SHARING = [attack for attack in all_attacks() if can_share(attack)]


def alone(rule: Any, case: Case) -> xr.Dataset:
    return simulate(STUDY, rule=rule, attack=case.attack, byzantine=case.byzantine, seeds=2)


def test_most_attacks_share_a_run_and_those_that_know_more_do_not() -> None:
    names = {type(attack).__name__ for attack in SHARING}
    assert {"uniform", "dissensus", "mimic", "silent", "crash", "not_finite"} <= names
    assert not names & {"best_response", "strongest", "blind_direction", "null_space", "label_flip", "backdoor"}


@pytest.mark.parametrize("rule", [rules.loss_based(), rules.median(), rules.anchored()], ids=str)
def test_every_attack_beside_all_others_is_what_it_is_alone(rule: Any) -> None:
    cases = [Case(attacks.silent(), 0), *(Case(attack, 4) for attack in SHARING), Case(attacks.uniform(), (0, 15))]
    for case, found in zip(cases, simulate_cases(STUDY, rule, cases, seeds=2), strict=True):
        wanted = alone(rule, case)
        assert found.attrs.items() >= {name: wanted.attrs[name] for name in ("rule", "attack", "byzantine")}.items()
        # Byzantine agents do not listen, so the weights that they would give mean nothing.
        listening = ~wanted["byzantine_agent"]
        for name in wanted.data_vars:
            values = [one[name].where(listening) if "agent" in one[name].dims else one[name] for one in (found, wanted)]
            if name != "seconds":
                xr.testing.assert_equal(*values)
        for seed in (0, 1):
            assert torch.equal(found.models_of(seed)[3]["theta"], wanted.models_of(seed)[3]["theta"])


def test_two_faced_and_public_messages_may_share_a_run() -> None:
    cases = [Case(attacks.uniform(), 3), Case(attacks.dissensus(), 3), Case(attacks.crash(at=4), 5)]
    for case, found in zip(cases, simulate_cases(STUDY, rules.average(), cases, seeds=2), strict=True):
        np.testing.assert_array_equal(found["regret"], alone(rules.average(), case)["regret"])


def test_large_networks_and_short_runs_are_alone() -> None:
    assert cases_at_once(studies.target_localization(agents=30_000), seeds=5) == 1
    assert cases_at_once(studies.target_localization(), seeds=64) == 1
    assert cases_at_once(studies.target_localization(rounds=99), seeds=1) == 1
