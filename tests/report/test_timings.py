"""`--timings`: the seconds of every phase, on the terminal and in the run folder."""

from __future__ import annotations

import copy
import csv
import pickle
from pathlib import Path

import pytest
from commands import ONE, SMALL, varangian_

from varangian import rules, simulate, studies
from varangian.core.stopwatch import PHASES
from varangian.engine.simulated import Result
from varangian.experiments.cells import Cell
from varangian.report.timings import COLUMNS, Timings

TINY = studies.target_localization(agents=10)


def timed(**seconds: float) -> Result:
    return Result.of(simulate(TINY, rule=rules.alone(), rounds=1), timings=seconds)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_command_says_where_its_time_went(tmp_path: Path) -> None:
    swept = ("--rule", "alone", "--rule", "loss-based", "--byzantine", 0, "--byzantine", 3, "--seeds", 2)
    said = varangian_("run", *SMALL, *swept, "--out", tmp_path / "run", "--timings")
    assert said.status == 0, said.err
    rows = read(tmp_path / "run" / "timings.csv")
    assert tuple(rows[0]) == COLUMNS
    of_cells = {(row["rule"], row["byzantine"]) for row in rows if row["rule"]}
    assert of_cells == {("alone", "0"), ("alone", "3"), ("loss-based", "0"), ("loss-based", "3")}
    assert all(float(row["seconds"]) >= 0 and row["phase"] in PHASES for row in rows)
    assert {row["phase"] for row in rows if not row["rule"]} >= {"set-up", "writing", "figures", "report"}
    (line,) = [line for line in said.out.splitlines() if line.startswith("Seconds: ")]
    assert all(phase in line for phase in ("set-up", "rounds", "recording", "writing", "figures", "report"))
    # Without the option, the folder has what it always had.
    varangian_("run", *ONE, "--out", tmp_path / "run", "--overwrite", "--quiet")
    assert not (tmp_path / "run" / "timings.csv").exists()


def test_the_table_has_each_cell_once_and_what_is_left(tmp_path: Path) -> None:
    cell, timings = Cell("alone", "uniform", 0), Timings()
    with timings.watch.phase("writing"):
        timings.finish(cell, timed(rounds=2.0))
        timings.finish(Cell("alone", "silent", 0), timed(rounds=2.0))  # the same cell: without Byzantine agents
    timings.watch.add({"rounds": 0.5, "figures": 1.0})
    rows = read(timings.write(tmp_path / "timings.csv"))
    found = [(row["rule"], row["phase"], float(row["seconds"])) for row in rows]
    assert found == [("alone", "rounds", 2.0), ("", "rounds", 0.5), ("", "figures", 1.0)]
    assert "rounds 2.50" in timings.line and "together 3.50" in timings.line


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_result_knows_its_phases_and_keeps_them(seeds: int) -> None:
    result = simulate(TINY, rule=rules.alone(), rounds=3, seeds=seeds)
    assert set(result.timings) == {"set-up", "rounds", "recording", "writing"}
    assert sum(result.timings.values()) >= float(result["seconds"].sum()) * 0.5
    assert pickle.loads(pickle.dumps(result)).timings == result.timings
    assert copy.copy(result).timings == result.saying({}).timings == result.timings
