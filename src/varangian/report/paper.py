"""The paper's figures, one file each, from the metrics of its studies, and a comparison of its numbers with ours."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from varangian.core.batches import Batches
from varangian.core.files import whole
from varangian.engine.results import Array
from varangian.report.curve_data import label_of
from varangian.report.curve_figure import draw_curve, legend_below, scale_axis
from varangian.report.figures import network, save_figure
from varangian.report.paper_panels import FIGURES, Panel
from varangian.report.spread import looks_of, spread, time_of
from varangian.studies.digits import GroupTwo, digits
from varangian.studies.study import Study


def draw_paper_figures(metrics: xr.Dataset, folder: Path) -> list[Path]:
    """Write the figures of the paper that these metrics allow into `folder`/figures; returns the files written."""
    target = folder / "figures"
    target.mkdir(parents=True, exist_ok=True)
    counts = set(metrics["byzantine"].values.tolist())
    written: list[Path] = []
    for name, panels in FIGURES.get(metrics.attrs["study"], {}).items():
        run = [panel for panel in panels if panel.byzantine in counts and panel.metric in metrics]
        if run:
            written += save_figure(paper_figure(metrics, run), target / name)
    if metrics.attrs["study"] == "target-localization":
        written += save_figure(network(metrics), target / "figure-1-network")
    return written


def paper_figure(metrics: xr.Dataset, panels: Sequence[Panel]) -> Figure:
    """A row of panels with separate axes: mean and range over normal agents for every rule."""
    looks = looks_of(metrics)
    figure = Figure(figsize=(3.0 * len(panels) + 0.5, 3.1), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, panel in zip(axes, panels, strict=True):
        cells = np.flatnonzero(metrics["byzantine"].values == panel.byzantine)
        shown: list[xr.Dataset] = []
        for cell in cells:
            curve = spread(metrics.isel(cell=cell), panel.metric, panel.group)
            draw_curve(ax, curve, looks[str(metrics["rule"].values[cell])], 1.0)
            shown.append(curve)
        scale_axis(ax, panel.metric, shown)
        ax.set_title(_title(panel), fontsize=10.5)
        ax.set_ylabel(label_of(metrics, panel.metric), fontsize=10)
        ax.set_xlabel(time_of(metrics[panel.metric]).capitalize(), fontsize=10)
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(True, color="0.9", linewidth=0.6)
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        ax.tick_params(labelsize=9)
    legend_below(figure, looks, len(looks))
    return figure


def _title(panel: Panel) -> str:
    if panel.group is None:
        return f"{panel.byzantine} Byzantine" if panel.byzantine else "No attack"
    return f"Group {panel.group + 1}: " + (f"{panel.byzantine} Byzantine" if panel.byzantine else "no attack")


def sample_digits(images: Sequence[Array], titles: Sequence[str], columns: int = 12) -> Figure:
    """The paper's Figure 7: some images of each dataset, with one row of panels per dataset."""
    figure = Figure(figsize=(columns * 0.6, len(images) * 1.5), layout="constrained")
    for ax, rows, title in zip(figure.subplots(len(images), 1, squeeze=False)[:, 0], images, titles, strict=True):
        sheet = np.concatenate([np.concatenate(list(part), axis=1) for part in np.array_split(rows[: 2 * columns], 2)])
        ax.imshow(sheet, cmap="gray", vmin=0, vmax=255)
        ax.set_title(title, fontsize=10.5, loc="left")
        ax.set_axis_off()
    return figure


_SECOND_SET: dict[GroupTwo, str] = {
    "synthetic": "our rendering",
    "mnist-m": "MNIST-M in grey",
    "kaggle": "the paper's set from Kaggle",
}


def draw_samples(study: Study, folder: Path) -> list[Path]:
    """Write Figure 7, with digits of both groups, into `folder`/figures, if the study has digits."""
    stream = study.scene(0).task.stream if isinstance(study, digits) else None
    if not isinstance(study, digits) or not isinstance(stream, Batches):
        return []
    pool = stream.pool
    sets = [(pool.x[pool.members[agent, :24], 0] * 255).byte().numpy() for agent in (0, study.agents_per_group)]
    titles = ["Group 1: MNIST", f"Group 2: {_SECOND_SET[study.group2]}"]
    return save_figure(sample_digits(sets, titles), folder / "figures" / "figure-7")


def write_comparison(rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write `table.csv` and `table.md`: our numbers ± standard deviation, and the published ones."""
    if not rows:
        return
    heads = list(rows[0])
    with whole(folder / "table.csv") as path, path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, heads)
        writer.writeheader()
        writer.writerows(rows)
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(str(row[head]) for head in heads) + " |" for row in rows]
    with whole(folder / "table.md") as path:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
