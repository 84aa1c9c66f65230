"""Files of one's own on a Ray cluster, whose processes do not have them, and the page of the manual on clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commands import assert_same_bits, rows_of, varangian_
from manual import ROOT, blocks, run_commands, run_in_order
from own_files import MINE, forgotten, write_own

OWN = ("mystudy.py", "--rule", "mine.py:exponential:eta=2", "--attack", "mine.py:nudge", "--byzantine", "2")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("varangian.report.folder.draw_figures", lambda metrics, folder: [])
    (tmp_path / "beside_mine.py").write_text("factor = 1\n", encoding="utf-8")
    write_own(tmp_path, MINE.replace("import torch\n", "import torch\nfrom beside_mine import factor\n"))
    with forgotten(tmp_path):
        yield tmp_path


def test_own_files_run_on_a_cluster_to_the_same_bits(here: Path, cluster: Any) -> None:
    assert varangian_("run", *OWN, "--out", "local").status == 0
    on_ray = ("--engine", "ray", "--address", "auto")
    said = varangian_("run", *OWN, *on_ray, "--out", "tasks")
    assert said.status == 0, said.err
    assert_same_bits(here / "local", here / "tasks")
    said = varangian_("run", *OWN, *on_ray, "--shards", 2, "--out", "shards")
    assert said.status == 0, said.err
    losses = [float(rows_of(here / folder)[0]["test_loss_mean"]) for folder in ("local", "shards")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    args = ("--rules", "mine.py", "--attacks", "mine.py", "--byzantine", 2, "--seeds", 1, "--out", "t")
    said = varangian_("tournament", "mystudy.py", *args, *on_ray)
    assert said.status == 0, said.err


def test_what_the_manual_says_of_clusters_runs(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page does on a local cluster happens on the one that these tests share."""
    monkeypatch.setattr("varangian.report.folder.draw_figures", lambda metrics, folder: [])
    page = ROOT / "docs" / "cluster.md"
    run_commands(page, tmp_path, monkeypatch)
    run_in_order((str(page), block) for block in blocks(page, "python"))
