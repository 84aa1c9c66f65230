"""A sweep on a Ray cluster: one task per group of cells. The process that started the sweep saves the results."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch

from varangian.core.errors import BadInput
from varangian.engine.cluster.progress import Writer, progress_board
from varangian.engine.cluster.ray_cluster import RayCluster
from varangian.engine.cluster.task_pool import in_tasks
from varangian.engine.process_pool import Lost
from varangian.engine.simulated import Result
from varangian.experiments.cells import Cell, Watcher, cells, found, keep
from varangian.experiments.config import Plan
from varangian.experiments.groups import Group, groups_of, play_group


def spread(
    plan: Plan,
    folder: Path | None,
    cluster: RayCluster,
    *,
    resume: bool,
    begin: Callable[[Cell], object],
    advance: Callable[[int], object],
    watchers: Sequence[Watcher],
) -> dict[str, Result]:
    """The result of every cell, by its key. Cells found in the folder are not run; finished cells are saved there.

    Cells with the same key run once. Rounds are computed in other processes, so watchers only get their number.

    Args:
        plan: What to run.
        folder: Where to keep finished cells and checkpoints.
        cluster: Where to run.
        resume: Use what the folder holds.
        begin: Called with each cell that begins.
        advance: Called with the number of rounds computed since the last call.
        watchers: Objects that follow the sweep from cell to cell.
    """
    cluster.check_device(plan.options.device)
    alike: dict[str, list[Cell]] = {}
    for cell in cells(plan):
        alike.setdefault(cell.key, []).append(cell)
    of_cell = plan.study.rounds * plan.seeds
    done: dict[str, Result] = {}

    def started(cell: Cell) -> None:
        begin(cell)
        for watcher in watchers:
            watcher.begin(cell)  # its callbacks are not used: no rounds are computed in this process

    def finish(key: str, result: Result) -> None:
        done[key] = result
        for number, cell in enumerate(alike[key]):
            if number:
                started(cell)
                advance(of_cell)
            for watcher in watchers:
                watcher.finish(cell, result)

    known = {first.key: found(plan, folder, first) if resume else None for first, *_ in alike.values()}
    groups = groups_of(plan)
    left = [group for group in groups if any(known[cell.key] is None for cell in group.cells)]
    for cell in (cell for group in groups if group not in left for cell in group.cells):
        if (finished := known[cell.key]) is not None:
            started(cell)
            advance(of_cell)
            finish(cell.key, finished)
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        for key in (key for group in left for key in (group.key, *(cell.key for cell in group.cells)) if not resume):
            shutil.rmtree(folder / key, ignore_errors=True)
    by_key = {group.key: group for group in left}

    def begun(group: Group) -> None:
        for cell in group.cells:
            started(cell)

    with cluster.connected(), progress_board(of_cell, advance) as reader:

        def look() -> None:
            running = {
                cell: rounds // len(by_key[key].cells)
                for key, rounds in reader.look().items()
                for cell in by_key[key].cells
            }
            for watcher in watchers:
                watcher.follow(running)

        work = partial(_play, plan, folder and folder.resolve(), reader.board)
        with closing(in_tasks(work, left, cluster, begun, look)) as finishing:
            for group, came in finishing:
                if isinstance(came, Lost):
                    raise BadInput(f"{group}: {came}; finished cells are kept")
                reader.finish(group.key, len(group.cells))
                for cell, result in zip(group.cells, came, strict=True):
                    if folder and known[cell.key] is None:
                        keep(result, folder, cell)
                    finish(cell.key, known[cell.key] or result)
                if folder:
                    shutil.rmtree(folder / group.key, ignore_errors=True)
    return done


def _play(plan: Plan, folder: Path | None, writers_board: Any, group: Group) -> list[Result]:
    """Run a group of cells on one core.

    If this machine can access the run folder, an interrupted group saves a checkpoint there, and a group continues from
    a checkpoint that another process saved.
    """
    torch.set_num_threads(1)
    near = folder if folder is not None and folder.is_dir() else None
    return play_group(plan, group, near, near is not None, {}, Writer(writers_board, group.key))
