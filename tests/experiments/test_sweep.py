"""Every combination of a plan, in one Dataset and one folder that can be left and taken up again."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import varangian
from varangian import BadInput, rules, studies
from varangian.engine import results
from varangian.experiments import cells as cells_module
from varangian.experiments import sweep
from varangian.experiments.cells import Cell, cells
from varangian.experiments.config import Plan, check, plan_for
from varangian.experiments.summary import headline, summary_rows, write_summary
from varangian.report.table import table

torch.set_num_threads(1)


def small(**changed: Any) -> Plan:
    asked: dict[str, Any] = {
        "rules": ["alone", "loss-based"],
        "attacks": ["uniform", "silent"],
        "byzantine": [0, 3],
        "seeds": 2,
        "rounds": 8,
        "settings": {"agents": 10},
    }
    return plan_for("target-localization", **(asked | changed))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `simulate` was asked for, while it does its work."""
    asked: list[dict[str, Any]] = []
    inner: Callable[..., xr.Dataset] = cells_module.simulate

    def counted(study: Any, **settings: Any) -> xr.Dataset:
        asked.append(settings)
        return inner(study, **settings)

    monkeypatch.setattr(cells_module, "simulate", counted)
    return asked


# ---------------------------------------------------------------------------------------------------------- cells


def test_cells_are_all_combinations_in_the_order_asked_for() -> None:
    found = [(cell.byzantine, cell.attack, cell.rule) for cell in cells(small())]
    asked = [(b, a, r) for b in (0, 3) for a in ("uniform", "silent") for r in ("alone", "loss-based")]
    assert found == asked


def test_a_cell_has_a_file_of_its_own() -> None:
    byzantine: list[Any] = [0, 1, (1,), 0.1, (1, 2), (12,), 12, tuple(range(200))]
    asked = [
        Cell(rule, attack, count)
        for rule in ("alone", "loss-based:keep=all", "loss-based:keep_all", "loss-based:start=1")
        for attack in ("pulling:point=0/0", "pulling:point=0_0")
        for count in byzantine
    ]
    keys = {cell.key for cell in asked if cell.byzantine}
    assert len(keys) == sum(1 for cell in asked if cell.byzantine)
    assert all(len(key) < 200 and "/" not in key and not key.startswith(".") for key in keys)
    without = {cell.key for cell in asked if not cell.byzantine}
    assert len(without) == 4, "without Byzantine agents, only the rule counts"
    assert not without & keys


def test_a_cell_says_what_it_is() -> None:
    assert str(Cell("alone", "uniform", 0)) == "alone, 0 Byzantine"
    assert str(Cell("alone", "uniform", 3)) == "alone, 3 Byzantine: uniform"
    assert str(Cell("alone", "uniform", (3, 5))) == "alone, 3+5 Byzantine: uniform"


# --------------------------------------------------------------------------------------------- the joined Dataset


@pytest.fixture(scope="module")
def metrics() -> xr.Dataset:
    return sweep.sweep(small(), None)


def test_all_cells_are_one_dataset(metrics: xr.Dataset) -> None:
    assert dict(metrics.sizes) | {"cell": 8, "seed": 2, "round": 8, "agent": 10, "axis": 2} == dict(metrics.sizes)
    for name in ("loss", "regret", "msd", "byzantine_weight", "kept"):
        assert metrics[name].dims == ("cell", "seed", "round", "agent")
        assert not metrics[name].isnull().any()
    assert metrics["weight"].dims == ("cell", "seed", "snapshot", "agent", "slot")
    assert metrics["byzantine_agent"].dims == ("cell", "seed", "agent")
    assert metrics["byzantine_agent"].dtype == bool
    assert metrics["seconds"].dims == ("cell", "seed")
    about = {"study": "target-localization", "metric": "loss", "by_group": "0"}
    assert metrics.attrs.items() >= about.items()
    assert metrics.attrs.keys() - about.keys() == {"settings", "seeds_change", "version"}


def test_cells_are_labelled_as_asked_for(metrics: xr.Dataset) -> None:
    asked = cells(small())
    assert metrics["rule"].values.tolist() == [cell.rule for cell in asked]
    assert metrics["attack"].values.tolist() == [cell.attack for cell in asked]
    assert metrics["byzantine"].values.tolist() == [cell.byzantine for cell in asked]
    assert metrics["seed"].values.tolist() == [0, 1]
    np.testing.assert_array_equal(
        metrics["byzantine_agent"].sum("agent"), np.repeat([[cell.byzantine] for cell in asked], 2, 1)
    )


def test_what_is_the_same_everywhere_is_there_once(metrics: xr.Dataset) -> None:
    assert metrics["position"].dims == ("seed", "agent", "axis")
    assert metrics["group"].dims == ("seed", "agent")
    assert metrics["sender"].dims == ("seed", "agent", "slot")
    assert metrics["sender"].dtype.kind == "i"


def test_every_cell_is_what_simulate_gives(metrics: xr.Dataset) -> None:
    study = studies.target_localization(agents=10, rounds=8)
    for number, cell in enumerate(cells(small())):
        attack = small().attack(cell.attack)
        alone = varangian.simulate(
            study, rule=small().rule(cell.rule), attack=attack, byzantine=cell.byzantine, seeds=2
        )
        for name in ("loss", "regret", "weight", "byzantine_agent"):
            np.testing.assert_array_equal(metrics[name].isel(cell=number), alone[name])
        np.testing.assert_array_equal(metrics["sender"], alone["sender"])


def test_without_byzantine_agents_a_rule_runs_once(calls: list[dict[str, Any]]) -> None:
    begun, rounds = list[Cell](), list[int]()
    plan = small()
    sweep.sweep(plan, None, begin=begun.append, advance=rounds.append)
    assert len(calls) == 2 + 4
    assert begun == cells(plan)
    assert sum(rounds) == len(begun) * plan.study.rounds * plan.seeds


def test_rules_that_tell_no_weights_may_stand_beside_those_that_do() -> None:
    plan = small(byzantine=[3], attacks=["uniform"])
    study = studies.target_localization(agents=10, rounds=8)
    told = varangian.simulate(study, rule=rules.loss_based(), byzantine=3, seeds=2)
    silent = told.drop_vars(["weight", "sender", "snapshot", "slot", "byzantine_weight", "kept"])
    own = [Cell(rule, "uniform", 3) for rule in plan.rules]
    for parts in ([(own[0], silent), (own[1], told)], [(own[0], told), (own[1], silent)]):
        together = sweep.joined(plan, parts)
        assert together["sender"].dims == ("seed", "agent", "slot")
        assert together["sender"].dtype.kind == "i"
        assert together["byzantine_agent"].dtype == bool
        which = [part is told for _, part in parts].index(True)
        np.testing.assert_array_equal(together["weight"].isel(cell=which), told["weight"])
        assert together["weight"].isel(cell=1 - which).isnull().all()
        rows = list(summary_rows(together))
        assert [math.isnan(row["byzantine_weight"]) for row in rows] == [i // 2 != which for i in range(4)]


# --------------------------------------------------------------------------------------------------- the summary


def made_up(plan: Plan, values: list[list[float]], metric: str = "accuracy") -> xr.Dataset:
    """A result with one metric a round and one an epoch: `values` of one agent, for each cell and seed."""
    parts = []
    for cell, of_seeds in zip(cells(plan), values, strict=True):
        at_epoch = np.array(of_seeds)[:, None, None] * np.ones((1, 2, 3))
        data = {
            "loss": (("seed", "round", "agent"), np.ones((len(of_seeds), 10, 3))),
            "byzantine_weight": (("seed", "round", "agent"), np.zeros((len(of_seeds), 10, 3))),
            "kept": (("seed", "round", "agent"), np.zeros((len(of_seeds), 10, 3))),
            metric: (("seed", "epoch", "agent"), at_epoch),
            "byzantine_agent": (("seed", "agent"), np.zeros((len(of_seeds), 3), dtype=bool)),
            "seconds": ("seed", np.ones(len(of_seeds))),
        }
        coords = {"seed": range(len(of_seeds)), "round": range(1, 11), "epoch": [1, 2], "agent": range(3)}
        parts.append((cell, xr.Dataset(data, coords)))
    return sweep.joined(plan, parts)


def test_columns_about_weights_come_last_whatever_is_measured_when(tmp_path: Path) -> None:
    plan = small(byzantine=[0], attacks=["uniform"], rules=["alone"])
    rows = write_summary(made_up(plan, [[0.5, 0.25]]), tmp_path / "summary.csv")
    with (tmp_path / "summary.csv").open(encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    promised = ["study", "rule", "attack", "byzantine", "seed", "rounds", "seconds"]
    measured = ["loss_mean", "loss_worst", "accuracy_mean", "accuracy_worst", "byzantine_weight", "kept"]
    assert list(read[0]) == promised + measured
    assert [row["accuracy_mean"] for row in read] == ["0.5", "0.25"]
    assert [{name: str(value) for name, value in row.items()} for row in rows] == read


def test_where_groups_are_told_each_has_its_figures(tmp_path: Path) -> None:
    plan = small(byzantine=[0], attacks=["uniform"], rules=["alone"])
    found = made_up(plan, [[1.0, 1.0]])
    found["accuracy"] = found["accuracy"] * xr.DataArray([0.25, 0.75, 0.5], dims="agent")
    found["loss"] = found["loss"] * xr.DataArray([1.0, 3.0, 4.0], dims="agent")
    found["group"] = ("seed", "agent"), np.array([[0, 0, 1], [1, 0, 1]])
    found["byzantine_agent"].loc[{"seed": 1, "agent": 1}] = True
    unasked = write_summary(found, tmp_path / "summary.csv")
    assert not [name for name in unasked[0] if "group" in name], "only where the study is told by group"
    rows = write_summary(found.assign_attrs(by_group="1"), tmp_path / "summary.csv")
    assert [{name: row[name] for name in unasked[0]} for row in rows] == unasked
    with (tmp_path / "summary.csv").open(encoding="utf-8", newline="") as file:
        columns = list(csv.DictReader(file).fieldnames or ())
    added = [f"{m}_group_{g}_{of}" for g in (1, 2) for m in ("loss", "accuracy") for of in ("mean", "worst")]
    promised = [name for name in unasked[0] if name not in results.UNWEIGHED]
    assert columns == [*promised, *added, *results.UNWEIGHED]
    assert [rows[0][name] for name in added] == [2.0, 3.0, 0.5, 0.25, 4.0, 4.0, 0.5, 0.5]
    assert [rows[1][name] for name in added[4:]] == [2.5, 4.0, 0.375, 0.25]
    assert all(math.isnan(rows[1][name]) for name in added[:4]), "its only agent lies"


@pytest.mark.parametrize(("metric", "best"), [("accuracy", 2), ("rmse", 0)])
def test_the_best_of_a_column_is_known_and_the_greatest_or_least(metric: str, best: int) -> None:
    plan = small(byzantine=[0], attacks=["uniform"], rules=["alone", "average", "loss-based"])
    found = made_up(plan, [[0.2, 0.4], [math.nan, math.nan], [0.4, 0.6]], metric)
    rows = list(summary_rows(found))
    heads, lines, marked = table(rows, headline(rows))
    assert heads == ["no attack"]
    assert marked == {(best, 0)}
    assert lines[0] == ["alone", "0.3000 ± 0.1 (0.3000)"]
    assert lines[1] == ["average", "nan (nan)"]


def test_nothing_known_is_nothing_best() -> None:
    plan = small(byzantine=[0], attacks=["uniform"], rules=["alone", "average"])
    rows = list(summary_rows(made_up(plan, [[math.nan] * 2, [math.nan] * 2])))
    assert table(rows, "accuracy")[2] == set()
    rows = list(summary_rows(made_up(plan, [[math.inf] * 2, [1.0] * 2], "rmse")))
    _, lines, marked = table(rows, "rmse")
    assert marked == {(1, 0)}
    assert lines[0] == ["alone", "inf (inf)"]


# ------------------------------------------------------------------------------------------------ leave and go on


class Stop(Exception):
    pass


def test_finished_cells_are_not_run_again(tmp_path: Path, calls: list[dict[str, Any]]) -> None:
    plan = small()
    begun: list[Cell] = []

    def begin(cell: Cell) -> None:
        begun.append(cell)
        if len(begun) == 6:
            raise Stop

    with pytest.raises(Stop):
        sweep.sweep(plan, tmp_path, begin=begin)
    assert len(calls) == 3, "two without Byzantine agents, and one of the four with"
    assert len(list(tmp_path.glob("*.result"))) == 3
    rounds: list[int] = []
    resumed = sweep.sweep(plan, tmp_path, resume=True, advance=rounds.append)
    assert len(calls) == 6
    left = [(settings["rule"], settings["byzantine"]) for settings in calls[3:]]
    assert left == [(plan.rule(cell.rule), 3) for cell in cells(plan)[5:]]
    assert sum(rounds) == len(cells(plan)) * plan.study.rounds * plan.seeds
    whole = sweep.sweep(plan, None)
    xr.testing.assert_identical(resumed.drop_vars("seconds"), whole.drop_vars("seconds"))
    assert all(resumed[name].dtype == whole[name].dtype for name in whole.variables)


def test_without_resume_everything_is_run_again(tmp_path: Path, calls: list[dict[str, Any]]) -> None:
    plan = small(byzantine=[3])
    for _ in range(2):
        sweep.sweep(plan, tmp_path)
    assert len(calls) == 8


def test_checkpoints_of_a_finished_cell_are_gone(tmp_path: Path) -> None:
    plan = small(byzantine=[3])
    sweep.sweep(plan, tmp_path)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == sorted(f"{cell.key}.result" for cell in cells(plan))


def test_a_finished_cell_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    plan = small(byzantine=[3])
    broken = tmp_path / f"{cells(plan)[0].key}.result"
    broken.write_bytes(b"no netCDF")
    with pytest.raises(BadInput, match="is not a result file"):
        sweep.sweep(plan, tmp_path, resume=True)


# ------------------------------------------------------------------------------------- what is checked beforehand


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"byzantine": [11]}, "but is 11; the network has"),
        ({"byzantine": [3, (1, 2, 4)]}, "both 3 agents"),
        ({"byzantine": [0, 0.01]}, "both 0 agents"),
        ({"rules": ["alone", "averag"]}, "did you mean 'average'"),
        ({"attacks": ["silent", "pulling:point=1/2/3"]}, "3 coordinates"),
        ({"rounds": None, "settings": {"agents": 10, "rounds": 0}}, "a run needs at least one round"),
        ({"device": "nowhere"}, "device 'nowhere'"),
        ({"dtype": "int8"}, "dtype 'int8'"),
    ],
)
def test_a_plan_that_cannot_work_is_refused_before_it_runs(changed: dict[str, Any], said: str) -> None:
    check(small())
    with pytest.raises(BadInput, match=said):
        check(small(**changed))


def test_metrics_saved_are_metrics_loaded(metrics: xr.Dataset, tmp_path: Path) -> None:
    results.save(metrics, tmp_path / "metrics.nc")
    loaded = varangian.load(tmp_path / "metrics.nc")
    xr.testing.assert_identical(loaded, metrics)
    assert all(
        loaded[name].dtype == metrics[name].dtype for name in metrics.variables if name not in ("rule", "attack")
    )
