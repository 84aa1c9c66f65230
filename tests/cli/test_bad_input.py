"""Input that cannot work: one line, status 2, nothing written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from commands import ONE, Said, assert_refused, in_process_of_its_own, varangian_

pytestmark = pytest.mark.usefixtures("no_figures")

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
    "too many Byzantine of fewer": ((*ALL, "--set", "agents=10", "--byzantine", 20), ["20", "10 agents"]),
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
    assert len(list((tmp_path / "run" / ".unfinished").glob("*/cells/alone*.result"))) == 1
