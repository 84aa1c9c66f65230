"""Which panels the paper's figures have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import xarray as xr


class Panel(NamedTuple):
    """One metric for one number of Byzantine agents, and for one group if results are shown by group."""

    metric: str
    byzantine: int
    group: int | None = None


def _pairs(prefix: str, counts: Sequence[int], group: int | None = None) -> list[Panel]:
    """Loss and accuracy side by side, for each number of Byzantine agents."""
    loss, accuracy = ("test_loss", "accuracy") if prefix == "test" else ("train_loss", "train_accuracy")
    return [Panel(metric, count, group) for count in counts for metric in (loss, accuracy)]


FIGURES: dict[str, dict[str, list[Panel]]] = {
    "target-localization": {"figure-1": [Panel("loss", count) for count in (0, 20, 99)]},
    "human-activity": {
        "figure-2": _pairs("test", (0, 10)),
        "figure-5": _pairs("train", (0, 10)),
        "figure-6": _pairs("train", (29,)) + _pairs("test", (29,)),
    },
    "digits": {
        "figure-3": _pairs("test", (0, 2), 0),
        "figure-4": _pairs("test", (0, 2), 1),
        "figure-8": _pairs("test", (8,), 0) + _pairs("test", (8,), 1),
        "figure-9": _pairs("train", (0, 2), 0),
        "figure-10": _pairs("train", (0, 2), 1),
        "figure-11": _pairs("train", (8,), 0) + _pairs("train", (8,), 1),
    },
}
"""The paper's own numbering; Figure 7 shows sample digits."""


def paper_figure_names(metrics: xr.Dataset) -> list[str]:
    """The names of all figures of the paper for this study, without file extensions."""
    study = metrics.attrs.get("study")
    more = {"target-localization": ["figure-1-network"], "digits": ["figure-7"]}
    return [*FIGURES.get(str(study), {}), *more.get(str(study), [])]
