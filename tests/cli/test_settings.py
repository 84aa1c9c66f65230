"""`varangian run` reaches every setting of a study."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from commands import ONE, Said, varangian_

from varangian import studies
from varangian.experiments.spec import catalogue, settings_of


def another(value: Any) -> str:
    """A value of the same kind, as typed."""
    if isinstance(value, bool):
        return str(not value).lower()
    if isinstance(value, tuple):
        return "/".join(str(part / 2) for part in value)
    if isinstance(value, int | float):
        return str(value + 1 if isinstance(value, int) else value / 2 or 0.5)
    words = {"random": "blocked", "same": "next", "next": "same", "adam": "sgd", "synthetic": "kaggle", "wait": "last"}
    return {None: "7", "shortest": "longest", **words}[value]


SETTINGS = [(name, field) for name, study in catalogue(studies).items() for field in settings_of(study())]


@pytest.mark.parametrize(("study", "field"), SETTINGS)
@pytest.mark.parametrize("hyphens", [False, True])
def test_set_reaches_every_setting(study: str, field: str, hyphens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Any] = []
    monkeypatch.setattr("varangian.experiments.config.check", lambda plan: None)
    monkeypatch.setattr("varangian.cli.run._run", lambda plan, *rest: plans.append(plan))
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
    monkeypatch.setattr("varangian.cli.run._run", lambda plan, *rest: plans.append(plan))
    assert varangian_("run", study, "--rounds", rounds).status == 0
    settings = settings_of(plans[0].study)
    assert settings["max_rounds"] == rounds
    assert settings["epochs"] >= (rounds if rounds > 100 else 1), "an epoch has at least one round"


def test_data_says_where_to_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VARANGIAN_DATA", "elsewhere")
    monkeypatch.setattr("varangian.cli.run._run", lambda *rest: None)
    assert varangian_("run", *ONE, "--data", tmp_path).status == 0
    assert os.environ["VARANGIAN_DATA"] == str(tmp_path)
