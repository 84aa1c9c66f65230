"""Sweeps and tournaments on a Ray cluster: the same numbers, whatever dies, and folders that can be left."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import xarray as xr
from small_plans import small
from tournaments import values_of, without_pictures

import varangian
from varangian import BadInput, RayCluster, rules
from varangian.engine.callbacks import Callback
from varangian.engine.cluster.task_pool import LOOK, in_tasks
from varangian.engine.part_file import load_part, save_part
from varangian.engine.process_pool import Lost
from varangian.experiments import sweep
from varangian.experiments.cells import Cell, cells
from varangian.experiments.config import Plan
from varangian.experiments.tournament.entries import Contest, enter
from varangian.experiments.tournament.run import compete
from varangian.report.tournament import compete_into

pytest.importorskip("ray", reason="needs Ray")
torch.set_num_threads(1)
no_picture = pytest.fixture(without_pictures)

HERE = RayCluster()


@dataclass
class Watching:
    """Notes what a watcher hears, and may do something when it hears how far cells are."""

    heard: list[str]
    at: Any = None

    def begin(self, cell: Cell) -> Sequence[Callback]:
        self.heard.append(f"begin {cell}")
        return []

    def follow(self, running: Mapping[Cell, int]) -> None:
        if self.at is not None:
            self.at(running)

    def finish(self, cell: Cell, result: xr.Dataset) -> None:
        self.heard.append(f"finish {cell}")


def untimed(found: xr.Dataset) -> xr.Dataset:
    return found.drop_vars("seconds")


# --------------------------------------------------------------------------------------------- the same numbers


@pytest.mark.usefixtures("cluster")
def test_a_sweep_on_ray_is_the_sweep_here(tmp_path: Path) -> None:
    plan = small(attacks=["uniform", "silent"])
    here, rounds, watching = sweep.sweep(plan, None), list[int](), Watching([])
    there = sweep.sweep(plan, tmp_path, advance=rounds.append, watchers=[watching], engine=HERE)
    xr.testing.assert_identical(untimed(there), untimed(here))
    assert all(there[name].dtype == here[name].dtype for name in here.variables)
    assert sum(rounds) == len(cells(plan)) * plan.study.rounds * plan.seeds
    assert sorted(watching.heard) == sorted(f"{what} {cell}" for what in ("begin", "finish") for cell in cells(plan))
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == sorted({f"{cell.key}.result" for cell in cells(plan)}), "each once, and no checkpoint"


@pytest.mark.usefixtures("cluster")
def test_what_was_begun_here_goes_on_there_and_nothing_finished_is_run_again(tmp_path: Path) -> None:
    plan = small()
    whole = sweep.sweep(plan, tmp_path)
    first, *others = (tmp_path / f"{cell.key}.result" for cell in cells(plan))
    save_part(load_part(first).assign(seconds=("seed", [1234.5, 1234.5])), first)
    for other in others:
        other.unlink()
    found = sweep.sweep(plan, tmp_path, resume=True, engine=HERE)
    assert found["seconds"][0].values.tolist() == [1234.5, 1234.5], "as it was found"
    xr.testing.assert_identical(untimed(found), untimed(whole))
    again = sweep.sweep(plan, tmp_path, resume=True)
    xr.testing.assert_identical(again, found)


@pytest.mark.usefixtures("cluster", "no_picture")
def test_a_tournament_on_ray_is_the_tournament_here(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class stubborn:
        """A rule of one's own, which no other process can import."""

        broken: bool = False

        def init(self, table: Any) -> Any:
            return rules.alone().init(table)

        def combine(self, inbox: Any, state: Any) -> Any:
            if self.broken:
                raise ZeroDivisionError("oh")
            return rules.alone().combine(inbox, state)

    def contest(*own: Any) -> Contest:
        asked: dict[str, Any] = {"byzantine": [3], "seeds": 2, "rounds": 20, "settings": {"agents": 10}}
        return enter(
            "target-localization", rules=["average", *own], attacks=["uniform", "pulling:point=1/2/3"], **asked
        )

    rounds: list[int] = []
    entered = contest(stubborn(), stubborn(broken=True))
    there = compete_into(entered, tmp_path / "there", advance=rounds.append, engine=HERE)
    assert repr(values_of(there)) == repr(values_of(compete(entered)))  # nan is not itself
    assert sum(rounds) == len(entered.cells) * 20 * 2
    problems = {outcome.problem.partition(":")[0] for outcome in there.outcomes}
    assert problems == {"", "not applicable", "failed"}
    some: dict[str, Any] = {"attacks": ["silent"], "byzantine": [3], "seeds": 1, "settings": {"agents": 10}}
    asked = varangian.tournament("target-localization", rules=["average"], rounds=9, engine=HERE, **some)
    assert values_of(asked) == values_of(
        varangian.tournament("target-localization", rules=["average"], rounds=9, **some)
    )


# ------------------------------------------------------------------------------------------------ what may die


@pytest.mark.usefixtures("cluster")
def test_a_cell_whose_process_is_killed_is_run_again(tmp_path: Path) -> None:
    """Once, in the middle of the cell and after its progress has been seen."""
    seen, killed = tmp_path / "seen", tmp_path / "killed"

    @dataclass(frozen=True)
    class killed_once:
        def init(self, table: Any) -> Any:
            return rules.loss_based().init(table)

        def combine(self, inbox: Any, state: Any) -> Any:
            if inbox.round == 5 and not killed.exists():
                time.sleep(LOOK)  # progress is not written more often than that
            if inbox.round == 10 and not killed.exists():
                while not seen.exists():
                    time.sleep(0.05)
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return rules.loss_based().combine(inbox, state)

    @dataclass(frozen=True)
    class deadly(Plan):
        def rule(self, name: str) -> Any:
            return killed_once()

    usual = small(rules=["loss-based"], byzantine=[3])
    plan = deadly(**{name: getattr(usual, name) for name in usual.__dataclass_fields__})
    far: list[int] = []

    def look(running: Mapping[Cell, int]) -> None:
        far.extend(running.values())
        if any(running.values()):
            seen.touch()

    watching, rounds = Watching([], look), list[int]()
    found = sweep.sweep(plan, None, watchers=[watching], advance=rounds.append, engine=HERE)
    assert killed.exists()
    assert 0 < max(far) < 40, "in the middle of the cell"
    assert watching.heard == [f"begin {cells(plan)[0]}"] * 2 + [f"finish {cells(plan)[0]}"]
    assert sum(rounds) == 40
    xr.testing.assert_identical(untimed(found), untimed(sweep.sweep(usual, None)))


@pytest.mark.usefixtures("cluster")
def test_a_piece_of_a_killed_process_is_tried_once_more(tmp_path: Path) -> None:
    once = f"test -e {tmp_path}/trace || {{ touch {tmp_path}/trace; kill -9 $PPID; }}"
    pieces, begun = [once, "kill -9 $PPID", "true"], list[str]()
    found = dict(in_tasks(partial(subprocess.call, shell=True), pieces, HERE, begun.append))
    assert found == {once: 0, "kill -9 $PPID": Lost(None), "true": 0}
    assert sorted(begun) == sorted([once, once, "kill -9 $PPID", "kill -9 $PPID", "true"])
    assert "died 2 times" in str(Lost(None))


@pytest.mark.usefixtures("cluster")
def test_whoever_stops_asking_ends_what_is_running(tmp_path: Path) -> None:
    def write(number: int) -> int:
        for _ in range(600 if number else 1):  # in short sleeps, between which an interrupt is heard
            (tmp_path / f"{number}").write_text(str(time.time()))
            time.sleep(0.05)
        return number

    with closing(in_tasks(write, [0, 1, 2, 3], HERE)) as finishing:
        assert next(finishing) == (0, 0)
        while not all((tmp_path / f"{number}").exists() for number in (1, 2)):  # both cores are at work
            time.sleep(0.05)
    last = {path.name: path.read_text() for path in tmp_path.iterdir()}
    time.sleep(0.5)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == last


@pytest.mark.usefixtures("cluster")
def test_a_cell_that_cannot_be_computed_ends_the_sweep_with_one_line(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class faulty(Plan):
        def rule(self, name: str) -> Any:
            if name == "average":
                raise BadInput("an average of\nnothing")
            return super().rule(name)

    usual = small(rules=["alone", "loss-based", "average"], byzantine=[0])
    plan = faulty(**{name: getattr(usual, name) for name in usual.__dataclass_fields__})
    with pytest.raises(BadInput, match=r"^average, 0 Byzantine: an average of nothing$"):
        sweep.sweep(plan, tmp_path, engine=HERE)
    finished = {path.name for path in tmp_path.glob("*.result")}
    assert finished <= {f"{cell.key}.result" for cell in cells(plan)[:2]}
    found = sweep.sweep(usual, tmp_path, resume=True, engine=HERE)
    xr.testing.assert_identical(untimed(found), untimed(sweep.sweep(usual, None)))


@pytest.mark.usefixtures("cluster")
def test_what_a_machine_cannot_import_and_what_fails_there_is_one_line() -> None:
    class Elsewhere:
        def __reduce__(self) -> Any:
            return __import__, ("a_module_of_this_machine_only",)

        def __call__(self, piece: int) -> int:
            return piece

    with pytest.raises(BadInput, match=r"^3: a machine of the cluster lacks something .*install it there too$"):
        list(in_tasks(Elsewhere(), [3], HERE))
    with pytest.raises(BadInput, match=r"^3: failed: ZeroDivisionError: .* by zero$"):
        list(in_tasks(lambda piece: piece // 0, [3], HERE))
    with pytest.raises(BadInput, match="cannot be sent to other processes"):
        list(in_tasks(partial(lambda lock, piece: piece, threading.Lock()), [3], HERE))
