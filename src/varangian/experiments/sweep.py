"""Every combination of a plan, run one after another into one folder that can be left and taken up again."""

from __future__ import annotations

import csv
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xarray as xr

from varangian.core.scene import Byzantine
from varangian.engine import results
from varangian.engine.callbacks import Callback, Progress
from varangian.engine.cluster import Engine, RayCluster, chosen
from varangian.engine.recorder import Recorder
from varangian.engine.run import simulate
from varangian.engine.state import State
from varangian.engine.world import World
from varangian.errors import BadInput
from varangian.experiments.config import Plan, as_toml, from_toml

UNFINISHED = ".unfinished"
"""Where a run folder keeps finished cells and checkpoints until all is done."""


@dataclass(frozen=True)
class Cell:
    """One combination of rule, attack and Byzantine agents."""

    rule: str
    attack: str
    byzantine: Byzantine

    def __str__(self) -> str:
        attack = f": {self.attack}" if self.byzantine and self.attack else ""
        return f"{self.rule}, {count_of(self.byzantine)} Byzantine{attack}"

    @property
    def key(self) -> str:
        """A file name; without Byzantine agents all attacks are one."""
        about = (self.rule, self.attack, self.byzantine) if self.byzantine else (self.rule,)
        plain = "".join(c if (c.isascii() and c.isalnum()) or c in "-=." else "_" for c in str(self))
        # Long lists do not fit into a file name, and not every character may stand in one.
        return f"{plain[:80]}-{hashlib.sha256(repr(about).encode()).hexdigest()[:12]}"


def count_of(byzantine: Byzantine) -> str:
    return str(byzantine) if isinstance(byzantine, int | float) else "+".join(map(str, byzantine)) or "0"


def cells(plan: Plan) -> list[Cell]:
    """All combinations, in the order they were asked for."""
    return [Cell(r, a, b) for b in plan.byzantine for a in plan.attacks for r in plan.rules]


class SeedsProgress(Progress):
    """Tells of a round once for every seed that plays it: small networks play all seeds at once."""

    def start(self, world: World, state: State, rounds: int) -> None:
        self.advance(state.round * len(world.seeds))

    def round(self, world: World, state: State, recorder: Recorder) -> None:
        self.advance(len(world.seeds))


class Watcher(Protocol):
    """Follows a sweep from cell to cell."""

    def begin(self, cell: Cell) -> Sequence[Callback]:
        """A cell begins; returns who watches its rounds."""
        ...

    def follow(self, running: Mapping[Cell, int]) -> None:
        """Cells are running elsewhere, several at once, and have played so many rounds, all seeds counted."""
        ...

    def finish(self, cell: Cell, result: xr.Dataset) -> None:
        """A cell is done: just run, or found finished."""
        ...


def sweep(
    plan: Plan,
    folder: Path | None,
    *,
    resume: bool = False,
    begin: Callable[[Cell], object] = lambda cell: None,
    advance: Callable[[int], object] = lambda rounds: None,
    watchers: Sequence[Watcher] = (),
    engine: Engine | None = None,
    compile: bool = False,
) -> xr.Dataset:
    """Run all cells, keeping finished ones in the folder as they finish; the result has a dimension `cell`.

    On a Ray cluster cells are run side by side, or each spread over shards; the results are the same.
    """
    done: dict[str, xr.Dataset] = {}
    kept = folder and folder / UNFINISHED
    cluster = chosen(engine)
    if cluster is not None and cluster.shards == 1:
        from varangian.experiments.cluster_sweep import spread

        done = spread(plan, kept, cluster, resume=resume, begin=begin, advance=advance, watchers=watchers)
        return joined(plan, [(cell, done[cell.key]) for cell in cells(plan)])
    with nullcontext() if cluster is None else cluster.connected():
        for cell in cells(plan):
            begin(cell)
            watching = [callback for watcher in watchers for callback in watcher.begin(cell)]
            callbacks = [SeedsProgress(advance), *watching]
            if cluster is not None:  # rounds are played elsewhere: all that is heard of them is how many
                callbacks = [Progress(_followed(cell, advance, watchers))]
            if cell.key not in done:
                done[cell.key] = _run(plan, cell, kept, resume, advance, callbacks, cluster, compile)
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
    compile: bool,
) -> xr.Dataset:
    if resume and folder and file_of(folder, cell).exists():
        advance(plan.study.rounds * plan.seeds)
        return results.load(file_of(folder, cell))
    result = play(plan, cell, folder, resume, callbacks, cluster, compile)
    if folder:
        keep(result, folder, cell)
    return result


def play(
    plan: Plan,
    cell: Cell,
    folder: Path | None,
    resume: bool,
    callbacks: Sequence[Callback],
    cluster: RayCluster | None = None,
    compile: bool = False,
) -> xr.Dataset:
    """Run one cell, with its network spread over the shards of a cluster if there is one; an interrupt leaves a
    checkpoint in the folder."""
    return simulate(
        plan.study,
        rule=plan.rule(cell.rule),
        attack=plan.attack(cell.attack),
        byzantine=cell.byzantine,
        seeds=plan.seeds,
        device=plan.device,
        dtype=plan.dtype,
        judge_dtype=plan.judge_dtype,
        memory=plan.memory,
        checkpoint=folder and folder / cell.key,
        resume=resume,
        callbacks=callbacks,
        engine=cluster,
        compile=compile,
    )


def file_of(folder: Path, cell: Cell) -> Path:
    """Where a finished cell is kept."""
    return folder / f"{cell.key}.nc"


def keep(result: xr.Dataset, folder: Path, cell: Cell) -> None:
    """Put a finished cell into the folder, in place of its checkpoints."""
    results.save(result, file_of(folder, cell))
    shutil.rmtree(folder / cell.key, ignore_errors=True)


def joined(plan: Plan, parts: Sequence[tuple[Cell, xr.Dataset]]) -> xr.Dataset:
    """All cells as one Dataset; what is the same in every cell is there once."""
    # A rule without weights has no senders either; then the others' are everyone's.
    shared = {name: part[name] for name in ("position", "group", "sender") for _, part in parts if name in part}
    own = [part.drop_vars(shared, errors="ignore").drop_attrs() for _, part in parts]
    together = xr.concat(own, "cell", data_vars="all", coords="minimal", join="outer", fill_value=np.nan)
    # Cells whose rule has no weights leave holes, which turn truth values into objects.
    together["byzantine_agent"] = together["byzantine_agent"].astype(bool)
    together = together.assign(shared).assign_coords(
        rule=("cell", [cell.rule for cell, _ in parts]),
        attack=("cell", [cell.attack for cell, _ in parts]),
        byzantine=("cell", [int(part["byzantine_agent"].isel(seed=0).sum()) for _, part in parts]),
    )
    about = {"study": plan.study.name, "metric": plan.study.metric, "by_group": str(int(plan.study.by_group))}
    return together.assign_attrs(about)


def summary_rows(metrics: xr.Dataset) -> Iterator[dict[str, Any]]:
    """One row per (study, rule, attack, byzantine, seed); where a study is told by group, with each group's figures."""
    told = str(metrics.attrs.get("by_group", "0")) == "1" and "group" in metrics
    groups = np.unique(metrics["group"].values).tolist() if told else []
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
    """Mean and worst over one group's normal agents, a row a seed; groups are numbered from 1, as in the paper."""
    only = cell.assign(byzantine_agent=cell["byzantine_agent"] | (cell["group"] != group))
    for row in results.summary(only):
        figures = {name.rpartition("_"): value for name, value in row.items() if name.endswith(("_mean", "_worst"))}
        yield {f"{metric}_group_{place}_{of}": value for (metric, _, of), value in figures.items()}


def write_summary(metrics: xr.Dataset, path: Path) -> list[dict[str, Any]]:
    """`summary.csv`, and its rows."""
    rows = list(summary_rows(metrics))
    columns = sorted(dict.fromkeys(name for row in rows for name in row), key=results.UNWEIGHED.__contains__)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    return rows


def open_folder(folder: Path, plan: Plan, resume: bool) -> None:
    """Make the run folder, or refuse it: only an empty folder or a run's own may be written to."""
    config = folder / "config.toml"
    try:
        if folder.exists() and not folder.is_dir():
            raise BadInput(f"{folder} is a file; --out names a folder")
        if folder.exists() and any(folder.iterdir()) and not _is_plan(config):
            raise BadInput(f"{folder} is not empty and holds no run; name another folder")
        if resume:
            if not config.exists():
                raise BadInput(f"{folder} holds no run to resume; leave --resume out")
            if config.read_text(encoding="utf-8") != as_toml(plan):
                raise BadInput(f"{config} is another plan; resume with: varangian run {config} --resume --out {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(13, "Permission denied")
        if not resume:
            _clear(folder)
        config.write_text(as_toml(plan), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{folder} cannot be written to: {error.strerror}") from error


def _is_plan(config: Path) -> bool:
    """Whether this is a configuration of ours: other programs have files of that name too."""
    try:
        from_toml(config)
    except BadInput:
        return False
    return True


def _clear(folder: Path) -> None:
    """Remove what an earlier run left, so that nothing of it can be taken for the new one's."""
    for made in (UNFINISHED, "tensorboard"):
        shutil.rmtree(folder / made, ignore_errors=True)
    figures = [path for kind in ("png", "pdf") for path in (folder / "figures").glob(f"*.{kind}")]
    for path in (*(folder / name for name in ("metrics.nc", "summary.csv", "report.html")), *figures):
        path.unlink(missing_ok=True)


def close_folder(folder: Path) -> None:
    """All is done: what was kept for resuming goes."""
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
