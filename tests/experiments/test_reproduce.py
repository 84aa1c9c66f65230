"""The paper again: what is run, and how it is put beside the published numbers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

from varangian.experiments import reproduce
from varangian.experiments.config import DEFAULT_RULES
from varangian.report.paper import draw_samples
from varangian.studies import data, digits
from varangian.studies.data import Digits


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("study", reproduce.PAPER)
def test_every_published_scenario_is_run(study: str, fast: bool) -> None:
    plan = reproduce.plan_of(study, fast)
    assert {p.byzantine for p in reproduce.PUBLISHED if p.study == study} <= set(plan.byzantine)
    assert plan.rules == DEFAULT_RULES
    if not fast:
        assert plan.study == type(plan.study)(), "at the paper's settings"
        assert plan.byzantine == type(plan.study).byzantine


def test_ours_stand_beside_the_published_by_group() -> None:
    """Two agents a group, one of the second lying; two seeds, whose means differ by 0.1."""
    accuracy = np.array([[[0.9, 0.7, 0.4, 0.1]], [[1.0, 0.8, 0.5, 0.1]]])[None]
    metrics = xr.Dataset(
        {
            "accuracy": (("cell", "seed", "epoch", "agent"), accuracy),
            "byzantine_agent": (("cell", "seed", "agent"), np.array([[[False, False, False, True]] * 2])),
            "group": (("seed", "agent"), np.array([[0, 0, 1, 1]] * 2)),
        },
        {"rule": ("cell", ["loss-based"]), "byzantine": ("cell", [2]), "round": [1]},
        {"study": "digits", "metric": "accuracy"},
    )
    rows = [(row["study"], row["byzantine"], row["ours"], row["published"]) for row in reproduce.comparison(metrics)]
    assert rows == [
        ("digits, group 1", 2, "85.0 ± 7.1 %", "96 %"),
        ("digits, group 2", 2, "45.0 ± 7.1 %", "87 %"),
    ]


@pytest.mark.parametrize(
    ("group2", "named"), [("synthetic", "our rendering"), ("mnist-m", "MNIST-M in grey"), ("kaggle", "Kaggle")]
)
def test_sample_digits_say_what_they_are(
    group2: Any, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plain(grey: int) -> Digits:
        images, labels = np.full((30, 28, 28), grey, dtype=np.uint8), np.arange(30) % 10
        return Digits(images, labels, images[:10], labels[:10])

    drawn: list[tuple[list[int], list[str]]] = []

    def seen(sets: list[Any], titles: list[str]) -> Figure:
        drawn.append(([int(images.max()) for images in sets], titles))
        return Figure()

    monkeypatch.setattr(data, "mnist", lambda: plain(51))
    monkeypatch.setattr(sys.modules[digits.__module__], "_GROUP_TWO", {group2: lambda: plain(255)})
    monkeypatch.setattr("varangian.report.paper.sample_digits", seen)
    (tmp_path / "figures").mkdir()
    draw_samples(digits(group2=group2, agents_per_group=2, test_images=5), tmp_path)
    greys, titles = drawn[0]
    assert greys == [51, 255]
    assert titles[0] == "Group 1: MNIST" and titles[1].startswith("Group 2: ") and named in titles[1]
    assert (tmp_path / "figures" / "figure-7.png").exists()


def test_one_seed_has_no_spread() -> None:
    assert reproduce._shown(np.array([0.912]), "accuracy") == "91.2 %"
    assert reproduce._shown(np.array([0.912, 0.912]), "accuracy") == "91.2 ± 0.0 %"
    assert reproduce._shown(np.array([0.0153]), "loss") == "0.0153"
