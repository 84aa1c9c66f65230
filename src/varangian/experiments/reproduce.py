"""The paper again: its studies at its settings, its figures, and its numbers beside ours."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from varangian.core.batches import Batches
from varangian.engine import results
from varangian.engine.cluster import Engine
from varangian.errors import unknown
from varangian.experiments import sweep
from varangian.experiments.config import DEFAULT_RULES, Plan, plan_for
from varangian.report.folder import write_folder
from varangian.report.paper import draw_paper_figures
from varangian.studies.digits import GroupTwo, digits

PAPER = ("target-localization", "human-activity", "digits")


@dataclass(frozen=True)
class Published:
    """What the paper's figure shows at the end of training, read off by eye (±10 %), for the four rules in order:
    no cooperation, average, distance, loss-based."""

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
    # Without attack no cooperation overtakes the average at about epoch 30.
    "human-activity": {"seeds": 2, "settings": {"epochs": 40}},
    # The first rounds of the full run. In group 2 it takes some 130 until no cooperation is off chance and ahead of
    # distance-based weights; after 250 the average has nearly caught up with the loss-based rule in group 1.
    "digits": {"seeds": 1, "byzantine": (0, 2), "settings": {"test_images": 200, "epochs": 5}},
    "school": {"seeds": 1, "settings": {"epochs": 10}},
}
"""What `--fast` changes: shorter, smaller, fewer seeds and numbers of Byzantine agents; the conclusions stay."""


def plan_of(study: str, fast: bool, device: str = "auto") -> Plan:
    """All rules and all numbers of Byzantine agents, 5 seeds (3 for digits); less of everything where it is fast."""
    known = (*PAPER, "school")
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
        device=device,
    )


def reproduce(
    plan: Plan,
    folder: Path,
    *,
    watchers: Sequence[sweep.Watcher] = (),
    engine: Engine | None = None,
) -> xr.Dataset:
    """Run a study into its folder, going on where an earlier try stopped, and draw its figures."""
    resume = (folder / sweep.UNFINISHED).exists()
    sweep.open_folder(folder, plan, resume)
    metrics = sweep.sweep(plan, folder, resume=resume, watchers=watchers, engine=engine)
    write_folder(metrics, folder)
    draw_paper_figures(metrics, folder)
    if isinstance(plan.study, digits):
        _draw_samples(plan.study, folder)
    sweep.close_folder(folder)
    return metrics


_SECOND_SET: dict[GroupTwo, str] = {
    "synthetic": "our rendering",
    "mnist-m": "MNIST-M in grey",
    "kaggle": "the paper's set from Kaggle",
}


def _draw_samples(study: digits, folder: Path) -> None:
    from varangian.report.figures import save_figure
    from varangian.report.paper import sample_digits

    stream = study.scene(0).task.stream
    if not isinstance(stream, Batches):
        return
    pool = stream.pool
    sets = [(pool.x[pool.members[agent, :24], 0] * 255).byte().numpy() for agent in (0, study.agents_per_group)]
    titles = ["Group 1: MNIST", f"Group 2: {_SECOND_SET[study.group2]}"]
    save_figure(sample_digits(sets, titles), folder / "figures" / "figure-7")


def comparison(metrics: xr.Dataset) -> Iterator[dict[str, Any]]:
    """Ours, mean ± standard deviation over seeds, beside the published figure, scenario by scenario."""
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
    """The mean over normal agents at the end, for each seed; of one group where asked for."""
    final = results.final(cell, metric)
    if group is not None:
        final = final.where(cell["group"] == group)
    return np.asarray(final.mean("agent").values)


def _shown(values: np.ndarray[Any, Any], metric: str) -> str:
    mean, spread = float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return f"{100 * mean:.1f} ± {100 * spread:.1f} %" if "accuracy" in metric else f"{mean:.3g} ± {spread:.1g}"


def write_comparison(rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """`table.csv` and `table.md`: ours ± sd | published."""
    if not rows:
        return
    with (folder / "table.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    heads = list(rows[0])
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(str(row[head]) for head in heads) + " |" for row in rows]
    (folder / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
