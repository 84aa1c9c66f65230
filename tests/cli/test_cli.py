"""The command line: what it promises to write and print, and what it says to input that cannot work."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import varangian
from varangian import attacks, cli, rules, studies
from varangian.experiments.spec import catalogue, settings_of

torch.set_num_threads(1)

SMALL = ("target-localization", "--set", "agents=12", "--rounds", "10")
ONE = (*SMALL, "--rule", "alone", "--byzantine", "2")


@dataclass
class Said:
    status: int
    out: str
    err: str


def varangian_(*args: object) -> Said:
    """Run the command line in this process."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["varangian", *map(str, args)]
    try:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as left:
            cli.main()
    finally:
        sys.argv = before
    code = left.value.code
    assert code is None or isinstance(code, int)
    return Said(code or 0, out.getvalue(), err.getvalue())


def in_process_of_its_own(*args: object, **environment: str) -> Said:
    command = [sys.executable, "-m", "varangian", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """`--data` sets a variable of the environment; put it back."""
    before = os.environ.get("VARANGIAN_DATA")
    yield
    os.environ.pop("VARANGIAN_DATA", None)
    if before is not None:
        os.environ["VARANGIAN_DATA"] = before


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take longer than everything else and have tests of their own."""
    monkeypatch.setattr("varangian.report.folder.draw_figures", lambda metrics, folder: [])


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "summary.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def assert_same_bits(one: Path, other: Path) -> None:
    a, b = varangian.load(one / "metrics.nc"), varangian.load(other / "metrics.nc")
    assert list(a.variables) == list(b.variables)
    assert a.attrs == b.attrs
    for name in a.variables:
        if name != "seconds":
            assert a[name].dtype == b[name].dtype
            assert a[name].dims == b[name].dims
            np.testing.assert_array_equal(a[name].values, b[name].values, err_msg=str(name))
    without_seconds = [[{**row, "seconds": ""} for row in rows_of(folder)] for folder in (one, other)]
    assert without_seconds[0] == without_seconds[1]


# ---------------------------------------------------------------------------------------------------- a run folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Said]:
    folder = tmp_path_factory.mktemp("runs") / "first"
    swept = ("--rule", "alone", "--rule", "loss-based:keep=all", "--attack", "uniform", "--attack", "silent")
    said = varangian_("run", *SMALL, *swept, "--byzantine", 0, "--byzantine", 3, "--seeds", 2, "--out", folder)
    return folder, said


def test_a_run_writes_what_is_promised(run: tuple[Path, Said]) -> None:
    folder, said = run
    assert said.status == 0, said.err
    found = {path.name for path in folder.iterdir()}
    assert found == {"config.toml", "metrics.nc", "summary.csv", "figures", "report.html"}
    pictures = list((folder / "figures").glob("*.png"))
    assert {"regret", "network"} <= {path.stem for path in pictures}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    assert {path.stem for path in (folder / "figures").glob("*.pdf")} == {path.stem for path in pictures}
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert '<script type="application/json" id="data">' in page
    assert "loss-based:keep=all" in page and "3 Byzantine: silent" in page
    assert not re.search(r'(src|href)="(?!data:)', page), "the page must be readable offline"


def test_the_summary_has_the_promised_columns_in_order(run: tuple[Path, Said]) -> None:
    columns = list(rows_of(run[0])[0])
    promised = ["study", "rule", "attack", "byzantine", "seed", "rounds", "seconds"]
    assert columns[:7] == promised
    metrics = columns[7 : columns.index("byzantine_weight")]
    assert metrics == [f"{name}_{what}" for name in ("loss", "regret", "msd") for what in ("mean", "worst")]
    assert columns[len(promised) + len(metrics) :] == ["byzantine_weight", "kept"]


def test_the_summary_has_one_row_for_every_combination(run: tuple[Path, Said]) -> None:
    rows = rows_of(run[0])
    found = [(row["rule"], row["attack"], row["byzantine"], row["seed"]) for row in rows]
    asked = {
        (r, a, b, s)
        for r in ("alone", "loss-based:keep=all")
        for a in ("uniform", "silent")
        for b in "03"
        for s in "01"
    }
    assert set(found) == asked
    assert len(found) == len(asked)
    assert all((row["study"], row["rounds"]) == ("target-localization", "10") for row in rows)
    assert all(float(row["seconds"]) > 0 for row in rows)


def test_the_summary_tells_what_the_metrics_hold(run: tuple[Path, Said]) -> None:
    metrics = varangian.load(run[0] / "metrics.nc")
    for row in rows_of(run[0]):
        cell = np.flatnonzero(
            (metrics["rule"] == row["rule"])
            & (metrics["attack"] == row["attack"])
            & (metrics["byzantine"] == int(row["byzantine"]))
        )
        assert len(cell) == 1
        own = metrics.isel(cell=cell[0]).sel(seed=int(row["seed"]))
        normal = ~own["byzantine_agent"].values
        assert (~normal).sum() == int(row["byzantine"])
        last_fifth = own["regret"].values[-2:].astype(float).mean(0)[normal]
        assert float(row["regret_mean"]) == pytest.approx(last_fifth.mean(), rel=1e-5)
        assert float(row["regret_worst"]) == pytest.approx(last_fifth.max(), rel=1e-5)
        weight = own["byzantine_weight"].values[-2:].astype(float).mean(0)[normal].mean()
        assert float(row["byzantine_weight"]) == pytest.approx(weight, abs=1e-7)


def test_without_byzantine_agents_all_attacks_are_alike(run: tuple[Path, Said]) -> None:
    rows = [row for row in rows_of(run[0]) if row["byzantine"] == "0"]
    by_attack = [[{**row, "attack": ""} for row in rows if row["attack"] == attack] for attack in ("uniform", "silent")]
    assert len(by_attack[0]) == 4
    assert by_attack[0] == by_attack[1]


def test_a_run_prints_its_table_and_where_it_is(run: tuple[Path, Said]) -> None:
    folder, said = run
    assert str(folder) in said.out
    lines = {line.split("│")[1].strip(): line for line in said.out.splitlines() if line.startswith("│")}
    assert lines.keys() == {"alone", "loss-based:keep=all"}
    assert all(line.count("±") == 3 for line in lines.values()), "no attack, 3 uniform, 3 silent: each once"
    assert len(said.err.splitlines()) == 8, "a line of progress a cell"


def test_the_error_of_the_mean_counts_each_seed_once(run: tuple[Path, Said]) -> None:
    values = [
        float(row["regret_mean"])
        for row in rows_of(run[0])
        if (row["rule"], row["attack"], row["byzantine"]) == ("alone", "uniform", "0")
    ]
    error = abs(values[0] - values[1]) / 2  # of two: standard deviation over √2
    line = next(line for line in run[1].out.splitlines() if "alone" in line)
    assert f"± {error:.2g} " in line.split("│")[2]


@pytest.mark.usefixtures("no_figures")
def test_its_configuration_gives_the_same_bits_again(run: tuple[Path, Said], tmp_path: Path) -> None:
    folder, _ = run
    said = varangian_("run", folder / "config.toml", "--out", tmp_path / "again")
    assert said.status == 0, said.err
    assert_same_bits(folder, tmp_path / "again")
    assert (tmp_path / "again" / "config.toml").read_text() == (folder / "config.toml").read_text()


@pytest.mark.usefixtures("no_figures")
def test_options_go_before_the_configuration(run: tuple[Path, Said], tmp_path: Path) -> None:
    changed = ("--rule", "average", "--byzantine", "2,5", "--rounds", 4, "--set", "agents=9", "--seeds", 1)
    said = varangian_("run", run[0] / "config.toml", *changed, "--dtype", "float64", "--out", tmp_path / "other")
    assert said.status == 0, said.err
    found = varangian.load(tmp_path / "other" / "metrics.nc")
    assert dict(found.sizes) | {"cell": 2, "agent": 9, "round": 4, "seed": 1} == dict(found.sizes)
    assert set(found["rule"].values) == {"average"} and set(found["attack"].values) == {"uniform", "silent"}
    assert np.flatnonzero(found["byzantine_agent"].isel(cell=0, seed=0)).tolist() == [2, 5]
    assert found["regret"].dtype == np.float64


@pytest.mark.usefixtures("no_figures")
def test_a_folder_of_an_earlier_run_keeps_nothing_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert varangian_("run", *ONE, "--out", folder).status == 0
    (folder / "figures").mkdir(exist_ok=True)
    (folder / "figures" / "accuracy-group-0.png").write_bytes(b"old")
    (folder / "notes.txt").write_text("mine")
    assert varangian_("run", *ONE, "--rule", "average", "--out", folder).status == 0
    assert {row["rule"] for row in rows_of(folder)} == {"alone", "average"}
    assert not list((folder / "figures").iterdir())
    assert (folder / "notes.txt").read_text() == "mine"


@pytest.mark.usefixtures("no_figures")
def test_quiet_prints_nothing(tmp_path: Path) -> None:
    assert varangian_("run", *ONE, "--out", tmp_path / "run", "--quiet") == Said(0, "", "")
    assert varangian_("run", *ONE, "-q") == Said(0, "", "")
    assert (tmp_path / "run" / "summary.csv").exists()


def test_without_out_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = varangian_("run", *ONE)
    assert said.status == 0
    assert "2 Byzantine: uniform" in said.out
    assert not list(tmp_path.iterdir())


def test_everyone_may_be_byzantine(tmp_path: Path) -> None:
    said = varangian_("run", *SMALL, "--rule", "alone", "--byzantine", 12, "--seeds", 2, "--out", tmp_path / "run")
    assert said.status == 0, said.err
    assert [row["regret_mean"] for row in rows_of(tmp_path / "run")] == ["nan", "nan"]


@pytest.mark.usefixtures("no_figures")
def test_names_and_combinations_asked_for_twice_run_once(tmp_path: Path) -> None:
    twice = (
        "--rule",
        "loss_based",
        "--rule",
        "loss-based",
        "--byzantine",
        2,
        "--byzantine",
        2,
        "--attack",
        "sign_flip",
    )
    said = varangian_("run", *SMALL, *twice, "--attack", "sign-flip", "--out", tmp_path / "run")
    assert said.status == 0, said.err
    assert [(row["rule"], row["attack"]) for row in rows_of(tmp_path / "run")] == [("loss-based", "sign-flip")]


# ------------------------------------------------------------------------------------------------ settings reach


def another(value: Any) -> str:
    """A value of the same kind, as typed."""
    if isinstance(value, bool):
        return str(not value).lower()
    if isinstance(value, tuple):
        return "/".join(str(part / 2) for part in value)
    if isinstance(value, int | float):
        return str(value + 1 if isinstance(value, int) else value / 2)
    words = {"random": "blocked", "same": "next", "next": "same", "adam": "sgd", "synthetic": "kaggle"}
    return {None: "7", "shortest": "longest", **words}[value]


SETTINGS = [(name, field) for name, study in catalogue(studies).items() for field in settings_of(study())]


@pytest.mark.parametrize(("study", "field"), SETTINGS)
@pytest.mark.parametrize("hyphens", [False, True])
def test_set_reaches_every_setting(study: str, field: str, hyphens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Any] = []
    monkeypatch.setattr("varangian.experiments.config.check", lambda plan: None)
    monkeypatch.setattr("varangian.cli._run", lambda plan, *rest: plans.append(plan))
    usual = settings_of(catalogue(studies)[study]())
    text = another(usual[field])
    said = varangian_("run", study, "--set", f"{field.replace('_', '-') if hyphens else field}={text}")
    assert said == Said(0, "", "")
    after = settings_of(plans[0].study)
    value = after.pop(field)
    assert value != usual.pop(field)
    assert after == usual
    assert ("/".join(map(str, value)) if isinstance(value, tuple) else str(value)) == text


@pytest.mark.parametrize("study", ["human-activity", "school", "digits"])
@pytest.mark.parametrize("rounds", [3, 10**6])
def test_rounds_are_never_cut_short_by_epochs(study: str, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Any] = []
    monkeypatch.setattr("varangian.experiments.config.check", lambda plan: None)
    monkeypatch.setattr("varangian.cli._run", lambda plan, *rest: plans.append(plan))
    assert varangian_("run", study, "--rounds", rounds).status == 0
    settings = settings_of(plans[0].study)
    assert settings["max_rounds"] == rounds
    assert settings["epochs"] >= (rounds if rounds > 100 else 1), "an epoch has at least one round"


def test_data_says_where_to_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VARANGIAN_DATA", "elsewhere")
    monkeypatch.setattr("varangian.cli._run", lambda *rest: None)
    assert varangian_("run", *ONE, "--data", tmp_path).status == 0
    assert os.environ["VARANGIAN_DATA"] == str(tmp_path)


# ------------------------------------------------------------------------------------------- interrupt and resume

STOPPING = """
import sys, time
import varangian.engine.recorder, varangian.experiments.sweep
from varangian.cli import main

calls = 0

def stopping(inner):
    def wrapped(*args):
        global calls
        calls += 1
        if calls == 25:
            print("now", flush=True)
            time.sleep(60)
        return inner(*args)
    return wrapped

if sys.argv.pop(1) == "between":
    varangian.experiments.sweep.SeedsProgress.round = stopping(varangian.experiments.sweep.SeedsProgress.round)
else:
    varangian.engine.recorder.measure = stopping(varangian.engine.recorder.measure)
main()
"""
RESUMED = (*SMALL, "--rounds", 20, "--rule", "average", "--rule", "loss-based", "--byzantine", 3, "--seeds", 2)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
    "when",
    [
        "between",
        "within",
    ],
)
def test_an_interrupted_run_goes_on_to_the_same_bits(when: str, tmp_path: Path) -> None:
    """Interrupted by a signal from outside, between two rounds of the second cell or while one is recorded."""
    folder = tmp_path / "a folder"
    command = [sys.executable, "-c", STOPPING, when, "run", *map(str, RESUMED), "--out", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    *_, last = err.splitlines()
    assert last == f"varangian: interrupted; go on with: varangian run '{folder}/config.toml' --resume --out '{folder}'"
    assert [path for path in folder.rglob("*") if path.suffix == ".checkpoint"]
    assert len([path for path in folder.rglob("*.nc") if path.parent.name == ".unfinished"]) == 1
    assert not (folder / "summary.csv").exists()
    resumed = varangian_("run", folder / "config.toml", "--resume", "--out", folder)
    assert resumed.status == 0, resumed.err
    assert {path.name for path in folder.iterdir()} == {"config.toml", "metrics.nc", "summary.csv", "report.html"}
    assert varangian_("run", *RESUMED, "--out", tmp_path / "whole").status == 0
    assert_same_bits(folder, tmp_path / "whole")


@pytest.mark.parametrize("stage", ["varangian.experiments.sweep.simulate", "varangian.report.folder.write_folder"])
def test_an_interrupt_at_any_stage_says_how_to_go_on(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stage, interrupted)
    data = tmp_path / "data"
    said = varangian_("run", *ONE, "--out", tmp_path / "run", "--data", data, "-q")
    assert said.status == 130
    again = f"varangian run {tmp_path}/run/config.toml --resume --out {tmp_path}/run --data {data}"
    assert said.err == f"varangian: interrupted; go on with: {again}\n"
    if stage == "varangian.experiments.sweep.simulate":
        assert varangian_("run", *ONE, "-q") == Said(130, "", "varangian: interrupted\n")


# -------------------------------------------------------------------------------------- what there is, help, version


@pytest.mark.parametrize(("command", "room"), [("rules", rules), ("attacks", attacks), ("studies", studies)])
def test_listings_name_everything_in_one_line_each(command: str, room: Any) -> None:
    names = sorted(catalogue(room))
    assert {"rules": 4, "attacks": 9, "studies": 4}[command] <= len(names)
    plain = varangian_(command)
    assert (plain.status, plain.err) == (0, "")
    told = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in plain.out.splitlines())
    assert list(told) == names
    as_json = varangian_(command, "--json")
    assert (as_json.status, as_json.err) == (0, "")
    assert json.loads(as_json.out) == [{"name": name, "description": told[name]} for name in names]
    assert all(len(text) > 20 and "\n" not in text for text in told.values())


def test_listings_on_a_terminal_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Square brackets are rich's markup: U[low, high] once came out as U."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setenv("COLUMNS", "200")
    with redirect_stdout(screen):
        cli.attacks()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
    assert "U[low, high]" in plain
    assert all(name in plain for name in catalogue(attacks))


@pytest.mark.parametrize("args", [("--version",), ("--help",), ("run", "--help"), ("-h",)])
def test_help_and_version_do_not_wait_for_torch(args: Sequence[str]) -> None:
    code = """
import sys
from varangian.cli import main
try:
    main()
finally:
    heavy = {"torch", "xarray", "matplotlib", "scipy", "networkx", "pandas"} & sys.modules.keys()
    print("LOADED", *heavy)
"""
    command = [sys.executable, "-c", code, *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "COLUMNS": "160"})
    *shown, loaded = done.stdout.splitlines()
    assert (done.returncode, done.stderr, loaded) == (0, "", "LOADED")
    if args == ("--version",):
        assert shown == [f"varangian {varangian.__version__}"]
    elif args == ("run", "--help"):
        promised = ["rule", "attack", "byzantine", "seeds", "rounds", "set", "device", "out", "quiet", "resume"]
        assert all(f"--{option}" in done.stdout for option in promised)
    else:
        assert all(name in done.stdout for name in ("run", "rules", "attacks", "studies", "data"))


def test_no_arguments_show_the_help_and_nothing_else() -> None:
    said = varangian_()
    assert said.status == 2
    assert "Usage" in said.out + said.err
    assert "varangian:" not in said.err


# --------------------------------------------------------------------------------------------------- bad input

ALL = ("run", "target-localization")

BAD: dict[str, tuple[Sequence[object], Sequence[str]]] = {
    "rule": ((*ALL, "--rule", "los-based"), ["rule 'los-based'", "'loss-based'"]),
    "second rule": ((*ALL, "--rule", "alone", "--rule", "averag"), ["rule 'averag'", "'average'"]),
    "attack": ((*ALL, "--attack", "unifrom"), ["attack 'unifrom'", "'uniform'"]),
    "nested attack": ((*ALL, "--attack", "sleeper:then=gausian"), ["'gausian'", "'gaussian'"]),
    "study": (("run", "target-localisation"), ["study 'target-localisation'", "'target-localization'"]),
    "option": ((*ALL, "--rul", "alone"), ["--rul", "--rule"]),
    "command": (("runn",), ["'runn'", "'run'"]),
    "no study": (("run",), ["STUDY|FILE.toml"]),
    "two studies": ((*ALL, "school"), ["school"]),
    "setting": ((*ALL, "--set", "agent=10"), ["'agent'", "'agents'"]),
    "rule parameter": ((*ALL, "--rule", "loss-based:smothing=0.1"), ["'smothing'", "'smoothing'", "loss-based"]),
    "rule parameter's value": ((*ALL, "--rule", "loss-based:keep=al"), ["keep", "'al'", "'all'"]),
    "rule parameter twice": ((*ALL, "--rule", "loss-based:keep=all,keep=all"), ["keep", "twice"]),
    "rule parameter without value": ((*ALL, "--rule", "loss-based:keep"), ["'keep'", "parameter=value"]),
    "rule parameter of another type": ((*ALL, "--rule", "loss-based:start=no"), ["start", "a number", "'no'"]),
    "attack parameter": ((*ALL, "--attack", "uniform:hihg=1"), ["'hihg'", "'high'"]),
    "attack of bad values": ((*ALL, "--attack", "uniform:low=2,high=1"), ["low ≤ high"]),
    "attack in the wrong dimension": ((*ALL, "--attack", "pulling:point=1/2/3"), ["3 coordinates", "2"]),
    "nested attack in the wrong dimension": ((*ALL, "--attack", "sleeper:then=pulling:point=1/2/3"), ["3 coordinates"]),
    "too many Byzantine": ((*ALL, "--byzantine", 101), ["101", "100 agents"]),
    "too many Byzantine of fewer": ((*ALL, "--set", "agents=10"), ["20", "10 agents"]),
    "negative Byzantine": ((*ALL, "--byzantine", -1), ["-1"]),
    "Byzantine share": ((*ALL, "--byzantine", 1.5), ["1.5", "share"]),
    "Byzantine agent that is not": ((*ALL, "--byzantine", "3,100"), ["100", "99"]),
    "Byzantine words": ((*ALL, "--byzantine", "many"), ["'many'"]),
    "Byzantine not a number": ((*ALL, "--byzantine", "nan"), ["nan"]),
    "Byzantine lists alike": ((*ALL, "--byzantine", "1,2", "--byzantine", "3,4"), ["[1, 2]", "[3, 4]", "2 agents"]),
    "Byzantine share alike": ((*ALL, "--byzantine", "20", "--byzantine", "0.2"), ["20 and 0.2"]),
    "negative step size": ((*ALL, "--set", "step_size=-0.1"), ["step_size", "-0.1"]),
    "step size not a number": ((*ALL, "--set", "step_size=nan"), ["step_size", "nan"]),
    "ν of 0": ((*ALL, "--set", "forgetting=0"), ["(0, 1]", "0.0"]),
    "ν above 1": ((*ALL, "--set", "forgetting=1.01"), ["(0, 1]", "1.01"]),
    "ν of 0 in a rule": ((*ALL, "--rule", "loss-based:smoothing=0"), ["(0, 1]", "0.0"]),
    "ν above 1 in a rule": ((*ALL, "--rule", "distance-based:smoothing=2"), ["(0, 1]", "2.0"]),
    "no rounds": ((*ALL, "--rounds", 0), ["rounds", "0"]),
    "negative rounds": ((*ALL, "--rounds", -5), ["rounds", "-5"]),
    "no rounds, as a setting": ((*ALL, "--set", "rounds=0"), ["rounds", "0"]),
    "no rounds of a study with epochs": (("run", "school", "--set", "max_rounds=0"), ["rounds", "0"]),
    "rounds in words": ((*ALL, "--rounds", "ten"), ["--rounds", "integer"]),
    "no seeds": ((*ALL, "--seeds", 0), ["seed", "0"]),
    "negative seeds": ((*ALL, "--seeds", -1), ["seed", "-1"]),
    "no agents": ((*ALL, "--set", "agents=0", "--byzantine", 0), ["agent", "0"]),
    "part of an agent": ((*ALL, "--set", "agents=10.5"), ["agents", "a whole number", "'10.5'"]),
    "setting without value": ((*ALL, "--set", "agents"), ["--set", "key=value", "'agents'"]),
    "setting of an empty value": ((*ALL, "--set", "agents="), ["agents", "a whole number"]),
    "setting without name": ((*ALL, "--set", "=3"), ["''"]),
    "setting of too many numbers": ((*ALL, "--set", "direction_noise=1/2/3"), ["direction_noise", "2 numbers"]),
    "device": ((*ALL, "--device", "gpuu"), ["device 'gpuu'"]),
    "dtype": ((*ALL, "--dtype", "float16"), ["dtype 'float16'", "float32"]),
    "no such file": (("run", "missing.toml"), ["missing.toml", "No such file"]),
    "resume without a folder": ((*ALL, "--resume"), ["--resume", "--out"]),
    "resume what is not there": ((*ALL, "--resume"), ["--resume"]),
    "dataset": (("data", "get", "unheard-of"), ["dataset 'unheard-of'"]),
}


def assert_refused(said: Said, parts: Sequence[str]) -> None:
    assert said.status == 2
    assert said.out == ""
    assert said.err.endswith("\n")
    (line,) = said.err.splitlines()
    assert "Traceback" not in line
    for part in parts:
        assert part in line


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_writes_nothing(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    args, parts = BAD[case]
    out = ("--out", "made/run") if args[0] == "run" and case != "resume without a folder" else ()
    assert_refused(varangian_(*args, *out), parts)
    assert not list(tmp_path.iterdir())


BAD_FILES: dict[str, tuple[str, Sequence[str]]] = {
    "malformed": ("study = ", ["plan.toml", "not a configuration file"]),
    "not text": ("\udcff\udcfe", ["plan.toml", "not a configuration file"]),
    "empty": ("", ["plan.toml", "study"]),
    "unknown key": ('study = "target-localization"\nrulez = ["alone"]', ["plan.toml", "'rulez'", "'rules'"]),
    "unknown study": ('study = "schol"', ["'schol'", "'school'"]),
    "unknown setting": ('study = "target-localization"\n[settings]\nagent = 3', ["'agent'", "'agents'"]),
    "unknown rule": ('study = "target-localization"\nrules = ["alon"]', ["'alon'", "'alone'"]),
    "rules in words": ('study = "target-localization"\nrules = "alone"', ["plan.toml", "rules", "list"]),
    "rules as numbers": ('study = "target-localization"\nrules = [1]', ["plan.toml", "rules", "1"]),
    "seeds in words": ('study = "target-localization"\nseeds = "two"', ["plan.toml", "seeds", "'two'"]),
    "seeds as truth": ('study = "target-localization"\nseeds = true', ["plan.toml", "seeds", "True"]),
    "no seeds": ('study = "target-localization"\nseeds = 0', ["seed", "0"]),
    "no rounds": ('study = "target-localization"\nrounds = 0', ["rounds", "0"]),
    "settings as a list": ('study = "target-localization"\nsettings = [1]', ["plan.toml", "settings", "[1]"]),
    "setting in words": ('study = "target-localization"\n[settings]\nagents = "many"', ["agents", "'many'"]),
    "setting as a list": ('study = "target-localization"\n[settings]\nagents = [3]', ["agents", "[3]"]),
    "setting as a table": ('study = "target-localization"\n[settings.agents]\nx = 1', ["agents", "{'x': 1}"]),
    "setting as a date": ('study = "target-localization"\n[settings]\nradius = 2024-01-01', ["radius", "a number"]),
    "setting as truth": ('study = "target-localization"\n[settings]\nradius = true', ["radius", "True"]),
    "numbers in words": ('study = "target-localization"\n[settings]\ndirection_noise = [0, "x"]', ["direction_noise"]),
    "byzantine not in a list": ('study = "target-localization"\nbyzantine = 3', ["plan.toml", "byzantine", "list"]),
    "byzantine as truth": ('study = "target-localization"\nbyzantine = [true]', ["byzantine", "True"]),
    "byzantine not a number": ('study = "target-localization"\nbyzantine = [nan]', ["byzantine", "nan"]),
    "byzantine infinite": ('study = "target-localization"\nbyzantine = [inf]', ["byzantine", "inf"]),
    "byzantine parts of agents": ('study = "target-localization"\nbyzantine = [[1.5]]', ["byzantine", "[1.5]"]),
    "byzantine too deep": ('study = "target-localization"\nbyzantine = [[[1]]]', ["byzantine", "[[1]]"]),
    "device as number": ('study = "target-localization"\ndevice = 0', ["plan.toml", "device", "0"]),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_configuration_is_one_line_and_writes_nothing(case: str, tmp_path: Path) -> None:
    text, parts = BAD_FILES[case]
    file = tmp_path / "plan.toml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    assert_refused(varangian_("run", file, "--out", tmp_path / "run"), parts)
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_is_no_configuration(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    assert_refused(varangian_("run", tmp_path / "folder.toml"), ["folder.toml", "cannot be read"])


def test_only_an_empty_folder_or_a_run_is_written_to(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "thesis.tex").write_text("years")
    assert_refused(varangian_("run", *ONE, "--out", taken), [str(taken), "not empty"])
    (taken / "config.toml").write_text('[tool]\nname = "another program"')
    assert_refused(varangian_("run", *ONE, "--out", taken), [str(taken), "not empty"])
    assert {path.name for path in taken.iterdir()} == {"thesis.tex", "config.toml"}
    assert (taken / "config.toml").read_text() == '[tool]\nname = "another program"'


def test_a_file_is_no_run_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    assert_refused(varangian_("run", *ONE, "--out", file), [str(file), "is a file"])
    assert_refused(varangian_("run", *ONE, "--out", file / "sub"), [str(file / "sub"), "cannot be written to"])
    assert_refused(varangian_("run", *ONE, "--out", tmp_path / ("x" * 300)), ["cannot be written to", "too long"])
    assert file.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_refused(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    assert_refused(varangian_("run", *ONE, "--out", closed), [str(closed), "Permission denied"])
    assert_refused(varangian_("run", *ONE, "--out", closed / "sub"), [str(closed), "Permission denied"])
    assert not list(closed.iterdir())


def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root everything may be written to; so the system's answer is put into its mouth."""
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK)
    (tmp_path / "closed").mkdir()
    assert_refused(varangian_("run", *ONE, "--out", tmp_path / "closed"), ["closed", "Permission denied"])
    assert not list((tmp_path / "closed").iterdir())


@pytest.mark.usefixtures("no_figures")
def test_only_the_same_plan_is_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert_refused(varangian_("run", *ONE, "--resume", "--out", folder), [str(folder), "no run"])
    assert not folder.exists()
    assert varangian_("run", *ONE, "--out", folder, "-q").status == 0
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    other = varangian_("run", *ONE, "--set", "radius=2", "--resume", "--out", folder)
    assert_refused(other, [str(folder / "config.toml"), "another plan"])
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert varangian_("run", *ONE, "--resume", "--out", folder, "-q") == Said(0, "", "")


def test_missing_data_is_one_line_that_says_how_to_get_it(tmp_path: Path) -> None:
    data, cache, out = tmp_path / "data", tmp_path / "cache", tmp_path / "run"
    data.mkdir()
    places = {"VARANGIAN_DATA": str(data), "XDG_CACHE_HOME": str(cache), "HOME": str(tmp_path)}
    said = in_process_of_its_own("run", "human-activity", "--out", out, **places)
    assert_refused(said, ["human-activity", "https://archive.ics.uci.edu/dataset/240", str(data)])
    assert not out.exists()
    assert not list(data.iterdir())


def test_bad_input_in_a_process_of_its_own(tmp_path: Path) -> None:
    said = in_process_of_its_own("run", "target-localization", "--rule", "los-based", "--out", tmp_path / "run")
    assert_refused(said, ["'los-based'", "'loss-based'"])
    assert not list(tmp_path.iterdir())


def test_metrics_open_with_plain_xarray(run: tuple[Path, Said]) -> None:
    with xr.open_dataset(run[0] / "metrics.nc") as metrics:
        assert metrics["regret"].dims == ("cell", "seed", "round", "agent")
        assert metrics.attrs["study"] == "target-localization"


@pytest.mark.usefixtures("no_figures")
def test_a_full_disk_is_one_line_and_what_was_finished_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, really = [], Path.write_bytes

    def until_full(path: Path, data: bytes) -> int:
        if written:
            raise OSError(28, "No space left on device", str(path))
        written.append(path)
        return really(path, data)

    monkeypatch.setattr(Path, "write_bytes", until_full)
    said = varangian_("run", *ONE, "--rule", "average", "--out", tmp_path / "run")
    assert said.status == 1
    assert "No space left" in said.err.splitlines()[-1] and "--resume" in said.err.splitlines()[-1]
    assert len(list((tmp_path / "run" / ".unfinished").glob("alone*.nc"))) == 1
