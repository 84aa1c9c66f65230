"""Tournaments: the same numbers as a run, never computed twice, and a picture that says what they say."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

import varangian
from varangian import BadInput, attacks, cli, rules, simulate, sweep
from varangian.commands.tournament import parted
from varangian.contest import Contest, enter, name_of
from varangian.ledger import FILE
from varangian.naming import catalogue
from varangian.plan import plan_for
from varangian.report.heatmap import CELL, draw_heatmap
from varangian.report.standings import compact, csv_rows, markdown, print_standings, relative
from varangian.standings import Outcome, Standings
from varangian.sweep import Cell
from varangian.tournament import compete, play
from varangian.workers import Lost, in_processes

torch.set_num_threads(1)
room = sys.modules["varangian.tournament"]

RULES = ("average", "distance-based", "loss-based")
ATTACKS = ("sign-flip", "uniform", "silent")
FILES = {"config.toml", FILE, "tournament.csv", "tournament.md", "tournament.png"}


def small(**changed: Any) -> Contest:
    asked: dict[str, Any] = {
        "rules": RULES,
        "attacks": ATTACKS,
        "byzantine": [0, 3],
        "seeds": 2,
        "rounds": 30,
        "settings": {"agents": 12},
    }
    return enter("target-localization", **(asked | changed))


@pytest.fixture
def no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take longer than everything else and have tests of their own."""
    monkeypatch.setattr("varangian.report.heatmap.draw_heatmap", lambda standings: Blank())


class Blank:
    def savefig(self, file: io.BytesIO, **how: object) -> None:
        file.write(b"picture")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[xr.Dataset]:
    """What `simulate` gave each time that a tournament called it."""
    given: list[xr.Dataset] = []
    inner: Callable[..., xr.Dataset] = simulate.simulate

    def counted(*args: Any, **settings: Any) -> xr.Dataset:
        given.append(inner(*args, **settings))
        return given[-1]

    monkeypatch.setattr(room, "simulate", counted)
    return given


@pytest.fixture(scope="module")
def standings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Standings]:
    folder = tmp_path_factory.mktemp("tournament") / "first"
    return folder, compete(small(), folder)


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "tournament.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def untimed(folder: Path) -> list[dict[str, str]]:
    return [{**row, "seconds": ""} for row in rows_of(folder)]


def values_of(found: Standings) -> list[Outcome]:
    key = lambda outcome: (outcome.rule, outcome.attack, outcome.byzantine)  # noqa: E731
    return sorted((replace(outcome, seconds=0.0) for outcome in found.outcomes), key=key)


# --------------------------------------------------------------------------------------------- the same numbers


def test_values_are_those_of_a_run(standings: tuple[Path, Standings], tmp_path: Path) -> None:
    about: dict[str, Any] = {"seeds": 2, "rounds": 30, "settings": {"agents": 12}}
    plan = plan_for("target-localization", rules=("alone", *RULES), attacks=ATTACKS, byzantine=[0, 3], **about)
    rows = sweep.write_summary(sweep.sweep(plan, None), tmp_path / "summary.csv")
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
            "loss": (("seed", "round", "agent"), np.ones((2, 1, 3))),
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


# ------------------------------------------------------------------------------------------------ leave and go on


@pytest.mark.usefixtures("no_picture")
def test_an_interrupted_tournament_goes_on_to_the_same_files(tmp_path: Path, calls: list[xr.Dataset]) -> None:
    contest, begun = small(), list[Cell]()

    def begin(cell: Cell) -> None:
        begun.append(cell)
        if len(begun) == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compete(contest, tmp_path / "left", begin=begin)
    assert len(calls) == 5
    assert len((tmp_path / "left" / FILE).read_text().splitlines()) == 5
    rounds: list[int] = []
    compete(contest, tmp_path / "left", resume=True, begin=begun.append, advance=rounds.append)
    assert len(calls) == len(contest.cells)
    assert begun[6:] == contest.cells[5:]
    assert sum(rounds) == len(contest.cells) * 30 * 2
    compete(contest, tmp_path / "whole")
    assert untimed(tmp_path / "left") == untimed(tmp_path / "whole")
    for name in ("config.toml", "tournament.md"):
        assert (tmp_path / "left" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert {path.name for path in (tmp_path / "left").iterdir()} == FILES


@pytest.mark.usefixtures("no_picture")
def test_a_finished_tournament_is_not_played_again(tmp_path: Path, calls: list[xr.Dataset]) -> None:
    compete(small(), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    played = len(calls)
    compete(small(), tmp_path)
    assert len(calls) == played
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.usefixtures("no_picture")
def test_more_rules_and_attacks_may_join(tmp_path: Path, calls: list[xr.Dataset]) -> None:
    compete(small(rules=["average"], attacks=["silent"], byzantine=[3]), tmp_path)
    assert len(calls) == 2
    more = small(rules=["average", "loss-based"], attacks=["silent", "crash"], byzantine=[0, 3])
    found = compete(more, tmp_path)
    assert len(calls) == len(more.cells) == len(found.outcomes) == 2 + 2 + 4
    assert values_of(found) == values_of(compete(more))
    fewer = compete(small(rules=["average"], attacks=["silent"], byzantine=[3]), tmp_path)
    assert [(each.rule, each.attack) for each in fewer.outcomes] == [("alone", ""), ("average", "silent")]


@pytest.mark.usefixtures("no_picture")
def test_another_rule_of_the_same_name_is_another_cell(tmp_path: Path, calls: list[xr.Dataset]) -> None:
    @dataclass(frozen=True)
    class mine(rules.loss_based):
        pass

    for value in (mine(), mine(), mine(keep="all")):
        compete(small(rules=[value], attacks=["silent"], byzantine=[3]), tmp_path)
    assert len(calls) == 2 + 0 + 1


@pytest.mark.usefixtures("no_picture")
@pytest.mark.parametrize("torn", ['{"rule": "aver', "[]", "\ufffd", '{"key": [], "rows": []}'])
def test_a_line_that_a_kill_cut_short_is_played_again(torn: str, tmp_path: Path, calls: list[xr.Dataset]) -> None:
    contest = small(rules=["average"], attacks=["silent"])
    compete(contest, tmp_path)
    whole = (tmp_path / FILE).read_text(encoding="utf-8").splitlines()
    (tmp_path / FILE).write_text("\n".join([*whole[:-1], torn]), encoding="utf-8")
    compete(contest, tmp_path)
    assert len(calls) == len(contest.cells) + 1
    kept = [json.loads(line) for line in (tmp_path / FILE).read_text(encoding="utf-8").splitlines()]
    assert [(line["rule"], line["byzantine"]) for line in kept] == [
        (cell.rule, str(cell.byzantine)) for cell in contest.cells
    ]


@pytest.mark.usefixtures("no_picture")
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seeds": 3}, "another seeds"),
        ({"rounds": 31}, "another rounds"),
        ({"dtype": "float64"}, "another dtype"),
        ({"settings": {"agents": 11, "radius": 2}}, "another agents, another radius"),
    ],
)
def test_a_folder_belongs_to_one_study_and_its_settings(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    few: dict[str, Any] = {"rules": ["average"], "attacks": ["silent"], "byzantine": [3]}
    compete(small(**few), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(BadInput, match=said):
        compete(small(**few | changed), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_of_something_else_is_refused(resume: bool, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(BadInput, match="holds no tournament; name another"):
        compete(small(), tmp_path, resume=resume)
    with pytest.raises(BadInput, match="is a file"):
        compete(small(), tmp_path / "file", resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    if resume:
        with pytest.raises(BadInput, match="no tournament to resume"):
            compete(small(), tmp_path / "new", resume=True)
        assert not (tmp_path / "new").exists()


# ------------------------------------------------------------------------------------------- cells without result


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
    found = compete(contest, tmp_path)
    reason = "not applicable: an exact search over 10⁹ subsets is too large"
    problems = {(each.rule, each.attack, each.byzantine): each.problem for each in found.outcomes if each.problem}
    pulled = "not applicable: pulling's point has 3 coordinates, but models have 2 that travel"
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
    compete(contest, tmp_path)
    assert len(calls) == count, "what cannot work is not tried again"


@pytest.mark.usefixtures("no_picture")
def test_what_failed_is_tried_again(tmp_path: Path) -> None:
    contest = small(rules=[too_large(error="mistake")], attacks=["silent"], byzantine=[3])
    begun: list[Cell] = []
    for _ in range(2):
        found = compete(contest, tmp_path, begin=begun.append)
        assert found.outcomes[1].problem.startswith("failed: ZeroDivisionError: oh (test_tournament.py:")
    assert begun == [*contest.cells, contest.cells[1]]


def test_what_needs_parameters_is_not_applicable_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class needy(rules.average):
        size: int

    monkeypatch.setattr(rules, "needy", needy, raising=False)
    monkeypatch.setattr(rules, "__all__", ["alone", "needy"])
    contest = small(rules=["all"], attacks=["silent"], byzantine=[3])
    assert compete(contest).outcomes[1].problem.startswith("not applicable: needy cannot be made without parameters")
    assert not compete(small(rules=["needy:size=2"], attacks=["silent"], byzantine=[3])).outcomes[1].problem


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rules": ["averag"]}, "did you mean 'average'"),
        ({"attacks": ["silent", "pullin"]}, "did you mean 'pulling'"),
        ({"attacks": ["uniform:low=2,high=1"]}, "low ≤ high"),
        ({"rules": []}, "not empty"),
        ({"rules": "average"}, "lists of names"),
        ({"byzantine": [3, 12]}, "nobody to measure"),
        ({"byzantine": [3, 0.25]}, "both 3 agents"),
        ({"seeds": 0}, "at least one seed"),
        ({"device": "nowhere"}, "device 'nowhere'"),
    ],
)
def test_what_cannot_work_anywhere_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        small(**changed)


# --------------------------------------------------------------------------------------------------- in processes


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
    with pytest.raises(BadInput, match="at least one job"):
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


def test_an_interrupt_leaves_a_folder_to_go_on_with(tmp_path: Path) -> None:
    asked = ["tournament", "target-localization", "--set", "agents=12", "--rounds", "2000", "--seeds", "1"]
    asked += ["--rules", "average,loss-based", "--byzantine", "3", "--jobs", "2", "--out", str(tmp_path / "left")]
    command = [sys.executable, "-m", "varangian.cli", *asked]
    running = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    ledger = tmp_path / "left" / FILE
    until = time.monotonic() + 60
    while not (ledger.exists() and ledger.read_text()) and running.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130, said
    assert "interrupted; give the same command to go on" in said
    assert not alive(running.pid)
    contest = enter("target-localization", rules=["average", "loss-based"], byzantine=[3], seeds=1, rounds=2000,
                    settings={"agents": 12})  # fmt: skip
    begun: list[Cell] = []

    def begin(cell: Cell) -> None:
        begun.append(cell)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compete(contest, tmp_path / "left", resume=True, begin=begin)
    finished = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert 0 < len(finished) < len(contest.cells)
    assert (begun[0].rule, begun[0].attack) not in {(line["rule"], line["attack"]) for line in finished}


# ------------------------------------------------------------------------------------------------- what it means


def outcome(values: Sequence[float], alone: Sequence[float], rule: str = "average", attack: str = "x") -> Outcome:
    return Outcome(rule, attack, 3, tuple(values), tuple(alone))


def made_up(outcomes: Sequence[Outcome], metric: str = "regret", seeds: int = 2) -> Standings:
    alone = Outcome("alone", "", 3, outcomes[0].alone, outcomes[0].alone)
    return Standings("made-up", metric, 10, 30, seeds, (alone, *outcomes))


def test_differences_are_paired_by_seed() -> None:
    found = outcome((1.5, 3.5, 5.5), (1.0, 3.0, 4.0))
    assert found.mean == 3.5 and found.alone_mean == pytest.approx(8 / 3)
    assert found.difference == pytest.approx(5 / 6)
    assert found.error == pytest.approx(2 / math.sqrt(3))
    assert found.difference_error == pytest.approx(1 / 3)  # of ½, ½ and 3/2: deviation 1/√3, over √3
    assert found.ratio == pytest.approx(3.5 / (8 / 3))


@pytest.mark.parametrize(
    ("metric", "values", "alone", "near", "verdict"),
    [
        ("regret", (1.0, 1.2), (1.0, 1.0), True, "as good as alone"),
        ("regret", (1.0, 1.0), (1.0, 1.0), True, "as good as alone"),
        ("regret", (1.3, 1.2), (1.0, 1.0), False, "worse than alone"),
        ("regret", (0.7, 0.8), (1.0, 1.0), False, "better than alone"),
        ("regret", (2.1, 2.2), (1.0, 1.0), False, "breaks"),
        # One standard error, for one of five seeds has gone astray.
        ("regret", (1.0, 1.0, 1.0, 1.0, 50.0), (1.0,) * 5, False, "breaks in 1 of 5 seeds"),
        ("regret", (1.0, math.nan), (1.0, 1.0), False, "breaks in 1 of 2 seeds"),
        ("accuracy", (0.95, 0.96), (0.9, 0.9), False, "better than alone"),
        ("accuracy", (0.85, 0.84), (0.9, 0.9), False, "worse than alone"),
        ("accuracy", (0.9, 0.92), (0.9, 0.9), True, "as good as alone"),
        ("accuracy", (0.5, 0.5), (0.9, 0.9), False, "breaks"),
        ("rmse", (8.0, 8.1), (10.0, 10.0), False, "better than alone"),
        ("regret", (1.1,), (1.0,), False, "worse than alone"),
    ],
)
def test_verdicts(metric: str, values: Sequence[float], alone: Sequence[float], near: bool, verdict: str) -> None:
    found = made_up([outcome(values, alone)], metric, len(values))
    assert found.near(found.outcomes[1]) is near
    assert found.verdict("average", 3) == verdict
    assert found.verdict("alone", 3) == "the reference"


def test_rules_stand_by_their_worst_case_and_attacks_by_their_harm() -> None:
    one = (1.0, 1.0)
    harms = {
        ("steady", "a"): 0.9, ("steady", "b"): 0.9,
        ("brittle", "a"): 0.1, ("brittle", "b"): 30.0,
        ("lost", "a"): math.inf, ("lost", "b"): 0.1,
        ("slow", "a"): 1.5, ("slow", "b"): 1.4,
    }  # fmt: skip
    parts = [outcome((harm, harm), one, rule, attack) for (rule, attack), harm in harms.items()]
    parts += [Outcome("never", attack, 3, (), one, problem="not applicable: no") for attack in "abc"]
    found = made_up(parts)
    (panel,) = found.panels
    assert panel.rules == ("steady", "alone", "slow", "brittle", "lost", "never")
    assert panel.attacks == ("b", "a", "c") or panel.attacks == ("a", "b", "c")
    mean = {"a": (math.log10(0.9 * 0.1 * 1.5) + 3) / 4, "b": (math.log10(0.9 * 0.1 * 1.4) + math.log10(30)) / 4}
    assert panel.attacks == (*sorted(mean, key=lambda attack: -mean[attack]), "c")
    worst = {rule: found.worst(rule, 3) for rule in panel.rules}
    assert {rule: each.attack for rule, each in worst.items() if each} == {
        "steady": "a", "alone": "", "slow": "a", "brittle": "b", "lost": "a",
    }  # fmt: skip
    assert relative(found, worst["lost"] or found.outcomes[0]) == "not finite"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(*[st.floats(width=32) | st.just(1.0)] * 3),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(["regret", "accuracy"]),
)
def test_any_numbers_can_be_told(values: list[tuple[float, ...]], metric: str) -> None:
    alone = (0.5, 0.25, 1.0)
    parts = [outcome(some, alone, f"rule-{place}", attack) for place, some in enumerate(values) for attack in "ab"]
    found = made_up(parts, metric, 3)
    (panel,) = found.panels
    assert sorted(panel.rules) == sorted({"alone", *(part.rule for part in parts)})
    harms = [found.harm(found.worst(rule, 3)) for rule in panel.rules]
    known = [harm for harm in harms if not math.isnan(harm)]
    assert known == sorted(known)
    assert markdown(found).count("\n| ") == 2 + len(panel.rules)
    assert len(list(csv_rows(found))) == len(found.outcomes)


def test_the_csv_tells_everything(standings: tuple[Path, Standings]) -> None:
    folder, found = standings
    rows = rows_of(folder)
    told = "rule attack byzantine seeds metric mean se worst alone_mean difference difference_se ratio seconds status"
    assert list(rows[0]) == told.split()
    assert len(rows) == len(found.outcomes) == 2 + 3 + 9
    assert {(row["attack"], row["byzantine"]) for row in rows if row["rule"] == "alone"} == {
        ("none", "0"),
        ("any", "3"),
    }
    for row, each in zip(rows, found.outcomes, strict=True):
        assert (row["rule"], float(row["mean"])) == (each.rule, each.mean)
        assert float(row["difference"]) == pytest.approx(each.mean - each.alone_mean)
        assert float(row["ratio"]) == pytest.approx(each.mean / each.alone_mean)
        assert (row["status"], row["metric"], row["seeds"]) == ("done", "regret", "2")


def test_the_table_has_attacks_across_and_the_worst_at_the_end(standings: tuple[Path, Standings]) -> None:
    found = standings[1]
    lines = [line for line in markdown(found).splitlines() if line.startswith("|")]
    heads = [head.strip() for head in lines[0].split("|")[1:-1]]
    (panel,) = found.panels
    assert heads == ["rule", "no attack", *panel.attacks, "worst attack"]
    assert set(panel.attacks) == set(ATTACKS)
    body = {line.split("|")[1].strip(): [part.strip() for part in line.split("|")[1:-1]] for line in lines[2:]}
    assert tuple(body) == panel.rules
    for rule in RULES:
        worst = found.worst(rule, 3)
        assert worst is not None
        ratios = {a: each.ratio for a in ATTACKS if (each := found.at(rule, a, 3))}
        assert worst.attack == max(ratios, key=lambda attack: ratios[attack])
        assert body[rule][-1] == f"{worst.attack}: {compact(worst.ratio)}×, {found.verdict(rule, 3)}"
        assert compact(worst.mean) in body[rule][2 + panel.attacks.index(worst.attack)]


def test_numbers_of_byzantine_agents_have_a_table_each() -> None:
    found = compete(small(rules=["average"], attacks=["silent"], byzantine=[2, 0.25, (1, 5, 7, 9)]))
    assert [panel.byzantine for panel in found.panels] == [2, 3, 4]
    text = markdown(found)
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        f"## {count} of 12 agents Byzantine" for count in (2, 3, 4)
    ]
    assert "no attack" not in text
    calm = compete(small(rules=["average"], byzantine=[0]))
    assert "## No Byzantine agents" in markdown(calm) and "| rule | no attack | worst attack |" in markdown(calm)


# ---------------------------------------------------------------------------------------------------- the picture


def large() -> Standings:
    draws = np.random.default_rng(0)
    parts: list[Outcome] = []
    alone = (0.02, 0.021, 0.019)
    for rule in range(29):
        name = f"a-rule-with-a-long-name:and=parameters,number={rule}"
        parts.append(Outcome(name, "", 0, tuple(0.015 * draws.uniform(0.9, 1.1, 3)), alone))
        for attack in range(28):
            if rule == 3:
                parts.append(Outcome(name, f"attack-{attack}", 20, (), alone, problem="not applicable: no"))
                continue
            values = 0.014 * 10 ** (draws.gamma(0.3) * rule / 10) * draws.uniform(0.95, 1.05, 3)
            parts.append(Outcome(name, f"attack-{attack}", 20, tuple(values), alone))
    reference = [Outcome("alone", "", count, alone, alone) for count in (0, 20)]
    return Standings("made-up", "regret", 100, 500, 3, (*reference, *parts))


def test_thirty_rules_against_twenty_eight_attacks_fit_the_picture() -> None:
    found = large()
    figure = draw_heatmap(found)
    ax = figure.axes[0]
    (panel,) = found.panels
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["no attack", *panel.attacks, "worst case"]
    assert len(ax.get_yticklabels()) == 30
    assert all(len(tick.get_text()) <= 36 for tick in ax.get_yticklabels())
    width, height = figure.get_size_inches()
    box = ax.get_position()
    assert box.width * width / ax.get_xlim()[1] == pytest.approx(CELL[0])
    assert box.height * height / 30 == pytest.approx(CELL[1])
    # Nothing is cut off, and no text of a cell is wider than the cell.
    canvas = FigureCanvasAgg(figure)
    renderer = canvas.get_renderer()
    everything = figure.get_tightbbox(renderer)
    assert everything.x0 >= 0 and everything.y0 >= 0 and everything.x1 <= width and everything.y1 <= height
    cell = CELL[0] * figure.dpi
    for text in ax.texts:
        if "no cooperation" not in text.get_text():
            assert text.get_window_extent(renderer).width <= cell


def boxes(figure: Any, row: int) -> list[Rectangle]:
    patches = figure.axes[0].patches
    return [patch for patch in patches if isinstance(patch, Rectangle) and math.floor(patch.get_y()) == row]


def test_colours_and_marks_say_what_the_numbers_say() -> None:
    one = (1.0, 1.0)
    parts = [outcome((0.6, 0.6), one, "good", "a"), outcome((0.5, 0.5), one, "good", "b")]
    parts += [outcome((1.0, 1.1), one, "even", "a"), outcome((0.95, 1.0), one, "even", "b")]
    parts += [outcome((math.nan, 1.0), one, "bad", "a"), outcome((3.0, 3.0), one, "bad", "b")]
    parts += [Outcome("none", attack, 3, (), one, problem="not applicable: no") for attack in "ab"]
    found = made_up(parts)
    figure = draw_heatmap(found)
    (panel,) = found.panels
    assert panel.rules == ("good", "alone", "even", "bad", "none") and panel.attacks == ("a", "b")
    filled = {
        (row, math.floor(patch.get_x())): patch.get_facecolor()
        for row in range(5)
        for patch in boxes(figure, row)
        if patch.get_facecolor()[3] and not patch.get_hatch()
    }

    def blueness(row: int, column: int) -> float:
        red, _, blue, _ = filled[row, column]
        return float(blue - red)

    assert blueness(0, 0) > 0.1 and blueness(0, 1) > 0.1, "blue is better"
    assert sum(filled[0, 1]) < sum(filled[0, 0]), "the better, the darker"
    assert abs(blueness(1, 0)) < 0.01, "no cooperation has the colour in the middle"
    assert blueness(3, 1) < -0.2 and filled[3, 0] == to_rgba("#67001f"), "what is not finite is worst"
    outlined = {
        (row, math.floor(patch.get_x()))
        for row in range(5)
        for patch in boxes(figure, row)
        if patch.get_edgecolor() == to_rgba("#1a1a1a")
    }
    assert outlined == {(0, 0), (2, 0), (3, 0)}
    hatched = {math.floor(patch.get_x()) for patch in boxes(figure, 4) if patch.get_hatch()}
    assert hatched == {0, 1}
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert [text for text in texts if "≈" in text] == ["≈ 1.05", "≈ 0.975", "≈ 1.05×"]
    assert "∞" in texts and "not finite" in texts and "0.600×" in texts


def test_a_picture_of_accuracy_tells_points() -> None:
    one = (0.9, 0.9)
    found = made_up([outcome((0.95, 0.95), one, "good"), outcome((0.4, 0.4), one, "bad")], "accuracy")
    figure = draw_heatmap(found)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert {"95.0", "+5.0", "40.0", "−50.0", "±0.0"} <= set(texts)
    labels = [tick.get_text() for tick in figure.axes[1].get_xticklabels()]
    assert labels == ["+5", "0", "−10", "−25", "−50"]


def test_a_tournament_writes_a_picture(standings: tuple[Path, Standings]) -> None:
    folder = standings[0]
    assert {path.name for path in folder.iterdir()} == FILES
    assert (folder / "tournament.png").read_bytes().startswith(b"\x89PNG")


# ------------------------------------------------------------------------------------------------- names and values


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

    with pytest.raises(BadInput, match="average is the name of one of ours"):
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


# ------------------------------------------------------------------------------------------------ the command line


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
        (("--byzantine", 12), "nobody to measure"),
        (("--byzantine", 3, "--jobs", 0), "at least one job"),
        (("--byzantine", 3, "--resume"), "no tournament to resume"),
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
    assert "1 cells failed, the first being average under silent failed: RuntimeError: no memory left" in err


def test_a_terminal_gets_the_whole_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_standings(large())
    title, heads, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith("made-up, 20 of 100 agents Byzantine: regret at the end, 3 seeds")
    assert heads.split() == ["rule", "no", "attack", "worst", "attack", "value", "vs", "alone", "verdict"]
    assert [line.split()[0] for line in lines if line.strip()] == list(large().panels[0].rules)
