"""Cells that share a run: which they are, that an interrupt loses nothing, and that an error concerns one cell only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from small_plans import small

from varangian import attacks, simulate
from varangian.core.errors import RunFailed
from varangian.experiments import groups, sweep
from varangian.experiments.cells import Cell, cells
from varangian.experiments.config import Plan
from varangian.experiments.groups import groups_of
from varangian.experiments.tournament.run import compete


def long(**changed: Any) -> Plan:
    return small(**{"rounds": 100, "attacks": ["uniform", "best-response", "silent"], **changed})


def untimed(found: xr.Dataset) -> xr.Dataset:
    return found.drop_vars("seconds")


def test_cells_with_the_same_rule_share_a_run_unless_their_attack_knows_much() -> None:
    plan = long()
    found = groups_of(plan)
    assert sorted(cell.key for group in found for cell in group.cells) == sorted({cell.key for cell in cells(plan)})
    together = [group for group in found if len(group.cells) > 1]
    assert [[str(cell) for cell in group.cells] for group in together] == [
        [f"{rule}, 0 Byzantine", f"{rule}, 3 Byzantine: uniform", f"{rule}, 3 Byzantine: silent"] for rule in plan.rules
    ]
    assert {group.cells[0].attack for group in found if len(group.cells) == 1} == {"best-response"}
    assert len({group.key for group in found}) == len(found)
    assert all(len(group.cells) == 1 for group in groups_of(small())), "a short run"
    assert all(len(group.cells) == 1 for group in groups_of(long(byzantine_listen=True)))


def test_a_sweep_of_groups_is_its_cells_up_to_rounding() -> None:
    plan = long(attacks=["uniform"])
    metrics = sweep.sweep(plan, None)
    for number, cell in enumerate(cells(plan)):
        alone = simulate(
            plan.study,
            rule=plan.rule(cell.rule),
            attack=plan.attack(cell.attack),
            byzantine=cell.byzantine,
            seeds=2,
            dtype="float32",
        )
        np.testing.assert_allclose(metrics["regret"].isel(cell=number), alone["regret"], rtol=1e-3, atol=1e-5)
        np.testing.assert_array_equal(metrics["byzantine_agent"].isel(cell=number), alone["byzantine_agent"])


def test_networks_are_made_once_for_all_runs_of_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = long(attacks=["uniform"])
    expected = sweep.sweep(plan, None)["regret"]
    scenes = groups.shared_scenes(plan, plan.study.scene(0))
    assert len(scenes) == plan.seeds
    assert len(groups.shared_scenes(small(), scenes[0])) == 1, "each cell of a short run makes its own"
    monkeypatch.setattr(type(plan.study), "scene", lambda study, seed: pytest.fail("made again"))
    np.testing.assert_array_equal(sweep.sweep(plan, None, scenes=scenes)["regret"], expected)


@dataclass
class Interrupting:
    """Interrupts the run of a group after some rounds."""

    after: int

    def begin(self, cell: Cell) -> list[Any]:
        return [self] if cell.byzantine else []

    def follow(self, running: object) -> None: ...

    def finish(self, cell: Cell, result: object) -> None: ...

    def start(self, world: Any, state: Any, rounds: int) -> None: ...

    def round(self, world: Any, state: Any, recorder: Any) -> None:
        assert len(world.seeds) == 2 and len(recorder.streaming["loss"][-1]) == 2 * 10 == len(world.is_normal)
        if state.round == self.after:
            raise KeyboardInterrupt

    def end(self, world: Any, state: Any) -> None: ...


def test_an_interrupted_group_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    plan = long(attacks=["uniform"])
    with pytest.raises(KeyboardInterrupt):
        sweep.sweep(plan, tmp_path, watchers=[Interrupting(60)])
    assert [path.name for path in tmp_path.rglob("*.checkpoint")] == ["cases.checkpoint"]
    played: list[int] = []
    resumed = sweep.sweep(plan, tmp_path, resume=True, advance=played.append)
    assert played[0] == 60 * 2 * 2, "not from the start"
    assert sum(played) == len(cells(plan)) * 100 * 2
    xr.testing.assert_identical(untimed(resumed), untimed(sweep.sweep(plan, None)))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{cell.key}.result" for cell in cells(plan))


def test_a_finished_cell_stays_as_it_is_and_the_rest_of_its_group_has_the_same_bits(tmp_path: Path) -> None:
    plan = long(attacks=["uniform"])
    whole = sweep.sweep(plan, tmp_path)
    first, *others = (tmp_path / f"{cell.key}.result" for cell in cells(plan))
    before = first.stat().st_mtime_ns
    for other in others:
        other.unlink()
    xr.testing.assert_identical(untimed(sweep.sweep(plan, tmp_path, resume=True)), untimed(whole))
    assert first.stat().st_mtime_ns == before


@dataclass(frozen=True)
class fails:
    """An attack that stops working after some rounds."""

    def init(self, own: Any) -> tuple[()]:
        return ()

    knows: tuple[()] = ()

    def send(self, view: Any, state: tuple[()]) -> Any:
        if view.round == 50:
            raise RuntimeError("no more")
        return attacks.silent().send(view, state)


def test_an_error_concerns_its_cell_only(tmp_path: Path) -> None:
    plan = long(attacks=["uniform"])
    plan = replace(plan, attacks=("uniform", "mine"), own={"mine": fails()})
    played: list[int] = []
    with pytest.raises(RunFailed, match=r"attack fails\(.*\) failed in round 51"):
        sweep.sweep(plan, tmp_path, advance=played.append)
    first, *_ = groups_of(plan)
    assert [cell.attack for cell in first.cells] == ["uniform", "uniform", "mine"]
    (kept,) = tmp_path.rglob("*.checkpoint")
    assert kept.parent.name == first.cells[-1].key, "of the cell that failed"
    assert sum(played) == 2 * (100 + 100 + 50)


def test_a_tournament_of_groups_is_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    from tournaments import small as contest_of

    contest = contest_of(rounds=100, rules=["average"], attacks=["uniform", "silent"])
    together = compete(contest)
    monkeypatch.setattr("varangian.experiments.groups.cases_at_once", lambda study, seeds, *scene: 1)
    alone = compete(contest)
    assert [outcome.attack for outcome in together.outcomes] == [outcome.attack for outcome in alone.outcomes]
    key: Callable[[Any], tuple[float, ...]] = lambda outcome: outcome.values  # noqa: E731
    np.testing.assert_allclose([*map(key, together.outcomes)], [*map(key, alone.outcomes)], rtol=1e-3)
