"""The command `varangian tournament`."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
import xarray as xr
from tournaments import RULES, first_tournament, large, room, small, untimed, without_pictures

import varangian
from varangian import cli, rules
from varangian.experiments.tournament.standings import Standings
from varangian.report.standings import print_standings

torch.set_num_threads(1)

no_picture = pytest.fixture(without_pictures)
standings = pytest.fixture(scope="module")(first_tournament)


def varangian_(*args: object) -> tuple[int, str, str]:
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["varangian", *map(str, args)]
    try:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as left:
            cli.main()
    finally:
        sys.argv = before
    code = left.value.code
    assert code is None or isinstance(code, int)
    return code or 0, out.getvalue(), err.getvalue()


SMALL = ("tournament", "target-localization", "--set", "agents=12", "--rounds", 30, "--seeds", 2, "--jobs", 1)


@pytest.mark.usefixtures("no_picture")
def test_the_command_plays_and_prints(standings: tuple[Path, Standings], tmp_path: Path) -> None:
    asked = ("--rules", ",".join(RULES), "--attack", "sign_flip", "--attacks", "uniform,silent", "--byzantine", 0)
    status, out, err = varangian_(*SMALL, *asked, "--byzantine", 3, "--out", tmp_path / "a")
    assert status == 0, err
    assert untimed(tmp_path / "a") == untimed(standings[0])
    found = standings[1]
    heads, *table = out.splitlines()[1:6]
    assert heads.split("  ")[0] == "rule" and heads.split()[-1] == "verdict"
    lines = {line.split()[0]: line for line in table}
    assert tuple(lines) == found.panels[0].rules
    for rule in RULES:
        worst = found.worst(rule, 3)
        assert worst and worst.attack in lines[rule] and found.verdict(rule, 3) in lines[rule]
    assert str(tmp_path / "a") in out
    assert len(err.splitlines()) == len(small().cells), "a line of progress a cell"
    status, out, err = varangian_(
        "tournament", tmp_path / "a" / "config.toml", "--out", tmp_path / "b", "-q", "--jobs", 1
    )
    assert (status, out, err) == (0, "", "")
    assert untimed(tmp_path / "b") == untimed(tmp_path / "a")


def test_input_that_cannot_work_is_one_line_and_nothing_written(tmp_path: Path) -> None:
    for wrong, said in (
        (("--rules", "averag"), "did you mean 'average'"),
        (("--set", "agent=3"), "did you mean 'agents'"),
        (("--byzantine", 12), "no agent to measure"),
        (("--byzantine", 3, "--jobs", 0), "jobs must be at least 1"),
        (("--byzantine", 3, "--resume"), "no tournament to resume"),
        (("--byzantine", 3, "--resume", "--overwrite"), "leave one of them out"),
    ):
        status, out, err = varangian_(*SMALL, *wrong, "--out", tmp_path / "new")
        assert (status, out) == (2, "") and said in err and err.count("\n") == 1
        assert not list(tmp_path.iterdir())
    assert varangian_(*SMALL, "--resume")[0] == 2


def test_failed_cells_are_status_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(study: Any, **settings: Any) -> xr.Dataset:
        if settings["rule"] != rules.alone():
            raise RuntimeError("no memory\nleft")
        return varangian.simulate(study, **settings)

    monkeypatch.setattr(room, "simulate", fails)
    status, _, err = varangian_(*SMALL, "--rules", "average", "--attacks", "silent", "--byzantine", 3, "--quiet")
    assert status == 1
    assert "1 cells failed; the first is average under silent failed: RuntimeError: no memory left" in err


def test_a_terminal_gets_the_whole_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_standings(large())
    title, heads, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith("made-up, 20 of 100 agents Byzantine: regret at the end, 3 seeds")
    assert heads.split() == ["rule", "no", "attack", "worst", "attack", "value", "vs", "alone", "verdict"]
    assert [line.split()[0] for line in lines if line.strip()] == list(large().panels[0].rules)
