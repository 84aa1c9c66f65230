"""Runs every combination of a plan, one after another or in parallel, and joins the results into one dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import xarray as xr

from varangian.core.scene import Scene
from varangian.engine.about import about_plan
from varangian.engine.callbacks import Callback, Progress
from varangian.engine.cluster import Engine, RayCluster, chosen
from varangian.engine.simulated import Result
from varangian.experiments.cells import Cell, SeedsProgress, Watcher, cells, found, keep, play
from varangian.experiments.cluster_sweep import spread
from varangian.experiments.config import Plan


def sweep(
    plan: Plan,
    folder: Path | None,
    *,
    resume: bool = False,
    begin: Callable[[Cell], object] = lambda cell: None,
    advance: Callable[[int], object] = lambda rounds: None,
    watchers: Sequence[Watcher] = (),
    engine: Engine | None = None,
    scene: Scene | None = None,
) -> xr.Dataset:
    """Run all cells; the result has a dimension `cell`.

    On a Ray cluster, cells run in parallel, or each cell is spread over shards. The results are the same.

    Args:
        plan: What to run.
        folder: Where to keep finished cells and checkpoints until the whole sweep is done.
        resume: Use the finished cells and the checkpoints that the folder holds.
        begin: Called with each cell that begins.
        advance: Called with the number of rounds computed since the last call, summed over seeds.
        watchers: Objects that follow the sweep from cell to cell.
        engine: A Ray cluster to run on. By default this process.
        scene: The network of seed 0, as `check` returned it. By default every cell makes its own.
    """
    done: dict[str, Result] = {}
    cluster = chosen(engine)
    if cluster is not None and cluster.shards == 1:
        done = spread(plan, folder, cluster, resume=resume, begin=begin, advance=advance, watchers=watchers)
        return joined(plan, [(cell, done[cell.key]) for cell in cells(plan)])
    with nullcontext() if cluster is None else cluster.connected():
        for cell in cells(plan):
            begin(cell)
            watching = [callback for watcher in watchers for callback in watcher.begin(cell)]
            callbacks = [SeedsProgress(advance), *watching]
            if cluster is not None:  # rounds are computed on the cluster, and only their number is known here
                callbacks = [Progress(_followed(cell, advance, watchers))]
            if cell.key not in done:
                done[cell.key] = _run(plan, cell, folder, resume, advance, callbacks, cluster, scene)
            else:
                advance(plan.study.rounds * plan.seeds)
            for watcher in watchers:
                watcher.finish(cell, done[cell.key])
    return joined(plan, [(cell, done[cell.key]) for cell in cells(plan)])


def _followed(cell: Cell, advance: Callable[[int], object], watchers: Sequence[Watcher]) -> Callable[[int], object]:
    played = 0

    def more(rounds: int) -> None:
        nonlocal played
        played += rounds
        advance(rounds)
        for watcher in watchers:
            watcher.follow({cell: played})

    return more


def _run(
    plan: Plan,
    cell: Cell,
    folder: Path | None,
    resume: bool,
    advance: Callable[[int], object],
    callbacks: Sequence[Callback],
    cluster: RayCluster | None,
    scene: Scene | None,
) -> Result:
    if resume and (finished := found(plan, folder, cell)) is not None:
        advance(plan.study.rounds * plan.seeds)
        return finished
    result = play(plan, cell, folder, resume, callbacks, cluster, scene)
    if folder:
        keep(result, folder, cell)
    return result


def joined(plan: Plan, parts: Sequence[tuple[Cell, xr.Dataset]]) -> xr.Dataset:
    """All cells as one Dataset. Values that are the same in every cell are stored once."""
    # A rule without weights records no senders. The senders of the other rules hold for it too.
    shared = {name: part[name] for name in ("position", "group", "sender") for _, part in parts if name in part}
    own = [part.drop_vars(shared, errors="ignore").drop_attrs() for _, part in parts]
    together = xr.concat(own, "cell", data_vars="all", coords="minimal", join="outer", fill_value=np.nan)
    # Cells without weights cause missing values, and these turn booleans into objects.
    together["byzantine_agent"] = together["byzantine_agent"].astype(bool)
    together = together.assign(shared).assign_coords(
        rule=("cell", [cell.rule for cell, _ in parts]),
        attack=("cell", [cell.attack for cell, _ in parts]),
        byzantine=("cell", [int(part["byzantine_agent"].isel(seed=0).sum()) for _, part in parts]),
    )
    about = {"study": plan.study.name, "metric": plan.study.metric, "by_group": str(int(plan.study.by_group))}
    return together.assign_attrs({**about, **about_plan(plan.study, plan.options)})
