"""A run folder's files, from its metrics."""

from __future__ import annotations

from pathlib import Path

import xarray as xr

from varangian import results
from varangian.report.figures import draw_figures
from varangian.report.page import write_page
from varangian.sweep import write_summary


def write_folder(metrics: xr.Dataset, folder: Path) -> None:
    """`metrics.nc`, `summary.csv`, `figures/` and `report.html`."""
    results.save(metrics, folder / "metrics.nc")
    rows = write_summary(metrics, folder / "summary.csv")
    figures = draw_figures(metrics, folder)
    write_page(metrics, rows, [path for path in figures if path.suffix == ".png"], folder / "report.html")
