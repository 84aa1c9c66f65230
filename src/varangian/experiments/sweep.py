"""Runs every combination of a plan, one after another or in parallel, and joins the results into one dataset."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import xarray as xr

from varangian.core.scene import Scene
from varangian.engine.about import about_plan
from varangian.engine.callbacks import Callback, Progress
from varangian.engine.cluster import Engine, RayCluster, chosen
from varangian.engine.process_pool import check_jobs
from varangian.engine.simulated import Result
from varangian.experiments.cells import Cell, Watcher, cells, found, is_kept, keep
from varangian.experiments.cluster_sweep import spread
from varangian.experiments.config import Plan
from varangian.experiments.groups import Group, groups_of, play_group
from varangian.experiments.players import Player, Players
from varangian.studies.own_task import hash_of, scene_of


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
    jobs: int = 1,
) -> xr.Dataset:
    """Run all cells; the result has a dimension `cell`.

    With several jobs and on a Ray cluster, cells run in parallel; or each cell is spread over shards. The results are
    the same.

    Args:
        plan: What to run.
        folder: Where to keep finished cells and checkpoints until the whole sweep is done.
        resume: Use the finished cells and the checkpoints that the folder holds.
        begin: Called with each cell that begins.
        advance: Called with the number of rounds computed since the last call, summed over seeds.
        watchers: Objects that follow the sweep from cell to cell.
        engine: A Ray cluster to run on. By default this process.
        scenes: The networks of the first seeds, as `shared_scenes` makes them. By default every run makes its own.
        jobs: How many processes run cells at the same time. The others start only if the sweep takes long enough.
    """
    check_jobs(jobs)
    cluster = chosen(engine)
    if cluster is not None and cluster.shards == 1:
        done = spread(plan, folder, cluster, resume=resume, begin=begin, advance=advance, watchers=watchers)
    else:
        done = _Sweep(plan, folder, resume, begin, advance, watchers, cluster, scenes).played(jobs)
    return joined(plan, [(cell, done[cell.key]) for cell in cells(plan)])


@dataclass(frozen=True, eq=False)
class _Sweep:
    """A sweep that this process plays; other processes may help. The fields are arguments of `sweep`."""

    plan: Plan
    folder: Path | None
    resume: bool
    begin: Callable[[Cell], object]
    advance: Callable[[int], object]
    watchers: Sequence[Watcher]
    cluster: RayCluster | None
    scenes: Sequence[Scene]
    done: dict[str, Result] = field(default_factory=dict[str, Result])
    """The results so far, by the keys of cells."""

    def played(self, jobs: int) -> dict[str, Result]:
        """Play all cells; returns their results by key."""
        plan, cluster = self.plan, self.cluster
        alone = [Group((cell,)) for cell in cells(plan)]
        groups = groups_of(plan, scenes=self.scenes) if cluster is None else alone
        first = {cell.key: (cell, group) for group in reversed(groups) for cell in group.cells}
        fresh = [group for group in groups if not (self.resume and any(is_kept(self.folder, c) for c in group.cells))]
        data = hash_of(self.scenes[0] if self.scenes else scene_of(plan.study, None, 0)) if jobs > 1 else ""
        player = Player(plan, self.folder, self.resume, torch.get_num_threads(), data)
        with (
            nullcontext() if cluster is None else cluster.connected(),
            Players(player, fresh, jobs, self.of_cell, self.begun, self.finished_elsewhere, self.follow) as players,
        ):

            def advanced(rounds: int) -> None:
                self.advance(rounds)
                players.advance(rounds)

            for cell in cells(plan):
                one, group = first[cell.key]
                if cell.key not in self.done:
                    players.take(group)
                if cell.key not in self.done:
                    self.play(group, advanced)
                elif cell != one:  # the same run under another name
                    self.begun(Group((cell,)))
                    self.advance(self.of_cell)
                    self.tell(cell)
        return self.done

    @property
    def of_cell(self) -> int:
        """How many rounds a cell has, summed over seeds."""
        return self.plan.study.rounds * self.plan.seeds

    def play(self, group: Group, advance: Callable[[int], object]) -> None:
        """Play a group in this process. What is found in the folder stays as it is."""
        watching = self.begun(group)
        if self.cluster is not None:  # rounds are computed on the cluster, and only their number is known here
            watching = {cell: [Progress(_followed(cell, self.watchers))] for cell in group.cells}
        known = {cell: found(self.plan, self.folder, cell) if self.resume else None for cell in group.cells}
        if all(result is not None for result in known.values()):
            advance(self.of_cell * len(group.cells))
        else:
            results = play_group(
                self.plan, group, self.folder, self.resume, watching, advance, self.cluster, self.scenes
            )
            known = {cell: known[cell] or self.kept(cell, new) for cell, new in zip(group.cells, results, strict=True)}
        self.finish(group, known)

    def begun(self, group: Group) -> dict[Cell, list[Callback]]:
        """Tell that the cells of a group begin; returns what follows the rounds of each."""
        for cell in group.cells:
            self.begin(cell)
        return {cell: [one for watcher in self.watchers for one in watcher.begin(cell)] for cell in group.cells}

    def finished_elsewhere(self, group: Group, results: Sequence[Result]) -> None:
        """Another process has played a group."""
        self.finish(group, {cell: self.kept(cell, new) for cell, new in zip(group.cells, results, strict=True)})
        self.advance(self.of_cell * len(group.cells))

    def finish(self, group: Group, results: Mapping[Cell, Result | None]) -> None:
        """The results of a group are there, and in the folder. Its checkpoint is not needed any more."""
        if self.folder:
            shutil.rmtree(self.folder / group.key, ignore_errors=True)
        self.done.update({cell.key: result for cell, result in results.items() if result is not None})
        for cell in group.cells:
            self.tell(cell)

    def kept(self, cell: Cell, result: Result) -> Result:
        """The result, which is now in the folder, if there is one."""
        if self.folder:
            keep(result, self.folder, cell)
        return result

    def tell(self, cell: Cell) -> None:
        """Tell that a cell is finished."""
        for watcher in self.watchers:
            watcher.finish(cell, self.done[cell.key])

    def follow(self, played: Mapping[Group, int]) -> None:
        """Tell how many rounds of each group are played."""
        running = {cell: rounds // len(group.cells) for group, rounds in played.items() for cell in group.cells}
        for watcher in self.watchers:
            watcher.follow(running)


def _followed(cell: Cell, watchers: Sequence[Watcher]) -> Callable[[int], object]:
    played = 0

    def more(rounds: int) -> None:
        nonlocal played
        played += rounds
        for watcher in watchers:
            watcher.follow({cell: played})

    return more


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
