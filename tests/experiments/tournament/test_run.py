"""Tournaments: the same numbers as a run, and names as one would type them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from tournaments import ATTACKS, RULES, first_tournament, recorded_calls, room, small, values_of

import varangian
from varangian import BadInput, attacks, rules
from varangian.core.spelling import name_of
from varangian.experiments import sweep
from varangian.experiments.cells import Cell
from varangian.experiments.config import plan_for
from varangian.experiments.spec import catalogue, parted
from varangian.experiments.summary import write_summary
from varangian.experiments.tournament.entries import enter
from varangian.experiments.tournament.run import compete, play
from varangian.experiments.tournament.standings import Standings

torch.set_num_threads(1)

calls = pytest.fixture(recorded_calls)
standings = pytest.fixture(scope="module")(first_tournament)


def test_values_are_those_of_a_run(standings: tuple[Path, Standings], tmp_path: Path) -> None:
    about: dict[str, Any] = {"seeds": 2, "rounds": 30, "settings": {"agents": 12}}
    plan = plan_for("target-localization", rules=("alone", *RULES), attacks=ATTACKS, byzantine=[0, 3], **about)
    rows = write_summary(sweep.sweep(plan, None), tmp_path / "summary.csv")
    checked = 0
    for outcome in standings[1].outcomes:
        same = [row for row in rows if (row["rule"], row["byzantine"]) == (outcome.rule, outcome.byzantine)]
        alone = [row for row in rows if (row["rule"], row["byzantine"]) == ("alone", outcome.byzantine)]
        for attack in (outcome.attack,) if outcome.attack else ATTACKS:
            own = [row for row in same if row["attack"] == attack]
            assert outcome.values == tuple(row["regret_mean"] for row in own)
            assert outcome.worst == pytest.approx(np.mean([row["regret_worst"] for row in own]), rel=1e-12)
            assert outcome.alone == tuple(row["regret_mean"] for row in alone if row["attack"] == attack)
            checked += 1
    assert checked == len(rows) / 2


def test_no_attack_reaches_who_does_not_listen() -> None:
    plan = plan_for("target-localization", settings={"agents": 10}, rounds=6)
    usual = varangian.simulate(plan.study, rule=rules.alone(), byzantine=3)
    normal = ~usual["byzantine_agent"].values[0]
    for name in catalogue(attacks):
        try:
            attacked = varangian.simulate(plan.study, rule=rules.alone(), attack=plan.attack(name), byzantine=3)
        except BadInput:
            continue
        for metric in ("loss", "regret", "msd"):
            np.testing.assert_array_equal(attacked[metric].values[..., normal], usual[metric].values[..., normal])


def test_only_the_end_is_recorded(calls: list[xr.Dataset]) -> None:
    for rounds, first in ((30, 25), (9, 9), (1, 1)):
        play(small(rounds=rounds), Cell("average", "silent", 3))
        assert calls[-1]["round"].values.tolist() == list(range(first, rounds + 1))


def test_studies_with_epochs_are_measured_by_their_own_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_epochs(study: Any, **settings: Any) -> xr.Dataset:
        data = {
            "accuracy": (("seed", "epoch", "agent"), np.array([[[0.2] * 3, [0.5, 0.7, 0.9]]] * 2)),
            "byzantine_agent": (("seed", "agent"), np.array([[False, False, True]] * 2)),
            "seconds": ("seed", np.ones(2)),
        }
        return xr.Dataset(data, {"seed": [0, 1], "round": [30], "epoch": [1, 2], "agent": range(3)})

    monkeypatch.setattr(room, "simulate", of_epochs)
    found = compete(small(rules=["average"], byzantine=[3]))
    assert found.metric == "accuracy" and found.scale.in_points
    assert found.outcomes[1].values == pytest.approx((0.6, 0.6))
    assert found.outcomes[1].worst == pytest.approx(0.5)


def test_no_cooperation_is_run_once_for_each_number_of_byzantine_agents(calls: list[xr.Dataset]) -> None:
    contest = small(rules=["alone", "average"], byzantine=[0, 2, 3])
    cells = contest.cells
    assert [cell for cell in cells if cell.rule == "alone"] == [Cell("alone", "", count) for count in (0, 2, 3)]
    assert [cell for cell in cells if not cell.byzantine] == [Cell("alone", "", 0), Cell("average", "", 0)]
    compete(contest)
    assert len(calls) == len(cells) == 3 + 1 + 2 * 3


def test_all_is_all_there_is() -> None:
    contest = enter("target-localization")
    assert contest.plan.rules == ("alone", *(name for name in sorted(catalogue(rules)) if name != "alone"))
    assert contest.plan.attacks == tuple(sorted(catalogue(attacks)))
    assert contest.plan.byzantine == contest.plan.study.byzantine
    assert small(rules=["loss-based:keep=all", "all"]).plan.rules[:2] == ("alone", "loss-based:keep=all")


TEXTS = (
    "alone",
    "loss-based:keep=all",
    "loss-based:smoothing=0.1,keep=all",
    "sleeper:until=5,then=uniform:low=1,high=2",
)


@given(st.lists(st.sampled_from(TEXTS), max_size=5), st.integers(0, 5))
def test_commas_part_names_and_not_parameters(names: list[str], cut: int) -> None:
    assert parted([",".join(names[:cut]), " , ".join(names[cut:])]) == names


def test_a_value_is_called_what_one_would_type() -> None:
    plan = plan_for("target-localization")
    for name in catalogue(attacks):
        assert name_of(plan.attack(name), plan.attack) == name
    for value in (
        attacks.uniform(),
        attacks.pulling(point=(1.0, 2.0)),
        attacks.sleeper(until=7, then=attacks.gaussian(std=2.0)),
    ):
        assert plan.attack(name_of(value, plan.attack)) == value
    for value in (rules.loss_based(keep="all", smoothing=0.5), rules.distance_based(p=1.0)):
        assert plan.rule(name_of(value, plan.rule)) == value


def test_a_class_of_ones_own_has_a_name_of_its_own() -> None:
    @dataclass(frozen=True)
    class average(rules.loss_based):
        pass

    with pytest.raises(BadInput, match="average is the name of a built-in class"):
        small(rules=[average()])


def test_from_python_values_may_meet() -> None:
    study = varangian.studies.target_localization(agents=12)
    mine = rules.loss_based(keep="all")
    found = varangian.tournament(
        study, rules=[mine], attacks=[attacks.silent()], byzantine=[[1, 2, 3]], seeds=2, rounds=30
    )
    same = compete(small(rules=["loss-based:keep=all"], attacks=["silent"], byzantine=[(1, 2, 3)]))
    assert values_of(found) == values_of(same)
    with pytest.raises(BadInput, match="leave settings out"):
        varangian.tournament(study, settings={"agents": 3})
