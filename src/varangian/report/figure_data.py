"""Which figures a run has, and what each of them shows. Nothing is drawn here, so matplotlib is not needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from varangian.report.curve_data import CurveData, curve_data
from varangian.report.network_data import NetworkData, network_data

FigureData = dict[str, CurveData | NetworkData]
"""What the figures of a run show, by their names."""
WORTH_SEEING = ("regret", "test_loss", "accuracy", "backdoor_success", "byzantine_weight")
"""Metrics that are drawn in addition to the study's own metric."""


def figure_data(metrics: xr.Dataset) -> FigureData:
    """What all figures of a run show.

    These are the curves of the study's own metric and of `WORTH_SEEING`, if they were measured, and the network.
    Studies with results by group also have curves for each group.
    """
    data: FigureData = {}
    for metric in _drawn(metrics):
        data[metric] = curve_data(metrics, metric)
        for group in _groups(metrics):
            data[f"{metric}-group-{_as_file_name(group)}"] = curve_data(metrics, metric, group)
    if "sender" in metrics or "position" in metrics:
        data["network"] = network_data(metrics)
    return data


def figure_names(metrics: xr.Dataset) -> list[str]:
    """The names of all figures that `draw_figures` may have written for these metrics, without endings."""
    own = str(metrics.attrs.get("metric", "loss"))
    drawn = [metric for metric in dict.fromkeys((own, *WORTH_SEEING)) if metric in metrics]
    groups = [f"{metric}-group-{_as_file_name(group)}" for metric in drawn for group in _groups(metrics)]
    return [*drawn, *groups, "network"]


def write_images(images: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Write figures into `folder`/figures; returns the files."""
    target = folder / "figures"
    target.mkdir(parents=True, exist_ok=True)
    for name, image in images.items():
        (target / name).write_bytes(image)
    return [target / name for name in images]


def _drawn(metrics: xr.Dataset) -> Iterator[str]:
    """The metrics to draw, without duplicates: those that have finite values."""
    own = str(metrics.attrs.get("metric", "loss"))
    for metric in dict.fromkeys((own, *WORTH_SEEING)):
        if metric == "byzantine_weight" and not metrics["byzantine"].values.any():
            continue
        if metric in metrics and bool(metrics[metric].notnull().any()):
            yield metric


def _groups(metrics: xr.Dataset) -> Sequence[Any]:
    """The groups that have their own figures."""
    if str(metrics.attrs.get("by_group", "0")) != "1" or "group" not in metrics:
        return ()
    groups: Sequence[Any] = np.unique(metrics["group"].values).tolist()
    return groups


def _as_file_name(group: object) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in str(group))
