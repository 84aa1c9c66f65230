"""`varangian reproduce`: the paper's figures and tables."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import varangian
from varangian import experiments, report
from varangian.cli.options import (
    Address,
    Data,
    Engine,
    GpusPerShard,
    Jobs,
    Overwrite,
    Quiet,
    Resume,
    Shards,
    check_jobs,
    check_local,
    engine_of,
    look_for_data_in,
    with_run_options,
)
from varangian.cli.signals import connected
from varangian.core.errors import BadInput
from varangian.engine.cluster import RayCluster
from varangian.engine.options import RunSettings

if TYPE_CHECKING:
    import xarray as xr

    from varangian.experiments.config import Plan


@with_run_options()
def reproduce(
    studies: Annotated[
        list[str] | None, typer.Argument(metavar="[STUDY…|all]", help="The studies. By default the three of the paper.")
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Minutes instead of hours: fewer rounds, agents and seeds.")
    ] = False,
    options: RunSettings = {},  # noqa: B006
    data: Data = None,
    out: Annotated[Path, typer.Option(help="The folder for the table, and for one folder per study.")] = Path(
        "runs/reproduce"
    ),
    resume: Resume = False,
    overwrite: Overwrite = False,
    jobs: Jobs = None,
    engine: Engine = "local",
    address: Address = None,
    shards: Shards = None,
    gpus_per_shard: GpusPerShard = None,
    quiet: Quiet = False,
) -> None:
    """Make the paper's figures and tables: every study, rule and number of Byzantine agents, at the paper's settings.

    Every study gets a run folder with the paper's figures. `table.md` compares our numbers with the published ones.
    After an interrupt, run the same command with `--resume`: finished studies and finished cells are kept.
    """
    cluster = engine_of(engine, address, shards, gpus_per_shard)
    check_local(options, cluster)
    check_jobs(jobs, cluster)
    look_for_data_in(data)
    paper = experiments.reproduce
    names = [name for asked in studies or ["all"] for name in (paper.PAPER if asked == "all" else (asked,))]
    plans = [paper.plan_of(name, fast, **options) for name in dict.fromkeys(names)]
    at_once = [_checked(plan, jobs, cluster) for plan in plans]
    begun = [bool(experiments.folder_state.held(out / plan.study.name)) for plan in plans]
    if resume and not any(begun):
        raise BadInput(f"{out} holds no study to resume; leave --resume out")
    rows: list[dict[str, Any]] = []
    try:
        with connected(cluster):
            for plan, here in zip(plans, begun, strict=True):  # check all of them before hours of work on the first
                experiments.run_folder.check(out / plan.study.name, plan, resume=resume and here, overwrite=overwrite)
            for plan, here, processes in zip(plans, begun, at_once, strict=True):
                folder = out / plan.study.name
                metrics = _reproduced(plan, folder, resume and here, overwrite, cluster, quiet, processes)
                rows += paper.comparison(metrics)
    except KeyboardInterrupt:
        print("varangian: interrupted; to continue, run the same command with --resume", file=sys.stderr)
        raise
    report.paper.write_comparison(rows, out)
    if rows and not quiet:
        print(f"Our numbers and the published ones: {out}/table.md")


def _checked(plan: Plan, jobs: int | None, cluster: RayCluster | None) -> int:
    """Check a plan; returns how many processes are to run its cells."""
    scene = experiments.config.check(plan)
    return jobs or (1 if cluster else experiments.players.usual_jobs(plan, scene))


def _reproduced(
    plan: Plan, folder: Path, resume: bool, overwrite: bool, cluster: RayCluster | None, quiet: bool, jobs: int
) -> xr.Dataset:
    """Run a study in its folder and draw its figures. If it is finished, read its results instead."""
    with experiments.run_folder.opened(folder, plan, resume=resume, overwrite=overwrite) as place:
        if place.finished:
            metrics: xr.Dataset = varangian.load(folder / "metrics.nc")
        else:
            with nullcontext() if quiet else report.terminal.Terminal(plan) as terminal:
                watchers = [] if terminal is None else [terminal]
                metrics = experiments.sweep.sweep(
                    plan, place.cells, resume=place.resumed, watchers=watchers, engine=cluster, jobs=jobs
                )
            figures = report.paper.draw_paper_figures(metrics, place.result)
            figures += report.paper.draw_samples(plan.study, place.result)
            report.folder.finish(place, metrics, figures)
    if not quiet:
        report.table.print_table(metrics, list(experiments.summary.summary_rows(metrics)))
        print(f"{'Finished before, in' if place.finished else 'Written to'} {folder}")
    return metrics
