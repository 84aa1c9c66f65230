"""The results of a sweep as rows, for `summary.csv`, and the metric to compare rules by."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from varangian.engine import results

PREFERRED = ("regret", "accuracy", "rmse", "test_loss", "loss")
"""Metrics to compare rules by, the best first."""


def headline(rows: Sequence[Mapping[str, Any]], own: str = "") -> str:
    """The metric to compare rules by: the study's own, if it was measured, or the first of the preferred ones."""
    return first_metric([name.removesuffix("_mean") for name in rows[0] if name.endswith("_mean")], own)


def first_metric(measured: Collection[str], own: str = "") -> str:
    """The study's own metric, or the first of the preferred ones. Regret is the loss, but exact.

    >>> first_metric(["loss", "accuracy", "f1"], own="f1"), first_metric(["loss", "regret"], own="loss")
    ('f1', 'regret')
    """
    if own in measured and not (own == "loss" and "regret" in measured):
        return own
    return next(metric for metric in PREFERRED if metric in measured)


def summary_rows(metrics: xr.Dataset) -> Iterator[dict[str, Any]]:
    """One row per (study, rule, attack, byzantine, seed). Studies with results by group have columns for each group."""
    by_group = str(metrics.attrs.get("by_group", "0")) == "1" and "group" in metrics
    groups = np.unique(metrics["group"].values).tolist() if by_group else []
    for number in range(metrics.sizes["cell"]):
        cell = metrics.isel(cell=number)
        about = {
            "study": metrics.attrs["study"],
            "rule": str(cell["rule"].item()),
            "attack": str(cell["attack"].item()),
        }
        about["byzantine"] = cell["byzantine"].item()
        of_groups = (_of_group(cell, group, place) for place, group in enumerate(groups, 1))
        for row, *parts in zip(results.summary(cell), *of_groups, strict=True):
            yield {**about, **row, **{name: value for part in parts for name, value in part.items()}}


def _of_group(cell: xr.Dataset, group: object, place: int) -> Iterator[dict[str, float | int]]:
    """Mean and worst over a group's normal agents, one row per seed. Groups are numbered from 1, as in the paper."""
    only = cell.assign(byzantine_agent=cell["byzantine_agent"] | (cell["group"] != group))
    for row in results.summary(only):
        figures = {name.rpartition("_"): value for name, value in row.items() if name.endswith(("_mean", "_worst"))}
        yield {f"{metric}_group_{place}_{of}": value for (metric, _, of), value in figures.items()}


def write_summary(metrics: xr.Dataset, path: Path, rows: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """Write `summary.csv`; returns its rows, which are those given, if they are known already."""
    rows = list(summary_rows(metrics)) if rows is None else rows
    columns = sorted(dict.fromkeys(name for row in rows for name in row), key=results.UNWEIGHED.__contains__)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    return rows
