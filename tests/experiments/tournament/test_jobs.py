"""Tournaments in several processes: the same results, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tournaments import first_tournament, room, small, values_of

from varangian import BadInput
from varangian.engine import process_pool
from varangian.engine.process_pool import Lost, in_processes
from varangian.experiments.cells import Cell
from varangian.experiments.folder_state import UNFINISHED
from varangian.experiments.tournament.entries import enter
from varangian.experiments.tournament.log import FILE
from varangian.experiments.tournament.run import compete
from varangian.experiments.tournament.standings import Standings
from varangian.report.tournament import compete_into

torch.set_num_threads(1)

standings = pytest.fixture(scope="module")(first_tournament)


def test_two_jobs_find_what_one_finds(standings: tuple[Path, Standings]) -> None:
    begun, rounds = list[Cell](), list[int]()
    found = compete(small(), jobs=2, begin=begun.append, advance=rounds.append)
    assert values_of(found) == values_of(standings[1])
    assert sorted(map(str, begun)) == sorted(map(str, small().cells))
    assert sum(rounds) == len(begun) * 30 * 2


def test_a_piece_of_a_killed_process_is_tried_once_more(tmp_path: Path) -> None:
    once = f"test -e {tmp_path}/trace || {{ touch {tmp_path}/trace; kill -9 $PPID; }}"
    pieces = [once, "kill -9 $PPID", "true"]
    begun: list[str] = []
    found = dict(in_processes(os.system, pieces, 2, begun.append))
    assert found == {once: 0, "kill -9 $PPID": Lost(-9), "true": 0}
    assert sorted(begun) == sorted([once, once, "kill -9 $PPID", "kill -9 $PPID", "true"])
    assert "killed 2 times (signal 9)" in str(Lost(-9))


def test_what_cannot_be_sent_to_a_process_is_said() -> None:
    with pytest.raises(BadInput, match="use one job"):
        list(in_processes(lambda piece: piece, [1], 1))
    with pytest.raises(BadInput, match="jobs must be at least 1"):
        compete(small(), jobs=0)


def alive(group: int) -> list[str]:
    """The processes of a group that still run; one that is over may wait to be noticed."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            text = path.read_text()
            state, _, of_group = text.rpartition(")")[2].split()[:3]
            if int(of_group) == group and state != "Z":
                found.append(text)
    return found


@pytest.mark.parametrize(("device", "jobs"), [("cuda", 1), ("cpu", 7)])
def test_one_job_a_core_and_one_a_gpu(device: str, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "chosen_device", lambda name, scenes: torch.device(device))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(7)))
    assert room.usual_jobs(small()) == jobs


def finished_cells(folder: Path) -> list[dict[str, Any]]:
    lines = [line for file in folder.glob(f"{UNFINISHED}/*/result/{FILE}") for line in file.read_text().splitlines()]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_a_folder_to_go_on_with(kill: signal.Signals, tmp_path: Path) -> None:
    asked = ["tournament", "target-localization", "--set", "agents=12", "--rounds", "4000", "--seeds", "1"]
    asked += ["--rules", "average,loss-based", "--attacks", "sign-flip,uniform", "--byzantine", "3", "--jobs", "2"]
    asked += ["--out", str(tmp_path / "left")]
    command = [sys.executable, "-m", "varangian", *asked]
    running = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    until = time.monotonic() + 300
    while not finished_cells(tmp_path / "left") and running.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(running.pid, kill)
    _, said = running.communicate(timeout=1200)
    assert running.returncode == 130, said
    assert "interrupted; to continue, run the same command with --resume" in said
    until = time.monotonic() + 60
    while alive(running.pid) and time.monotonic() < until:  # the last ones may be on their way out
        time.sleep(0.02)
    assert not alive(running.pid)
    contest = enter("target-localization", rules=["average", "loss-based"], attacks=["sign-flip", "uniform"],
                    byzantine=[3], seeds=1, rounds=4000, settings={"agents": 12})  # fmt: skip
    begun: list[Cell] = []

    def begin(cell: Cell) -> None:
        begun.append(cell)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compete_into(contest, tmp_path / "left", resume=True, begin=begin)
    finished = finished_cells(tmp_path / "left")
    assert 0 < len(finished) < len(contest.cells)
    assert (begun[0].rule, begun[0].attack) not in {(line["rule"], line["attack"]) for line in finished}


@pytest.mark.parametrize(("text", "jobs"), [("max 100000", 7), ("250000 100000", 2), ("10000 100000", 1), ("odd", 7)])
def test_a_container_s_share_of_cores_counts(
    text: str, jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(7)))
    (tmp_path / "cpu.max").write_text(text)
    granted = process_pool._of_container(tmp_path / "cpu.max")
    monkeypatch.setattr(process_pool, "_of_container", lambda: granted)
    assert process_pool.cores() == jobs
