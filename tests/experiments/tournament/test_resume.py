"""Tournaments that stop and go on: nothing is computed twice, and no folder is mistaken for another."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import xarray as xr
from tournaments import FILES, recorded_calls, small, untimed, values_of, without_pictures

from varangian import BadInput, rules
from varangian.experiments.cells import Cell
from varangian.experiments.folder_state import UNFINISHED
from varangian.experiments.tournament.log import FILE
from varangian.experiments.tournament.run import compete
from varangian.report.tournament import compete_into

torch.set_num_threads(1)

calls = pytest.fixture(recorded_calls)
no_picture = pytest.fixture(without_pictures)


@pytest.mark.usefixtures("no_picture")
def test_an_interrupted_tournament_goes_on_to_the_same_files(tmp_path: Path, calls: list[xr.Dataset]) -> None:
    contest, begun = small(), list[Cell]()

    def begin(cell: Cell) -> None:
        begun.append(cell)
        if len(begun) == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compete_into(contest, tmp_path / "left", begin=begin)
    assert len(calls) == 5
    (ledger,) = (tmp_path / "left" / UNFINISHED).glob(f"*/result/{FILE}")
    assert len(ledger.read_text().splitlines()) == 5
    rounds: list[int] = []
    compete_into(contest, tmp_path / "left", resume=True, begin=begun.append, advance=rounds.append)
    assert len(calls) == len(contest.cells)
    assert begun[6:] == contest.cells[5:]
    assert sum(rounds) == len(contest.cells) * 30 * 2
    compete_into(contest, tmp_path / "whole")
    assert untimed(tmp_path / "left") == untimed(tmp_path / "whole")
    for name in ("config.toml", "tournament.md"):
        assert (tmp_path / "left" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert {path.name for path in (tmp_path / "left").iterdir()} == FILES


@pytest.mark.usefixtures("no_picture")
def test_a_finished_tournament_is_not_played_again(tmp_path: Path, calls: list[xr.Dataset]) -> None:
    compete_into(small(), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    played = len(calls)
    inodes = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    compete_into(small(), tmp_path, resume=True)
    assert {path.name: path.stat().st_ino for path in tmp_path.iterdir()} == inodes, "nothing is written again"
    assert len(calls) == played
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.usefixtures("no_picture")
def test_a_tournament_is_gone_on_with_only_when_asked_to(tmp_path: Path, calls: list[xr.Dataset]) -> None:
    few = small(rules=["average"], attacks=["silent"], byzantine=[3])
    compete_into(few, tmp_path)
    with pytest.raises(BadInput, match="holds this tournament; add --resume to go on with it, or --overwrite"):
        compete_into(few, tmp_path)
    assert len(calls) == 2
    compete_into(few, tmp_path, overwrite=True)
    assert len(calls) == 4
    assert {path.name for path in tmp_path.iterdir()} == FILES


@pytest.mark.usefixtures("no_picture")
def test_more_rules_and_attacks_may_join(tmp_path: Path, calls: list[xr.Dataset]) -> None:
    compete_into(small(rules=["average"], attacks=["silent"], byzantine=[3]), tmp_path)
    assert len(calls) == 2
    more = small(rules=["average", "loss-based"], attacks=["silent", "crash"], byzantine=[0, 3])
    found = compete_into(more, tmp_path, resume=True)
    assert len(calls) == len(more.cells) == len(found.outcomes) == 2 + 2 + 4
    assert values_of(found) == values_of(compete(more))
    fewer = compete_into(small(rules=["average"], attacks=["silent"], byzantine=[3]), tmp_path, resume=True)
    assert [(each.rule, each.attack) for each in fewer.outcomes] == [("alone", ""), ("average", "silent")]


@pytest.mark.usefixtures("no_picture")
def test_another_rule_of_the_same_name_is_another_cell(tmp_path: Path, calls: list[xr.Dataset]) -> None:
    @dataclass(frozen=True)
    class mine(rules.loss_based):
        pass

    for resume, value in ((False, mine()), (True, mine()), (True, mine(keep="all"))):
        compete_into(small(rules=[value], attacks=["silent"], byzantine=[3]), tmp_path, resume=resume)
    assert len(calls) == 2 + 0 + 1


@pytest.mark.usefixtures("no_picture")
@pytest.mark.parametrize("torn", ['{"rule": "aver', "[]", "\ufffd", '{"key": [], "rows": []}'])
def test_a_line_that_a_kill_cut_short_is_played_again(torn: str, tmp_path: Path, calls: list[xr.Dataset]) -> None:
    contest = small(rules=["average"], attacks=["silent"])
    compete_into(contest, tmp_path)
    whole = (tmp_path / FILE).read_text(encoding="utf-8").splitlines()
    (tmp_path / FILE).write_text("\n".join([*whole[:-1], torn]), encoding="utf-8")
    compete_into(contest, tmp_path, resume=True)
    assert len(calls) == len(contest.cells) + 1
    kept = [json.loads(line) for line in (tmp_path / FILE).read_text(encoding="utf-8").splitlines()]
    assert [(line["rule"], line["byzantine"]) for line in kept] == [
        (cell.rule, str(cell.byzantine)) for cell in contest.cells
    ]


@pytest.mark.usefixtures("no_picture")
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seeds": 3}, "differs in seeds"),
        ({"rounds": 31}, "differs in rounds"),
        ({"dtype": "float64"}, "differs in dtype"),
        ({"settings": {"agents": 11, "radius": 2}}, "differs in agents, radius"),
    ],
)
def test_a_folder_belongs_to_one_study_and_its_settings(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    few: dict[str, Any] = {"rules": ["average"], "attacks": ["silent"], "byzantine": [3]}
    compete_into(small(**few), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for resume in (False, True):
        with pytest.raises(BadInput, match=said):
            compete_into(small(**few | changed), tmp_path, resume=resume)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_of_something_else_is_refused(resume: bool, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(BadInput, match="holds no tournament; name another"):
        compete_into(small(), tmp_path, resume=resume)
    with pytest.raises(BadInput, match="is a file"):
        compete_into(small(), tmp_path / "file", resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    if resume:
        with pytest.raises(BadInput, match="no tournament to resume"):
            compete_into(small(), tmp_path / "new", resume=True)
        assert not (tmp_path / "new").exists()
