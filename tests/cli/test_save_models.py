"""`--save-models`: one safetensors file for each cell and seed, after an interrupt too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from commands import SMALL, varangian_

import varangian as vg
from varangian import AgentModels, attacks, rules, studies

SWEPT = (
    *SMALL,
    "--rule",
    "alone",
    "--rule",
    "loss-based:keep=all",
    "--byzantine",
    "0",
    "--byzantine",
    "2",
    "--seeds",
    "2",
)


def models_of(folder: Path) -> dict[str, AgentModels]:
    return {path.name: AgentModels.load(path) for path in sorted((folder / "models").iterdir())}


pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("saved") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("varangian.report.folder.draw_figures", lambda metrics, folder: [])
        said = varangian_("run", *SWEPT, "--save-models", "--out", out, "--quiet")
    assert said.status == 0, said.err
    return out


def test_every_cell_and_seed_has_a_file(folder: Path) -> None:
    found = models_of(folder)
    assert len(found) == 8
    assert all(len(models) == 12 for models in found.values())
    assert all(name.replace("-", "").replace("_", "").replace(".", "").replace("=", "").isalnum() for name in found)
    (name,) = (name for name in found if name.startswith("loss-based") and "2_Byz" in name and "seed-1" in name)
    study = studies.target_localization(agents=12)
    attack = study.attacks[0]
    again = vg.simulate(study, rule=rules.loss_based(keep="all"), attack=attack, byzantine=2, seeds=2, rounds=10)
    assert torch.equal(found[name].rows, again.models_of(1).rows)
    assert isinstance(attack, attacks.uniform)


def test_without_the_option_there_are_none(tmp_path: Path) -> None:
    assert varangian_("run", *SWEPT, "--out", tmp_path / "run", "--quiet").status == 0
    assert not (tmp_path / "run" / "models").exists()
    said = varangian_("run", *SWEPT, "--save-models", "--out", tmp_path / "run", "--resume")
    assert said.status == 2 and "finished without models" in said.err
    said = varangian_("run", *SWEPT, "--save-models", "--out", tmp_path / "run", "--overwrite", "--quiet")
    assert said.status == 0 and len(models_of(tmp_path / "run")) == 8
    said = varangian_("run", *SWEPT, "--out", tmp_path / "run", "--overwrite", "--quiet")
    assert said.status == 0 and not (tmp_path / "run" / "models").exists()


def test_they_need_a_folder() -> None:
    said = varangian_("run", *SWEPT, "--save-models")
    assert said.status == 2 and "--save-models needs --out" in said.err


def test_a_resumed_run_has_all_of_them(folder: Path, tmp_path: Path) -> None:
    from varangian.experiments import groups

    played: list[str] = []
    inner = groups.play

    def stopped(plan: object, cell: object, *rest: object) -> object:
        if len(played) == 3:
            raise KeyboardInterrupt
        played.append(str(cell))
        return inner(plan, cell, *rest)  # type: ignore[arg-type]

    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "play", stopped)
        assert varangian_("run", *SWEPT, "--save-models", "--out", out, "--quiet").status == 130
    said = varangian_("run", out / "config.toml", "--resume", "--out", out, "--quiet")
    assert said.status == 0, said.err
    before, after = models_of(folder), models_of(out)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name].rows, after[name].rows) for name in before)
