"""Tournaments in which something cannot work: it is said in its cell, or before anything is played."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import xarray as xr
from tournaments import recorded_calls, rows_of, small, without_pictures

from varangian import BadInput, rules
from varangian.experiments.cells import Cell
from varangian.experiments.tournament.run import compete
from varangian.report.tournament import compete_into

torch.set_num_threads(1)

calls = pytest.fixture(recorded_calls)
no_picture = pytest.fixture(without_pictures)


@dataclass(frozen=True)
class too_large:
    """A rule that finds only in its work that it cannot do it."""

    error: str = "bad input"

    def init(self, table: Any) -> tuple[()]:
        return ()

    def combine(self, inbox: Any, state: tuple[()]) -> Any:
        if self.error == "bad input":
            raise BadInput("an exact search over\n 10⁹ subsets is too large")
        raise ZeroDivisionError("oh")


@pytest.mark.usefixtures("no_picture")
def test_a_cell_that_cannot_work_does_not_end_the_tournament(tmp_path: Path, calls: list[xr.Dataset]) -> None:
    contest = small(rules=[too_large(), "average"], attacks=["silent", "pulling:point=1/2/3"])
    found = compete_into(contest, tmp_path)
    reason = "not applicable: an exact search over 10⁹ subsets is too large"
    problems = {(each.rule, each.attack, each.byzantine): each.problem for each in found.outcomes if each.problem}
    pulled = "not applicable: pulling's point has 3 coordinates, but models have 2 that are sent"
    assert problems == {
        ("too-large", "", 0): reason,
        ("too-large", "silent", 3): reason,
        ("too-large", "pulling:point=1/2/3", 3): pulled,
        ("average", "pulling:point=1/2/3", 3): pulled,
    }
    assert found.panels[0].rules == ("alone", "average", "too-large"), "what cannot be used stands last"
    assert found.verdict("too-large", 3) == "not applicable"
    assert found.verdict("average", 3) == "breaks; 1 without result"
    row = next(row for row in rows_of(tmp_path) if row["status"] == reason)
    assert (row["seeds"], row["mean"], row["ratio"]) == ("0", "nan", "nan")
    text = (tmp_path / "tournament.md").read_text(encoding="utf-8")
    assert "| too-large | n/a | n/a | n/a |  |" in text
    assert f"- too-large, too-large under silent (3 Byzantine): {reason}" in text
    count = len(calls)
    compete_into(contest, tmp_path, resume=True)
    assert len(calls) == count, "what cannot work is not tried again"


@pytest.mark.usefixtures("no_picture")
def test_what_failed_is_tried_again(tmp_path: Path) -> None:
    contest = small(rules=[too_large(error="mistake")], attacks=["silent"], byzantine=[3])
    begun: list[Cell] = []
    for resume in (False, True):
        found = compete_into(contest, tmp_path, resume=resume, begin=begun.append)
        assert found.outcomes[1].problem.startswith(
            "failed: RunFailed: rule too_large(error='mistake') failed in round 1: ZeroDivisionError: oh"
        )
        assert f"({Path(__file__).name}:" in found.outcomes[1].problem
    assert begun == [*contest.cells, contest.cells[1]]


def test_what_needs_parameters_is_not_applicable_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class needy(rules.average):
        size: int

    monkeypatch.setattr(rules, "needy", needy, raising=False)
    monkeypatch.setattr(rules, "__all__", ["alone", "needy"])
    contest = small(rules=["all"], attacks=["silent"], byzantine=[3])
    assert compete(contest).outcomes[1].problem.startswith("not applicable: rule needy needs a value for size")
    assert not compete(small(rules=["needy:size=2"], attacks=["silent"], byzantine=[3])).outcomes[1].problem


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rules": ["averag"]}, "did you mean 'average'"),
        ({"attacks": ["silent", "pullin"]}, "did you mean 'pulling'"),
        ({"attacks": ["uniform:low=2,high=1"]}, "low ≤ high"),
        ({"rules": []}, "non-empty"),
        ({"rules": "average"}, "lists of names"),
        ({"byzantine": [3, 12]}, "no agent to measure"),
        ({"byzantine": [3, 0.25]}, "both 3 agents"),
        ({"seeds": 0}, "at least one seed"),
        ({"device": "nowhere"}, "device 'nowhere'"),
    ],
)
def test_what_cannot_work_anywhere_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        small(**changed)
