"""`compare`: every combination in one call, with the same numbers as `simulate`, and everything made from them."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from commands import varangian_
from matplotlib.figure import Figure
from small_tasks import softmax
from torch import nn
from torch.nn.functional import cross_entropy

import varangian as vg
from varangian import BadInput, Comparison, Graph, Task, attacks, rules, studies
from varangian.experiments import groups as groups_module

RULES = [rules.alone(), "average", rules.loss_based(keep="all")]
ATTACKS = [attacks.sign_flip(), "silent"]
ASKED: dict[str, Any] = {"rules": RULES, "attacks": ATTACKS, "byzantine": [0, 3], "seeds": 3, "rounds": 12}


def drawn(seed: int) -> Task:
    draw = torch.Generator().manual_seed(seed)
    x, y = torch.randn(6, 12, 3, generator=draw), torch.randint(2, (6, 12), generator=draw)
    torch.manual_seed(seed)
    return Task.supervised(nn.Linear(3, 2), cross_entropy, list(zip(x, y, strict=True)), batch=3)


@pytest.fixture(scope="module")
def found() -> Comparison:
    return vg.compare(softmax(), Graph.ring(14), name="fourteen agents", **ASKED)


def test_every_array_has_the_labels_as_dimensions(found: Comparison) -> None:
    assert found["accuracy"].dims == ("rule", "attack", "byzantine", "seed", "epoch", "agent")
    assert found["loss"].sizes["round"] == 12
    assert found["rule"].values.tolist() == ["alone", "average", "loss-based:keep=all"]
    assert found["attack"].values.tolist() == ["sign-flip", "silent"]
    assert found["byzantine"].values.tolist() == [0, 3]
    assert found["seed"].values.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("place", "rule"), [(0, rules.alone()), (1, rules.average()), (2, rules.loss_based(keep="all"))]
)
def test_the_numbers_are_those_of_simulate(found: Comparison, place: int, rule: Any) -> None:
    run: dict[str, Any] = {"attack": attacks.sign_flip(), "byzantine": 3, "seeds": 3, "rounds": 12}
    alone = vg.simulate(softmax(), Graph.ring(14), rule=rule, **run)
    here = found.data.isel(rule=place).sel(attack="sign-flip", byzantine=3)
    for name in ("loss", "accuracy", "test_loss"):
        np.testing.assert_array_equal(here[name].transpose(*alone[name].dims), alone[name])
    name = found.plan.rules[place]
    assert torch.equal(found.models(name, seed=2).rows, alone.models_of(2).rows)
    assert torch.equal(found.module(4, name, "sign-flip", 3, 2).weight, alone.module(4, 2).weight)


def test_the_summary_has_mean_and_standard_error(found: Comparison) -> None:
    table = found.summary()
    assert len(table) == 9  # without Byzantine agents, all attacks coincide
    row = table.query("rule == 'average' and attack == 'silent' and byzantine == 3").iloc[0]
    ends = found.final("accuracy").sel(rule="average", attack="silent", byzantine=3).mean("agent").values
    assert row["mean"] == pytest.approx(ends.mean())
    assert row["error"] == pytest.approx(ends.std(ddof=1) / np.sqrt(3))
    alone = found.final("accuracy").sel(rule="alone", attack="silent", byzantine=3).mean("agent").values
    assert row["gain"] == pytest.approx((ends - alone).mean())
    assert set(found.summary("test_loss")["metric"]) == {"test_loss"}
    with pytest.raises(BadInput, match="did you mean 'accuracy'"):
        found.summary("acuracy")


def test_what_seeds_change_is_said(found: Comparison, tmp_path: Path) -> None:
    assert "One fixed task" in found.summary().attrs["seeds_change"]
    assert "One fixed task" in found.table()
    assert "One fixed task" in found.report(tmp_path / "page.html").read_text(encoding="utf-8")
    other = vg.compare(drawn, rules=["alone"], seeds=2, rounds=3)
    assert "drawn anew" in other.table()
    assert other.plan.study.name == "drawn"
    one = vg.compare(softmax(), rules=["alone"], rounds=3)
    assert "fixed" not in one.table() and "±" not in one.table()


def test_a_function_of_the_seed_is_asked_for_every_seed() -> None:
    found = vg.compare(drawn, rules=[rules.alone()], seeds=2, rounds=4)
    for seed in (0, 1):
        alone = vg.simulate(drawn(seed), rule=rules.alone(), seeds=[seed], rounds=4)
        np.testing.assert_array_equal(found["loss"].sel(seed=seed).values.ravel(), alone["loss"].values.ravel())


def test_figures_are_matplotlib_figures(found: Comparison) -> None:
    figure = found.plot()
    assert isinstance(figure, Figure)
    assert [ax.get_title() for ax in figure.axes].count("3 Byzantine: silent") == 1
    assert figure.axes[0].get_ylabel() == "Accuracy"
    assert isinstance(found.plot("loss"), Figure)
    assert isinstance(found.plot_network(), Figure)


def test_tables_for_papers(found: Comparison) -> None:
    latex = found.table("latex")
    assert latex.count("\\\\\n") == 4 and r"\toprule" in latex and latex.count(r"\textbf{") == 3
    assert r"$\pm$" in latex and "±" not in latex and "_" not in latex.replace(r"\_", "")
    markdown = found.table("markdown").splitlines()
    assert markdown[3] == "|---|---:|---:|---:|" and sum(line.count("**") for line in markdown) == 6
    lines = found.table("text", metric="test_loss").splitlines()
    assert "test loss at the end" in lines[0]
    assert str(found) == found.table()
    assert found._repr_html_().count("<tr>") == 4
    with pytest.raises(BadInput, match="did you mean 'latex'"):
        found.table("latx")  # type: ignore[arg-type]


def test_a_saved_folder_is_one_that_the_command_line_opens(
    found: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = found.save(tmp_path / "saved")
    said = varangian_("report", folder)
    assert said.status == 0, said.err
    with (folder / "summary.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * 2 * 2 * 3
    assert rows[0]["study"] == "fourteen agents"
    assert (folder / "figures" / "accuracy.png").exists()
    xr.testing.assert_identical(vg.load(folder / "metrics.nc"), found.metrics)
    name = next((folder / "models").glob("average__3_Byzantine__silent*seed-1*"))
    assert torch.equal(vg.AgentModels.load(name).rows, found.models("average", "silent", 3, 1).rows)
    with pytest.raises(BadInput, match="holds this run, finished"):
        found.save(folder)
    monkeypatch.setattr("varangian.report.folder.draw_figures", lambda metrics, folder: [])
    found.save(folder, overwrite=True)
    said = varangian_("run", folder / "config.toml")
    assert said.status == 2 and "unknown study 'fourteen agents'" in said.err


def test_a_report_that_cannot_be_written_is_one_line(found: Comparison, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is a folder"):
        found.report(tmp_path)


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    played: list[object] = []
    inner = groups_module.play

    def stopped(plan: Any, cell: Any, *rest: Any) -> Any:
        if len(played) == 4:
            raise KeyboardInterrupt
        played.append(cell)
        return inner(plan, cell, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups_module, "play", stopped)
        with pytest.raises(KeyboardInterrupt):
            vg.compare(softmax(), Graph.ring(14), folder=tmp_path / "run", **ASKED)
    return tmp_path / "run"


@pytest.mark.usefixtures("no_figures")
def test_a_comparison_goes_on_after_an_interrupt(interrupted: Path, found: Comparison) -> None:
    resumed = vg.compare(softmax(), Graph.ring(14), folder=interrupted, resume=True, **ASKED)
    xr.testing.assert_equal(resumed.metrics.drop_vars("seconds"), found.metrics.drop_vars("seconds"))
    assert torch.equal(resumed.models("alone", seed=1).rows, found.models("alone", seed=1).rows)
    again = vg.compare(softmax(), Graph.ring(14), folder=interrupted, resume=True, **ASKED)
    assert torch.equal(again.models("alone", seed=1).rows, found.models("alone", seed=1).rows)
    assert again.table() == resumed.table()


def test_another_task_does_not_go_on_in_the_same_folder(interrupted: Path) -> None:
    with pytest.raises(BadInput, match="it differs in data"):
        vg.compare(softmax(skip=0.5), Graph.ring(14), folder=interrupted, resume=True, **ASKED)


@pytest.mark.usefixtures("no_figures")
def test_a_study_is_compared_as_the_command_line_does(tmp_path: Path) -> None:
    study = studies.target_localization(agents=12)
    found = vg.compare(study, rules=["alone", "loss-based"], byzantine=[0, 2], seeds=2, rounds=10)
    words = ("--rule", "alone", "--rule", "loss-based", "--byzantine", "0", "--byzantine", "2", "--seeds", "2")
    said = varangian_(
        "run", "target-localization", "--set", "agents=12", "--rounds", "10", *words, "--out", tmp_path / "r"
    )
    assert said.status == 0, said.err
    there = vg.load(tmp_path / "r" / "metrics.nc")
    for name in ("loss", "regret", "weight", "byzantine_agent"):
        np.testing.assert_array_equal(found.metrics[name], there[name])
    assert found.metric == "regret"
    assert found.metrics["attack"].values.tolist() == there["attack"].values.tolist()


@dataclass(frozen=True)
class half_listening(rules.average):  # type: ignore[misc]
    """A rule of one's own."""

    how_much: float = 0.5


def test_a_rule_of_ones_own_is_called_by_its_name_and_parameters() -> None:
    found = vg.compare(softmax(), rules=[half_listening(), half_listening(0.7), "alone"], rounds=3)
    assert found["rule"].values.tolist() == ["half-listening", "half-listening:how_much=0.7", "alone"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"rules": []}, "non-empty"),
        ({"rules": ["los-based"]}, "did you mean 'loss-based'"),
        ({"rules": ["alone"], "attacks": ["silent"]}, "no Byzantine agents"),
        ({"rules": ["alone"], "seeds": 0}, "seeds is the number"),
        ({"rules": ["alone"], "seeds": [1, 2]}, "seeds is the number"),
        ({"rules": ["alone"], "rounds": 0}, "at least one"),
        ({"rules": ["alone"], "rounds": 1.5}, "whole number"),
        ({"rules": ["alone"], "byzantine": 99}, "between 0 and 14"),
        ({"rules": ["alone"], "resume": True}, "add folder"),
        ({"rules": ["alone"], "metric": "nothing", "rounds": 1}, "no metric 'nothing'"),
        ({"rules": ["alone"], "thread": 2}, "did you mean 'threads'"),
    ],
)
def test_bad_input_is_one_line(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        vg.compare(softmax(), **asked)


def test_models_are_found_by_their_labels(found: Comparison) -> None:
    with pytest.raises(BadInput, match="unknown rule 'krum'"):
        found.models("krum")
    with pytest.raises(BadInput, match="byzantine is one of 0, 3, not 5"):
        found.models("alone", byzantine=5)
    with pytest.raises(BadInput, match="seeds are 0, 1, 2, not 9"):
        found.models("alone", seed=9)
    large = vg.compare(softmax(), rules=["alone"], rounds=1, save_models=False)
    with pytest.raises(BadInput, match="save_models=True"):
        large.models("alone")


def test_tidy_tables_have_the_labels(found: Comparison) -> None:
    for table in (found.curves(), found.agents(), found.trust()):
        assert list(table.columns[:4]) == ["rule", "attack", "byzantine", "seed"]
    assert len(found.agents()) == 3 * 3 * 3 * 14  # without Byzantine agents, all attacks coincide
    assert set(found.agents().query("byzantine == 0")["attack"]) == {"none"}


def test_progress_is_shown_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    vg.compare(softmax(), rules=["alone", "average"], rounds=2, progress=True)
    assert "average, 0 Byzantine …" in capsys.readouterr().err
    vg.compare(softmax(), rules=["alone"], rounds=2)
    assert capsys.readouterr().err == ""


def test_importing_the_package_stays_quick() -> None:
    """`import varangian` loads nothing heavy: what it offers is imported when it is used."""
    code = (
        "import sys, varangian; print([m for m in ('numpy', 'torch', 'xarray', 'pandas', 'rich') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert said.stdout.strip() == "[]"
