"""Another process draws the figures: the same ones, and none are missing if it dies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from varangian.experiments.config import plan_for
from varangian.experiments.sweep import sweep
from varangian.report import folder
from varangian.report.artist import hired_artist
from varangian.report.figures import draw_figures


def test_another_process_draws_the_same_figures_and_may_die(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_for("target-localization", rules=["loss-based", "alone"], byzantine=[0, 2], rounds=4,
                    settings={"agents": 9})  # fmt: skip
    metrics = sweep(plan, None)
    here = {path.name: path.read_bytes() for path in draw_figures(metrics, tmp_path / "here")}
    assert {path.name for path in folder.write_folder(metrics, tmp_path)} >= here.keys()

    drawn_here: list[Path] = []

    def draw_here(*given: object) -> list[Path]:
        drawn_here.append(tmp_path)
        return draw_figures(metrics, tmp_path / "died")

    monkeypatch.setattr(folder, "draw_figures", draw_here)
    for name in ("beside", "died"):
        with hired_artist() as artist:
            if name == "died":
                artist._helper._worker.process.kill()
                artist._helper._worker.process.join()
            folder.begin_figures(artist, metrics)
            folder.write_folder(metrics, tmp_path / name, artist=artist)
        found = {path.name: path.read_bytes() for path in (tmp_path / name / "figures").iterdir()}
        assert found == here
    assert len(drawn_here) == 1, "only by this process where the other has died"


def test_few_cells_need_no_other_process() -> None:
    plan = plan_for("target-localization", rules=["alone"], byzantine=[0], settings={"agents": 9})
    with folder.artist_for(plan) as artist:
        assert artist is None


def test_a_process_that_draws_nothing_does_not_import_matplotlib() -> None:
    code = "import sys, varangian.report.folder; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0
