"""Reads runs from folders: complete runs with their metrics, or summary tables alone."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import xarray as xr

from varangian.core.errors import BadInput
from varangian.engine import results
from varangian.experiments.summary import summary_rows
from varangian.report.command import command_of
from varangian.report.table import Row

ABOUT = ("study", "rule", "attack", "byzantine", "seed", "rounds", "seconds")
"""The first columns of every summary."""


@dataclass(frozen=True, eq=False)
class Run:
    """The data of one run in a report."""

    name: str
    rows: Sequence[Row]
    """The rows of its summary."""
    metrics: xr.Dataset | None = None
    config: str = ""
    command: str | None = None
    published: Sequence[dict[str, str]] = ()
    """The comparison with published numbers, if the folder has such a table."""

    @property
    def study(self) -> str:
        return str(self.rows[0]["study"])


def run_of(metrics: xr.Dataset, folder: Path, name: str | None = None, rows: Sequence[Row] | None = None) -> Run:
    """A run from its metrics, named after its folder or `name`. `rows` are those of its summary, if they are known."""
    config, name = _config(folder), name or folder.name
    rows = list(summary_rows(metrics)) if rows is None else rows
    return Run(name, rows, metrics, config, command_of(config, f"{name}-again"))


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs of all folders. Runs of the same study get different names."""
    found = [(folder, run) for folder in folders for run in _read(folder)]
    named = [(run.study, run.name) for _, run in found]
    placed = [
        replace(run, name=f"{folder.name}, {run.name}") if named.count((run.study, run.name)) > 1 else run
        for folder, run in found
    ]
    named = [(run.study, run.name) for run in placed]
    return [
        replace(run, name=f"{run.name} ({1 + named[:i].count(named[i])})") if named.count(named[i]) > 1 else run
        for i, run in enumerate(placed)
    ]


def _read(folder: Path) -> list[Run]:
    folder = folder.resolve() if folder.name in ("", "..") else folder
    if not folder.is_dir():
        raise BadInput(f"{folder} is no folder; name a run folder, or a folder with summary tables")
    if (folder / "metrics.nc").exists():
        metrics = results.load(folder / "metrics.nc")
        if "rule" not in metrics.coords or "cell" not in metrics.dims:
            raise BadInput(f"{folder / 'metrics.nc'} is a single result, not that of a run folder; use varangian run")
        return [run_of(metrics, folder)]
    runs = list(_summaries(folder))
    for inner in sorted(path for path in folder.iterdir() if path.is_dir()) if not runs else ():
        if (inner / "metrics.nc").exists() or any(_summaries(inner)):
            runs += _read(inner)
    if not runs:
        raise BadInput(f"{folder} holds no results: neither metrics.nc nor a table such as summary.csv")
    published = folder / "table.csv"
    if published.exists():
        runs[0] = replace(runs[0], published=_published(published))
    return runs


def _summaries(folder: Path) -> Iterator[Run]:
    """One run per summary table. Only summary.csv has the configuration."""
    for path in sorted(folder.glob("*.csv"), key=lambda path: (path.name != "summary.csv", path.name)):
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            try:
                if not set(ABOUT) <= set(reader.fieldnames or ()):
                    continue
                rows = [_read_row(row) for row in reader]
            except (ValueError, TypeError, csv.Error) as error:
                raise BadInput(f"{path} line {reader.line_num} is not a row of a summary: {error}") from error
        if not rows:
            raise BadInput(f"{path} has no rows")
        config = _config(folder) if path.name == "summary.csv" else ""
        yield Run(path.stem, rows, config=config, command=command_of(config, f"{folder.name}-again"))


def _read_row(row: dict[str, str]) -> Row:
    texts = {name: row[name] for name in ("study", "rule", "attack")}
    counts = {name: int(row[name]) for name in ("byzantine", "seed", "rounds")}
    return {**texts, **counts, **{name: float(value) for name, value in row.items() if name not in texts | counts}}


def _config(folder: Path) -> str:
    try:
        return (folder / "config.toml").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _published(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return rows if rows and {"ours", "published"} <= rows[0].keys() else []
