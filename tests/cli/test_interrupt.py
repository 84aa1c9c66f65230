"""Runs that are interrupted say how to go on, and go on to the same bits."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from commands import ONE, SMALL, Said, assert_same_bits, varangian_
from forked import Command

STOPS = {
    "between": ("varangian.experiments.cells", "SeedsProgress.round"),
    "within": ("varangian.engine.recorder", "measure"),
}
RESUMED = (*SMALL, "--rounds", 20, "--rule", "average", "--rule", "loss-based", "--byzantine", 3, "--seeds", 2)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("when", STOPS)
def test_an_interrupted_run_goes_on_to_the_same_bits(when: str, tmp_path: Path) -> None:
    """Interrupted by a signal from outside, between two rounds of the second cell or while one is recorded."""
    folder = tmp_path / "a folder"
    process = Command("run", *RESUMED, "--out", folder, said=tmp_path / "said", stop_at=STOPS[when])
    process.wait_for(lambda: process.said()[0] == "now\n")
    process.send_signal(signal.SIGINT)
    status, _, err = process.end()
    assert status == 130
    assert "Traceback" not in err
    *_, last = err.splitlines()
    assert last == f"varangian: interrupted; go on with: varangian run '{folder}/config.toml' --resume --out '{folder}'"
    assert [path for path in folder.rglob("*") if path.suffix == ".checkpoint"]
    assert len([path for path in folder.rglob("*.result") if path.parent.name == "cells"]) == 1
    assert not (folder / "summary.csv").exists()
    resumed = varangian_("run", folder / "config.toml", "--resume", "--out", folder)
    assert resumed.status == 0, resumed.err
    assert {path.name for path in folder.iterdir()} == {"config.toml", "metrics.nc", "summary.csv", "report.html"}
    assert varangian_("run", *RESUMED, "--out", tmp_path / "whole").status == 0
    assert_same_bits(folder, tmp_path / "whole")


@pytest.mark.parametrize("stage", ["varangian.experiments.cells.simulate", "varangian.report.folder.write_folder"])
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
    if stage == "varangian.experiments.cells.simulate":
        assert varangian_("run", *ONE, "-q") == Said(130, "", "varangian: interrupted\n")


LAST = {
    "figures": ("run", "varangian.report.folder.draw_figures"),
    "page": ("run", "varangian.report.folder.write_page"),
    "moving": ("run", "varangian.experiments.run_folder._flush"),
    "heat map": ("tournament", "varangian.report.tournament.draw_heatmap"),
}


@pytest.mark.parametrize("writing", LAST)
def test_an_interrupt_of_the_last_writing_loses_nothing(
    writing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, where = LAST[writing]
    rules = ("--rule", "average") if command == "run" else ("--rules", "average", "--attacks", "silent", "--jobs", 1)
    args = (*SMALL, *rules, "--byzantine", 2, "--seeds", 1, "--out", tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr("varangian.report.folder.draw_figures", lambda metrics, folder: [])
        patch.setattr(where, lambda *args, **kwargs: (_ for _ in ()).throw(KeyboardInterrupt))
        said = varangian_(command, *args)
        assert said.status == 130 and "interrupted" in said.err and "Traceback" not in said.err
    # Nothing is computed again.
    monkeypatch.setattr("varangian.report.folder.draw_figures", lambda metrics, folder: [])
    monkeypatch.setattr(f"varangian.experiments.{'cells' if command == 'run' else 'tournament.run'}.simulate", None)
    assert varangian_(command, *args, "--resume").status == 0
    assert (tmp_path / "run" / ("summary.csv" if command == "run" else "tournament.png")).exists()
