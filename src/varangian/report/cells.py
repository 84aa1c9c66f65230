"""The data of one cell on the page: curves, agents and weights, thinned so that the page stays small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from varangian.engine.results import UNWEIGHED, Array, final, higher_is_better, metrics_of
from varangian.report.spread import in_group, mean_of_seeds, of_normal, pooled, smoothed_rounds, smoothing_window

Tree = dict[str, Any]

CURVES, AGENTS, WEIGHTS = 250_000, 480_000, 750_000
"""About how many numbers of each kind a page holds. A packed number takes less than three bytes, a zero almost none."""
LISTED = 1000
"""The most agents that a page lists. In larger networks it lists only the worst agents."""


@dataclass(frozen=True)
class Detail:
    """How much of a run is on the page."""

    agents: tuple[int, ...]
    """The agents that are listed one by one."""
    points: int = 150
    """The number of points of each curve."""
    agent_points: int = 60
    """The number of points of each curve of a single agent; 0 leaves these curves out, if there are too many."""
    seeds: int = 1
    """The number of seeds, counted from the first, whose single agents and weights are on the page."""
    frames: int = 60
    """The number of rounds at which weights are on the page."""


def detail_of(metrics: xr.Dataset) -> Detail:
    """As much detail as fits: larger runs have fewer points, and fewer seeds with single agents."""
    lines = metrics.sizes["cell"] * max(1, len(metrics_of(metrics)))
    agents, seeds, groups = listed_agents(metrics), metrics.sizes["seed"], len(drawn_groups(metrics))
    of_agents, of_weights = lines * len(agents), _weights_in_frame(metrics)
    shown_seeds = seeds
    while shown_seeds > 1 and (of_agents * shown_seeds * 25 > AGENTS or of_weights * shown_seeds * 20 > WEIGHTS):
        shown_seeds -= 1
    few = of_agents * 8 <= 3 * AGENTS
    return Detail(
        agents=agents,
        points=int(np.clip(CURVES // (lines * (3 + seeds + 3 * groups)), 20, 150)),
        agent_points=int(np.clip(AGENTS // (of_agents * shown_seeds), 8, 60)) if few else 0,
        seeds=shown_seeds,
        frames=int(np.clip(WEIGHTS // max(1, of_weights * shown_seeds), 2, 60)),
    )


def listed_agents(metrics: xr.Dataset) -> tuple[int, ...]:
    """All agents. In very large networks, the worst agents, taken from each cell in turn."""
    if metrics.sizes["agent"] <= LISTED:
        return tuple(range(metrics.sizes["agent"]))
    name = next(name for name in metrics_of(metrics) if name not in UNWEIGHED)
    at_end = final(metrics.isel(seed=0), name).transpose(..., "agent").values.reshape(-1, metrics.sizes["agent"])
    badness = -at_end if higher_is_better(name) else at_end
    worst_first = np.argsort(-np.nan_to_num(badness, nan=-np.inf), axis=1)
    return tuple(sorted(list(dict.fromkeys(worst_first.T.ravel().tolist()))[:LISTED]))


def drawn_groups(metrics: xr.Dataset) -> list[Any]:
    """The groups that have separate curves."""
    return group_names(metrics) if str(metrics.attrs.get("by_group", "0")) == "1" else []


def group_names(metrics: xr.Dataset) -> list[Any]:
    """The names of the groups; empty if all agents are in one group."""
    names = np.unique(metrics["group"].values).tolist() if "group" in metrics else []
    return names if len(names) > 1 else []


def _weights_in_frame(metrics: xr.Dataset) -> int:
    """The number of nonzero weights in a snapshot of the first seed, over the cells in which weights change."""
    if "weight" not in metrics:
        return 0
    first = np.nan_to_num(metrics["weight"].isel(seed=0).transpose("cell", "snapshot", "agent", "slot").values)
    changing = (first != first[:, :1]).any(axis=(1, 2, 3))
    return int(np.count_nonzero(first[changing]) // first.shape[1])


def network_tree(metrics: xr.Dataset, detail: Detail) -> Tree:
    """The agents and their neighbours, for the seeds with single agents."""
    some = metrics.isel(seed=slice(detail.seeds))
    names = group_names(metrics)
    tree: Tree = {
        "size": metrics.sizes["agent"],
        "agents": np.array(detail.agents),
        "seeds": detail.seeds,
        "groups": [str(name) for name in names],
        "drawnGroups": len(drawn_groups(metrics)),
        "group": None,
        "position": None,
        "sender": None,
    }
    if names:
        tree["group"] = np.searchsorted(names, some["group"].transpose("seed", "agent").values[:, detail.agents])
    # The page draws a network only with its weights, which are not recorded for large networks.
    if "position" in metrics and "weight" in metrics and metrics.sizes["axis"] >= 2:
        tree["position"] = some["position"].transpose("seed", "agent", "axis").values[:, :, :2].astype(float)
    if "sender" in metrics:
        senders = some["sender"].transpose("seed", "agent", "slot").values.astype(float)
        tree["sender"] = np.nan_to_num(senders, nan=-1).astype(int)
        tree["slots"] = metrics.sizes["slot"]
    return tree


def cell_tree(cell: xr.Dataset, metrics: Sequence[str], detail: Detail) -> Tree:
    """Curves of every metric, the values of every agent at the end and over time, and the weights at some rounds."""
    groups, some = drawn_groups(cell), cell.isel(seed=slice(detail.seeds))
    curves: list[Tree | None] = []
    agents: list[Tree | None] = []
    ends: list[Array | None] = []
    for name in metrics:
        known = name in cell and bool(cell[name].notnull().any())
        curves.append(_curves(cell, name, detail.points, groups) if known else None)
        agents.append(_agent_curves(some, name, detail) if known and detail.agent_points else None)
        ends.append(final(some, name).transpose("seed", "agent").values[:, detail.agents] if known else None)
    is_byzantine = some["byzantine_agent"].transpose("seed", "agent").values.astype(int)
    shared = {"curves": curves, "agentCurves": agents, "agentEnds": ends}
    return {**shared, "byzantine": is_byzantine, "weights": _weights(some, detail.frames)}


def _curves(cell: xr.Dataset, metric: str, points: int, groups: Sequence[Any]) -> Tree:
    """The mean and the range over all agents (and over each group), and the mean of each seed; one row each."""
    time, at, values = of_normal(cell, metric, points)
    return {
        "unit": time,
        "window": smoothed_rounds(cell, metric) if smoothing_window(cell, metric) > 1 else 0,
        "time": at.astype(int),
        "pooled": [pooled(values), *(pooled(in_group(values, cell, group)) for group in groups)],
        "seeds": mean_of_seeds(values),
    }


def _agent_curves(cell: xr.Dataset, metric: str, detail: Detail) -> Tree:
    listed = cell[[metric, "byzantine_agent"]].isel(agent=list(detail.agents))
    _, at, values = of_normal(listed, metric, detail.agent_points)
    return {"time": at.astype(int), "values": values.transpose(1, 2, 0)}


def _weights(cell: xr.Dataset, frames: int) -> Tree | None:
    """Weights at some rounds, without repeated snapshots.

    The weights of Byzantine agents are left out, because these agents follow no rule.
    """
    if "weight" not in cell or not bool(cell["weight"].notnull().any()):
        return None
    known = cell["weight"].dropna("snapshot", how="all")
    values = np.nan_to_num(known.transpose("snapshot", "seed", "agent", "slot").values)
    kept = np.unique(np.linspace(0, len(values) - 1, min(len(values), frames)).round().astype(int))
    is_byzantine = cell["byzantine_agent"].transpose("seed", "agent").values.astype(bool)
    pictures = np.where(is_byzantine[None, :, :, None], 0, values[kept])
    distinct, which = np.unique(pictures.reshape(len(kept), -1), axis=0, return_inverse=True)
    return {
        "rounds": known["snapshot"].values[kept].astype(int),
        "recorded": len(values),
        "frame": which.ravel(),
        "values": distinct,
    }
