"""A run folder's files, from its metrics."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import xarray as xr

from varangian.engine import results
from varangian.errors import BadInput
from varangian.experiments.sweep import write_summary
from varangian.report.figures import draw_figures
from varangian.report.page import write_page
from varangian.report.source import read_runs, run_of


def write_folder(metrics: xr.Dataset, folder: Path) -> None:
    """`metrics.nc`, `summary.csv`, `figures/` and `report.html`."""
    results.save(metrics, folder / "metrics.nc")
    write_summary(metrics, folder / "summary.csv")
    draw_figures(metrics, folder)
    try:
        write_page([run_of(metrics, folder)], folder / "report.html")
    except ModuleNotFoundError as error:  # a machine to compute on may do without
        warnings.warn(f"report.html is left out: {error}; make it later with varangian report {folder}", stacklevel=2)


def report(folders: Sequence[Path], out: Path | None = None) -> list[Path]:
    """Make the report of one folder again, or of several beside each other; returns what was written.

    A single folder's goes into it, with its figures where its metrics are there; `out` names another file.
    """
    if out is None and len(folders) > 1:
        raise BadInput("a report on several folders belongs to none of them; say where it goes with --out FILE")
    runs = read_runs(folders)
    path = out if out is not None else folders[0] / "report.html"
    written = [path]
    try:
        write_page(runs, path)
        if out is None and len(runs) == 1 and runs[0].metrics is not None:
            written += draw_figures(runs[0].metrics, folders[0])
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from error
    return written
