"""Every option of a run survives its way: command line → config.toml → run → "run again" command → fingerprint."""

from __future__ import annotations

import shlex
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import xarray as xr
from commands import ONE, Said, assert_refused, varangian_
from hypothesis import given, settings
from hypothesis import strategies as st

from varangian.engine.options import RunOptions, RunSettings, option_fields, option_table, option_types
from varangian.experiments import cells, config
from varangian.experiments.config import Plan, as_toml, from_toml, plan_for
from varangian.experiments.folder_state import fingerprint
from varangian.experiments.tournament import entries
from varangian.report.command import command_of

ROOT = Path(__file__).parents[2]
VALUES: dict[str, list[Any]] = {
    "device": ["auto", "cpu", "cuda:1"],
    "dtype": ["float32", "float64"],
    "judge_dtype": [None, "bfloat16", "float16"],
    "memory": [None, "64GiB", "1.5 GB"],
    "compile": ["auto", "on", "off"],
}
"""Values of options that take text, of which only some are good."""


def options() -> st.SearchStrategy[RunOptions]:
    """Options with all fields there are; a new field that takes text has to be added to `VALUES`."""
    by_type: dict[type, st.SearchStrategy[Any]] = {bool: st.booleans(), int: st.none() | st.integers(1, 10**6)}
    drawn = {
        name: st.sampled_from(VALUES[name]) if name in VALUES else by_type[kinds[0]]
        for name, kinds in option_types().items()
    }
    return st.builds(RunOptions, **drawn)


@pytest.fixture(scope="module")
def result() -> xr.Dataset:
    return cells.play(plan_for("target-localization", settings={"agents": 12}, rounds=10), CELL, None, False, [])


CELL = cells.Cell("alone", "uniform", 2)


@given(asked=options())
@settings(max_examples=15, deadline=None)
def test_every_option_survives(asked: RunOptions, result: xr.Dataset) -> None:
    given_to_run: list[dict[str, Any]] = []
    plans: list[Plan] = []

    def simulated(study: object, **keywords: Any) -> xr.Dataset:
        given_to_run.append(keywords)
        return result

    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as place:
        patch.setattr(config, "check", lambda plan: None)
        patch.setattr(cells, "simulate", simulated)
        patch.setattr("varangian.report.folder.draw_figures", lambda metrics, folder: [])
        patch.setattr("varangian.report.folder.write_page", lambda runs, path: path.write_text(""))
        folder = Path(place) / "run"
        assert varangian_("run", *ONE, *asked.words, "--out", folder, "-q") == Said(0, "", "")
        text = (folder / "config.toml").read_text()
        stored = from_toml(folder / "config.toml")
        # The file, the run, and the file run again.
        assert RunOptions.of({name: stored[name] for name in option_types() if name in stored}) == asked
        assert [{name: keywords[name] for name in asdict(asked)} for keywords in given_to_run] == [asdict(asked)]
        patch.setattr("varangian.cli.run._run", lambda plan, *rest: plans.append(plan))
        again = command_of(text, "again")
        assert again is not None
        for words in (shlex.split(again)[1:], ["run", folder / "config.toml"]):
            assert varangian_(*words) == Said(0, "", "")
    assert [plan.options for plan in plans] == [asked] * 2
    assert {fingerprint(as_toml(plan)) for plan in plans} == {fingerprint(text)}
    usual = fingerprint(as_toml(replace(plans[0], options=RunOptions())))
    assert (fingerprint(text) == usual) == (not asked.fingerprint)


@given(before=options(), now=options())
@settings(max_examples=15, deadline=None)
def test_what_is_typed_goes_before_the_file(before: RunOptions, now: RunOptions) -> None:
    plans: list[Plan] = []
    plan = plan_for("target-localization", **asdict(before))
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as place:
        patch.setattr(config, "check", lambda plan: None)
        patch.setattr("varangian.cli.run._run", lambda plan, *rest: plans.append(plan))
        file = Path(place) / "plan.toml"
        file.write_text(as_toml(plan))
        assert varangian_("run", file, *now.words, "--out", Path(place) / "run") == Said(0, "", "")
        assert varangian_("run", file, "--no-compile") == Said(0, "", "")
    assert plans[0].options == replace(before, **now.changed)
    assert plans[1].options == replace(before, compile="off")


def test_a_tournament_and_a_reproduction_take_them_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plans: list[Plan] = []
    for module in (config, entries):
        monkeypatch.setattr(module, "check", lambda plan: None)

    def reproduced(plan: Plan, *rest: object) -> xr.Dataset:
        plans.append(plan)
        raise KeyboardInterrupt

    def competed(contest: Any, *rest: object, **how: object) -> None:
        plans.append(contest.plan)
        raise KeyboardInterrupt

    monkeypatch.setattr("varangian.cli.reproduce._reproduced", reproduced)
    monkeypatch.setattr("varangian.report.tournament.compete_into", competed)
    words = ("--judge-dtype", "bfloat16", "--threads", 2, "--dtype", "float64", "--memory", "64GiB")
    asked = RunOptions(judge_dtype="bfloat16", threads=2, dtype="float64", memory="64GiB")
    assert varangian_("reproduce", "target-localization", *words, "--out", tmp_path / "paper").status == 130
    assert varangian_("tournament", "target-localization", *words).status == 130
    assert [plan.options for plan in plans] == [asked] * 2
    assert_refused(varangian_("tournament", "school", "--record-every", 3), ["--record-every"])
    (tmp_path / "plan.toml").write_text('study = "school"\nrecord_every = 3')
    assert_refused(varangian_("tournament", tmp_path / "plan.toml"), ["leave record_every out"])


@pytest.mark.parametrize(
    ("words", "compile"),
    [
        ((), "auto"),
        (("--compile",), "on"),
        (("--compile", "--dtype", "float32"), "on"),
        (("--compile", "auto"), "auto"),
        (("--compile=off",), "off"),
        (("--no-compile",), "off"),
    ],
)
def test_compile_may_have_no_value(words: tuple[str, ...], compile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Plan] = []
    monkeypatch.setattr(config, "check", lambda plan: None)
    monkeypatch.setattr("varangian.cli.run._run", lambda plan, *rest: plans.append(plan))
    assert varangian_("run", *words, "target-localization", "-q") == Said(0, "", "")
    assert plans[0].options == RunOptions(compile=compile)
    assert RunOptions(compile=True) == RunOptions(compile="on") and RunOptions(compile=False) == RunOptions(
        compile="off"
    )


def test_a_run_on_a_cluster_drops_what_only_this_process_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plans: list[Plan] = []
    monkeypatch.setattr(config, "check", lambda plan: None)
    monkeypatch.setattr("varangian.cli.run._run", lambda plan, *rest: plans.append(plan))
    (tmp_path / "plan.toml").write_text('study = "school"\nthreads = 3\ncompile = true')
    assert varangian_("run", tmp_path / "plan.toml", "--engine", "ray") == Said(0, "", "")
    assert plans[0].options == RunOptions()
    said = varangian_("run", tmp_path / "plan.toml", "--engine", "ray", "--compile")
    assert_refused(said, ["--compile works only in this process"])


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("threads = 0", ["threads", "at least 1", "0"]),
        ("threads = true", ["threads", "a whole number", "True"]),
        ('compile = "yes"', ["compile", "'yes'", "auto, off, on"]),
        ("compile = 1", ["compile", "text", "1"]),
        ("memory = 1.5", ["memory", "text", "1.5"]),
        ('memory = "lots"', ["memory", "'lots'"]),
        ('thread = "2"', ["'thread'", "'threads'"]),
    ],
)
def test_bad_options_in_a_file_are_one_line(line: str, parts: list[str], tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(f'study = "target-localization"\n{line}')
    assert_refused(varangian_("run", tmp_path / "plan.toml"), parts)


def test_keywords_are_the_fields() -> None:
    assert list(RunSettings.__annotations__) == [one.name for one in option_fields()]


def test_the_manual_has_the_table() -> None:
    assert option_table() in (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
