"""Runs every combination of a plan, one after another or in parallel, and joins the results into one dataset."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import xarray as xr

from varangian.core.scene import Scene
from varangian.engine.about import about_plan
from varangian.engine.callbacks import Callback, Progress
from varangian.engine.cluster import Engine, RayCluster, chosen
from varangian.engine.simulated import Result
from varangian.experiments.cells import Cell, Watcher, cells, found, keep
from varangian.experiments.cluster_sweep import spread
from varangian.experiments.config import Plan
from varangian.experiments.groups import Group, groups_of, play_group
from varangian.studies.own_task import scene_of


def sweep(
    plan: Plan,
    folder: Path | None,
    *,
    resume: bool = False,
    begin: Callable[[Cell], object] = lambda cell: None,
    advance: Callable[[int], object] = lambda rounds: None,
    watchers: Sequence[Watcher] = (),
    engine: Engine | None = None,
    scenes: Sequence[Scene] = (),
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
        scenes: The networks of the first seeds, as `shared_scenes` makes them. By default every run makes its own.
    """
    done: dict[str, Result] = {}
    cluster = chosen(engine)
    if cluster is not None and cluster.shards == 1:
        done = spread(plan, folder, cluster, resume=resume, begin=begin, advance=advance, watchers=watchers)
        return joined(plan, [(cell, done[cell.key]) for cell in cells(plan)])
    groups = [Group((cell,)) for cell in cells(plan)] if cluster is not None else groups_of(plan, scenes=scenes)
    first = {cell.key: (cell, group) for group in reversed(groups) for cell in group.cells}
    with nullcontext() if cluster is None else cluster.connected():
        for cell in cells(plan):
            one, group = first[cell.key]
            if cell.key not in done:
                watching = {cell: _begun(cell, begin, watchers) for cell in group.cells}
                if cluster is not None:  # rounds are computed on the cluster, and only their number is known here
                    watching = {cell: [Progress(_followed(cell, watchers))] for cell in group.cells}
                done |= _run(plan, group, folder, resume, advance, watching, cluster, scenes)
                for each in group.cells:
                    for watcher in watchers:
                        watcher.finish(each, done[each.key])
            elif cell != one:  # the same run under another name
                _begun(cell, begin, watchers)
                advance(plan.study.rounds * plan.seeds)
                for watcher in watchers:
                    watcher.finish(cell, done[cell.key])
    return joined(plan, [(cell, done[cell.key]) for cell in cells(plan)])


def shared_scenes(plan: Plan, first: Scene) -> list[Scene]:
    """The networks for all runs of a sweep: those of all seeds, if they are small enough, or else the first one."""
    groups = groups_of(plan, scenes=[first])
    several = len(groups) > 1 and any(len(group.cells) > 1 for group in groups)
    return [first, *(scene_of(plan.study, None, seed) for seed in range(1, plan.seeds if several else 1))]


def _begun(cell: Cell, begin: Callable[[Cell], object], watchers: Sequence[Watcher]) -> list[Callback]:
    """Tell that a cell begins; returns what follows its rounds."""
    begin(cell)
    return [callback for watcher in watchers for callback in watcher.begin(cell)]


def _followed(cell: Cell, watchers: Sequence[Watcher]) -> Callable[[int], object]:
    played = 0

    def more(rounds: int) -> None:
        nonlocal played
        played += rounds
        for watcher in watchers:
            watcher.follow({cell: played})

    return more


def _run(
    plan: Plan,
    group: Group,
    folder: Path | None,
    resume: bool,
    advance: Callable[[int], object],
    callbacks: Mapping[Cell, Sequence[Callback]],
    cluster: RayCluster | None,
    scenes: Sequence[Scene],
) -> dict[str, Result]:
    """The results of a group by the keys of its cells. What is found in the folder stays as it is."""
    done = {cell.key: known for cell in group.cells if resume and (known := found(plan, folder, cell)) is not None}
    if len(done) == len(group.cells):
        advance(plan.study.rounds * plan.seeds * len(group.cells))
        return done
    for cell, result in zip(
        group.cells, play_group(plan, group, folder, resume, callbacks, advance, cluster, scenes), strict=True
    ):
        if cell.key not in done:
            done[cell.key] = result
            if folder:
                keep(result, folder, cell)
    if folder:
        shutil.rmtree(folder / group.key, ignore_errors=True)
    return done


def joined(plan: Plan, parts: Sequence[tuple[Cell, xr.Dataset]]) -> xr.Dataset:
    """All cells as one Dataset. Values that are the same in every cell are stored once."""
    # A rule without weights records no senders. The senders of the other rules hold for it too.
    shared = {name: part[name] for name in ("position", "group", "sender") for _, part in parts if name in part}
    own = [part.drop_vars(shared, errors="ignore") for _, part in parts]
    together = xr.concat(
        own, "cell", data_vars="all", coords="minimal", join="outer", fill_value=np.nan, combine_attrs="drop"
    )
    # Cells without weights cause missing values, and these turn booleans into objects.
    together["byzantine_agent"] = together["byzantine_agent"].astype(bool)
    together = together.assign(shared).assign_coords(
        rule=("cell", [cell.rule for cell, _ in parts]),
        attack=("cell", [cell.attack for cell, _ in parts]),
        byzantine=("cell", [int(part["byzantine_agent"].isel(seed=0).sum()) for _, part in parts]),
    )
    about = {"study": plan.study.name, "metric": plan.study.metric, "by_group": str(int(plan.study.by_group))}
    return together.assign_attrs({**about, **about_plan(plan.study, plan.options)})
