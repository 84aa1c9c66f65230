"""Reproduces the paper: its studies with its settings, and a comparison of our numbers with the published ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import xarray as xr

from varangian.core.errors import BadInput, unknown
from varangian.engine import results
from varangian.engine.options import RunSettings
from varangian.experiments.config import DEFAULT_RULES, Plan, plan_for
from varangian.experiments.spec import is_place

PAPER = ("target-localization", "human-activity", "digits")


@dataclass(frozen=True)
class Published:
    """Values at the end of training in a figure of the paper, read off by eye (±10 %).

    The four rules are in this order: no cooperation, average, distance-based, loss-based.
    """

    study: str
    byzantine: int
    values: tuple[str, str, str, str]
    group: int | None = None


PUBLISHED = (
    Published("target-localization", 0, ("0.1", "25", "25", "0.05")),
    Published("target-localization", 20, ("0.15", "25", "25", "0.05")),
    Published("target-localization", 99, ("0.05", "5", "5", "as no cooperation")),
    Published("human-activity", 0, ("92 %", "90 %", "88 %", "95 %")),
    Published("human-activity", 10, ("94 %", "20–40 %", "20–25 %", "96 %")),
    Published("digits", 0, ("95 %", "95 %", "95 %", "96 %"), group=0),
    Published("digits", 2, ("96 %", "10 %", "92 %", "96 %"), group=0),
    Published("digits", 0, ("74 %", "61 %", "74 %", "86 %"), group=1),
    Published("digits", 2, ("76 %", "10 %", "10 %", "87 %"), group=1),
)

FAST: dict[str, dict[str, Any]] = {
    # Without an attack, no cooperation becomes better than the average at about epoch 30.
    "human-activity": {"seeds": 2, "settings": {"epochs": 40}},
    # The first rounds of the full run. In group 2, no cooperation needs about 130 rounds to get above chance and above
    # distance-based weights. After 250 rounds the average is nearly as good as the loss-based rule in group 1.
    "digits": {"seeds": 1, "byzantine": (0, 2), "settings": {"test_images": 200, "epochs": 5}},
    "school": {"seeds": 1, "settings": {"epochs": 10}},
}
"""The settings of `--fast`: fewer rounds, agents, seeds and numbers of Byzantine agents. The conclusions stay."""


def plan_of(study: str, fast: bool, **options: Unpack[RunSettings]) -> Plan:
    """The plan of a study: all rules, all numbers of Byzantine agents, 5 seeds (3 for digits). `fast` reduces these."""
    known = (*PAPER, "school")
    if is_place(study.partition(":")[0]):
        raise BadInput(f"reproduce makes the figures of the paper's studies; use: varangian run {study}")
    if study not in known:
        raise unknown("study", study, known)
    short = FAST.get(study, {}) if fast else {}
    seeds = short.get("seeds", 3 if study == "digits" else 5)
    return plan_for(
        study,
        rules=DEFAULT_RULES,
        byzantine=short.get("byzantine", ()),
        seeds=seeds,
        settings=short.get("settings"),
        **options,
    )


def comparison(metrics: xr.Dataset) -> Iterator[dict[str, Any]]:
    """One row per scenario: our mean ± standard deviation over seeds, and the published value."""
    study = metrics.attrs["study"]
    metric = "loss" if study == "target-localization" else metrics.attrs["metric"]
    rules = [str(rule) for rule in metrics["rule"].values]
    for published in (p for p in PUBLISHED if p.study == study):
        for rule, value in zip(DEFAULT_RULES, published.values, strict=True):
            cells = [
                number
                for number, count in enumerate(metrics["byzantine"].values)
                if rules[number] == rule and count == published.byzantine
            ]
            if cells:
                ours = by_seed(metrics.isel(cell=cells[0]), metric, published.group)
                group = "" if published.group is None else f", group {published.group + 1}"
                yield {
                    "study": study + group,
                    "byzantine": published.byzantine,
                    "rule": rule,
                    "metric": metric,
                    "ours": _shown(ours, metric),
                    "published": value,
                }


def by_seed(cell: xr.Dataset, metric: str, group: int | None = None) -> np.ndarray[Any, Any]:
    """The final mean over normal agents, for each seed. With `group`, only over the agents of this group."""
    final = results.final(cell, metric)
    if group is not None:
        final = final.where(cell["group"] == group)
    return np.asarray(final.mean("agent").values)


def _shown(values: np.ndarray[Any, Any], metric: str) -> str:
    percent = "accuracy" in metric
    mean = f"{100 * float(values.mean()):.1f}" if percent else f"{float(values.mean()):.3g}"
    spread = float(values.std(ddof=1)) if len(values) > 1 else None  # one seed says nothing about others
    error = "" if spread is None else f" ± {100 * spread:.1f}" if percent else f" ± {spread:.1g}"
    return mean + error + (" %" if percent else "")
