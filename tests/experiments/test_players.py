"""Cells that other processes play: the same bits, the same errors, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import xarray as xr
from commands import assert_same_bits, varangian_

import varangian as vg
from varangian.core.errors import RunFailed
from varangian.core.scene import Scene
from varangian.engine.process_pool import Workers
from varangian.experiments import players, sweep
from varangian.experiments.cells import Cell
from varangian.experiments.config import Plan, plan_for
from varangian.experiments.groups import Group, groups_of
from varangian.studies.own_task import hash_of

ASKED = ("target-localization", "--set", "agents=12", "--rule", "average,loss-based", "--byzantine", "3")


def small(**changed: Any) -> Plan:
    asked: dict[str, Any] = {"rules": ["alone", "average", "loss-based"], "byzantine": [0, 3], "seeds": 2}
    return plan_for("target-localization", **(asked | {"rounds": 150, "settings": {"agents": 12}} | changed))


def untimed(metrics: xr.Dataset) -> xr.Dataset:
    return metrics.drop_vars("seconds")


class Following:
    """A watcher that writes down what it is told."""

    def __init__(self) -> None:
        self.begun, self.finished = list[Cell](), list[Cell]()
        self.most = 0

    def begin(self, cell: Cell) -> list[Any]:
        self.begun.append(cell)
        return []

    def follow(self, running: Any) -> None:
        self.most = max(self.most, len(running))
        assert all(0 <= rounds <= 300 for rounds in running.values())

    def finish(self, cell: Cell, result: xr.Dataset) -> None:
        self.finished.append(cell)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Group]:
    """Other processes start at once. The groups that they are given."""
    monkeypatch.setattr(players, "PATIENCE", 0.0)
    monkeypatch.setattr(players, "WORTH", 0.0)
    monkeypatch.setattr(players, "LOOK", 0.01)
    groups, give = list[Group](), Workers[Group, Any].give

    def written(self: Workers[Group, Any], piece: Group, tries: int = 1) -> None:
        groups.append(piece)
        give(self, piece, tries)

    monkeypatch.setattr(Workers, "give", written)
    return groups


def test_two_processes_find_the_bits_of_one(given: list[Group], tmp_path: Path) -> None:
    alone, watcher, rounds = sweep.sweep(small(), None), Following(), list[int]()
    found = sweep.sweep(small(), tmp_path, jobs=2, watchers=[watcher], advance=rounds.append)
    xr.testing.assert_identical(untimed(found), untimed(alone))
    assert given and watcher.most > 1, "no other process has played"
    assert sorted(map(str, watcher.begun)) == sorted(map(str, watcher.finished))
    assert len(watcher.begun) == 6 and sum(rounds) == 6 * 2 * 150
    # All cells are in the folder, and no checkpoint.
    assert len(list(tmp_path.glob("*.result"))) == 6 and len(list(tmp_path.iterdir())) == 6
    again = sweep.sweep(small(), tmp_path, resume=True, jobs=2)
    xr.testing.assert_identical(untimed(again), untimed(alone))


def test_a_short_sweep_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Workers, "give", lambda *given: pytest.fail("a process was started"))
    sweep.sweep(small(rounds=5), None, jobs=4)


def test_a_killed_process_costs_time_only(given: list[Group], monkeypatch: pytest.MonkeyPatch) -> None:
    killed = list[int]()

    class Killing(Following):
        def follow(self, running: Any) -> None:
            for worker in [] if killed else [one for pool in pools for one in pool._busy]:
                killed.append(worker.process.pid or 0)
                os.kill(killed[-1], signal.SIGKILL)

    pools, enter = list[Workers[Any, Any]](), players.Players.__enter__

    def entered(self: players.Players) -> players.Players:
        pools.append(self._others)
        return enter(self)

    monkeypatch.setattr(players.Players, "__enter__", entered)
    found = sweep.sweep(small(), None, jobs=2, watchers=[Killing()])
    assert killed and len(given) > len(set(given)), "the group of the killed process was not given out again"
    xr.testing.assert_identical(untimed(found), untimed(sweep.sweep(small(), None)))


def test_what_cannot_be_sent_is_played_here(given: list[Group]) -> None:
    data = [(torch.randn(12, 3), torch.randint(0, 2, (12,))) for _ in range(4)]
    net, loss = torch.nn.Linear(3, 2), torch.nn.functional.cross_entropy
    sent = vg.Task.supervised(net, loss, data, batch=4, step_size=0.1)
    kept = vg.Task.supervised(net, lambda x, y: loss(x, y), data, batch=4, step_size=0.1)
    asked: dict[str, Any] = {"rules": ["alone", "average", "loss-based"], "rounds": 60}
    alone = vg.compare(sent, **asked)
    xr.testing.assert_identical(untimed(vg.compare(sent, jobs=2, **asked).metrics), untimed(alone.metrics))
    assert given, "no other process has played"
    with pytest.warns(UserWarning, match="this process plays all cells: .* cannot be sent"):
        found = vg.compare(kept, jobs=2, **asked)
    assert float(found["loss"].sum()) == pytest.approx(float(alone["loss"].sum()), rel=1e-4)


def test_an_interrupt_while_a_result_arrives_loses_nothing(
    given: list[Group], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, received = list[int](), Connection._recv  # type: ignore[attr-defined]

    def interrupted(self: Any, size: int, *rest: Any) -> Any:
        if size > 10_000 and not sent:
            sent.append(size)
            os.kill(os.getpid(), signal.SIGINT)
        return received(self, size, *rest)

    monkeypatch.setattr(Connection, "_recv", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep.sweep(small(), tmp_path, jobs=2)
    assert sent, "no result has arrived"
    elsewhere = {cell.key for group in given for cell in group.cells}
    assert elsewhere & {path.stem for path in tmp_path.glob("*.result")}, "a finished cell is lost"
    whole = sweep.sweep(small(), tmp_path, resume=True)
    xr.testing.assert_identical(untimed(whole), untimed(sweep.sweep(small(), None)))


def test_a_study_that_makes_other_data_elsewhere_is_not_played_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    plan = small(rules=["average"], byzantine=[3])
    (group,), data = groups_of(plan), hash_of(plan.study.scene(0))
    told = list[int]()
    assert players.Player(plan, None, False, 1, "other")(group, told.append) is None and not told
    results = players.Player(plan, None, False, 1, data)(group, told.append)
    assert results is not None and len(results) == 1 and told


BROKEN = """
from dataclasses import dataclass
from varangian.rules import Combined

@dataclass(frozen=True)
class broken:
    '''Fails in round 20.'''

    def init(self, table):
        return ()

    def combine(self, inbox, state):
        if inbox.round == 20:
            raise RuntimeError('out of ideas')
        return Combined(inbox.own, None, state)
"""


def test_an_error_elsewhere_is_told_as_an_error_here(given: list[Group], tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    plan = small(rules=["alone", "average", f"{tmp_path}/broken.py"], byzantine=[3])
    with pytest.raises(RunFailed, match=r"failed in round 21: .*out of ideas"):
        sweep.sweep(plan, tmp_path / "cells", jobs=2)
    assert any("broken" in str(group) for group in given), "the rule has not been tried elsewhere"
    assert len(list((tmp_path / "cells").glob("*.result"))) == 2, "finished cells are lost"


SOON = """
from pathlib import Path
from varangian.cli import main
from varangian.experiments import players

players.PATIENCE = players.WORTH = 0.0
told = players.Players._told

def first(self, group, rounds):
    Path({sign!r}).touch()
    told(self, group, rounds)

players.Players._told = first
main()
"""
"""The command line, which starts another process at once, and makes a file when that one tells of its first rounds."""


@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupt_leaves_nobody_and_goes_on_to_the_same_bits(
    kill: signal.Signals, tmp_path: Path, no_figures: None
) -> None:
    asked = ("run", *ASKED, "--rounds", "2500", "--compile", "off", "--jobs", "2", "--out", str(tmp_path / "run"))
    script = SOON.format(sign=str(tmp_path / "sign"))
    running = subprocess.Popen(
        [sys.executable, "-c", script, *asked], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 300
    while not (tmp_path / "sign").exists() and running.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    others = children(running.pid)
    assert others, "no other process has played"
    os.kill(running.pid, kill)
    _, said = running.communicate(timeout=300)
    assert running.returncode == (130 if kill != signal.SIGKILL else -9), said
    assert "Traceback" not in said
    until = time.monotonic() + 60
    while any(map(is_alive, others)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(map(is_alive, others))
    if kill != signal.SIGKILL:
        assert [path for path in (tmp_path / "run").rglob("*.checkpoint") if "loss-based" in str(path)], said
    again = ("run", str(tmp_path / "run" / "config.toml"), "--resume", "--out", str(tmp_path / "run"), "-q")
    assert varangian_(*again).status == 0
    assert varangian_(*asked[:-1], str(tmp_path / "whole"), "-q", "--jobs", "1").status == 0
    assert_same_bits(tmp_path / "run", tmp_path / "whole")


def children(parent: int) -> list[int]:
    found = list[int]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            about, line = path.read_text().rpartition(")")[2].split(), (path.parent / "cmdline").read_text()
        except OSError:
            continue
        if int(about[1]) == parent and "spawn_main" in line:
            found.append(int(path.parent.name))
    return found


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("changed", "jobs"),
    [
        ({}, 3),
        ({"rules": ["alone", "average"]}, 2),
        ({"rules": ["average"]}, 1),
        ({"threads": 1}, 1),
        ({"memory": "4GiB"}, 1),
    ],
)
def test_one_process_per_core_where_cells_use_one_core(
    changed: dict[str, Any], jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(7)))
    monkeypatch.setattr(players, "machine_memory", lambda: 2**40)
    plan = small(**changed)
    assert players.usual_jobs(plan, plan.study.scene(0)) == jobs


def test_large_networks_gpus_and_little_memory_mean_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(7)))
    scene: Scene = small(settings={"agents": 10}).study.scene(0)
    with monkeypatch.context() as patch:
        patch.setattr(players, "shares_operations", lambda task, networks: True)
        assert players.usual_jobs(small(), scene) == 1
    with monkeypatch.context() as patch:
        patch.setattr(players, "chosen_device", lambda name, scenes: torch.device("cuda"))
        assert players.usual_jobs(small(), scene) == 1
    with monkeypatch.context() as patch:
        patch.setattr(players, "machine_memory", lambda: 2**32)
        assert players.usual_jobs(small(), scene) == 2


def test_jobs_are_refused_where_they_have_no_meaning(tmp_path: Path) -> None:
    for words, why in (
        (("--jobs", "0"), "--jobs must be at least 1, but is 0"),
        (("--jobs", "2", "--engine", "ray"), "--jobs counts processes on this machine; leave it out with --engine ray"),
        (("--jobs", "2", "--tensorboard", "--out", str(tmp_path / "run")), "--tensorboard works only in one process"),
    ):
        said = varangian_("run", *ASKED, *words)
        assert said.status == 2 and why in said.err
    assert not (tmp_path / "run").exists()
