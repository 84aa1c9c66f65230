"""`varangian run`: every combination of rules, attacks, numbers of Byzantine agents and seeds on a study."""

from __future__ import annotations

import gc
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import varangian
from varangian import experiments, report
from varangian.cli.options import (
    Address,
    Attacks,
    Byzantine,
    Data,
    Engine,
    GpusPerShard,
    Jobs,
    Overwrite,
    Quiet,
    Resume,
    Rounds,
    Rules,
    Seeds,
    Settings,
    Shards,
    What,
    as_options,
    ask_for_large_pages,
    asked_for,
    check_folder,
    check_jobs,
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

    from varangian.core.scene import Scene
    from varangian.experiments.cells import Watcher
    from varangian.experiments.config import Plan
    from varangian.experiments.run_folder import RunFolder
    from varangian.report.live import Live
    from varangian.report.timings import Timings


@with_run_options()
def run(
    what: What,
    rule: Rules = None,
    attack: Attacks = None,
    byzantine: Byzantine = None,
    seeds: Seeds = None,
    rounds: Rounds = None,
    set_: Settings = None,
    options: RunSettings = {},  # noqa: B006
    data: Data = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder: configuration, metrics, summary, figures, report.")
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    live: Annotated[bool, typer.Option("--live", help="Serve the report on this machine during the run.")] = False,
    live_port: Annotated[int | None, typer.Option(help="The port of the live report. By default a free one.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write a log to --out/tensorboard.")] = False,
    jobs: Jobs = None,
    engine: Engine = "local",
    address: Address = None,
    shards: Shards = None,
    gpus_per_shard: GpusPerShard = None,
    timings: Annotated[
        bool, typer.Option("--timings", help="Print the seconds of each phase; also to --out/timings.csv, by cell.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Run every combination of rules, attacks, numbers of Byzantine agents and seeds on a study.

    Options given more than once are swept. By default, all values are those of the study, as in the paper.

        varangian run target-localization --rule alone --rule loss-based --byzantine 20 --seeds 5 --out runs/first

        varangian run runs/first/config.toml --out runs/again

        varangian run runs/first/config.toml --out runs/again --engine ray --address auto --overwrite
    """
    ask_for_large_pages(set_)
    spent = report.timings.Timings(shown=timings)
    cluster = engine_of(engine, address, shards, gpus_per_shard)
    if tensorboard and cluster is not None:
        raise BadInput("--tensorboard works only in this process, not with --engine ray; leave one of them out")
    if tensorboard and jobs is not None and jobs > 1:
        raise BadInput(f"--tensorboard works only in one process, not with --jobs {jobs}; leave one of them out")
    check_jobs(jobs, cluster)
    check_folder(out, resume, overwrite)
    if tensorboard and out is None:
        raise BadInput("--tensorboard needs --out, the folder to write to")
    if tensorboard:
        report.scalars.check_installed("tensorboard", "tensorboard")
    if options.get("save_models") and out is None:
        raise BadInput("--save-models needs --out, the folder to write to")
    look_for_data_in(data)
    asked = asked_for(what, rule, attack, byzantine, seeds, rounds, set_, options, cluster)
    with spent.watch.phase("set-up"):
        plan = experiments.config.plan_for(**asked)
        scene = experiments.config.check(plan)
    if not plan.study.attacks and plan.attacks == ("silent",) and any(plan.byzantine) and not (quiet or attack):
        silent = f"{plan.study.name} names no attack, so Byzantine agents are silent; choose one with --attack"
        print(f"varangian: {silent}", file=sys.stderr)
    try:
        port = live_port or 0 if live or live_port is not None else None
        _run(plan, out, resume, overwrite, quiet, port, tensorboard, cluster, spent, scene, jobs)
        if timings and not quiet:
            print(spent.line)
    except KeyboardInterrupt:
        message = "varangian: interrupted"
        if out is not None:
            config = experiments.run_folder.config_to_resume(out, plan)
            again = ["varangian", "run", str(config), "--resume", "--out", str(out)]
            again += ["--data", str(data)] if data is not None else []
            message += f"; go on with: {shlex.join(again + as_options(cluster))}"
        print(message, file=sys.stderr)
        raise


def _run(
    plan: Plan,
    out: Path | None,
    resume: bool,
    overwrite: bool,
    quiet: bool,
    port: int | None,
    tensorboard: bool,
    cluster: RayCluster | None,
    timings: Timings,
    scene: Scene,
    jobs: int | None,
) -> None:
    with ExitStack() as stack:
        gc.freeze()  # what was imported stays: to look through it for garbage takes a tenth of a short run
        stack.callback(gc.unfreeze)
        stack.enter_context(connected(cluster))  # first: without a cluster, nothing should be written
        live = None if port is None else report.live.Live(plan, port)
        place = None
        if out is not None:
            opened = experiments.run_folder.opened(out, plan, resume=resume, overwrite=overwrite)
            place = stack.enter_context(opened)
        artist = None if place is None or place.finished else stack.enter_context(report.folder.artist_for(plan))
        if place is not None and place.finished and plan.options.save_models and not report.folder.has_models(out):
            raise BadInput(f"{out} holds this run, finished without models; add --overwrite to run it again")
        if out is not None and place is not None and place.finished:
            metrics: xr.Dataset = varangian.load(out / "metrics.nc")
        else:
            metrics = _swept(plan, place, quiet, live, tensorboard, cluster, timings, scene, jobs)
        with timings.watch.phase("figures"):
            report.folder.begin_figures(artist, metrics)
        with timings.watch.phase("report"):
            rows = list(experiments.summary.summary_rows(metrics))
            if not quiet:
                report.table.print_table(metrics, rows)
        if place is not None and not place.finished:
            report.folder.finish(place, metrics, timings=timings, artist=artist, rows=rows)
        if place is not None and not quiet:
            files = "config.toml, metrics.nc, summary.csv, figures/, report.html"
            files += ", models/" if plan.options.save_models else ""
            print(f"{'Finished before, in' if place.finished else 'Written to'} {out}: {files}")


def _swept(
    plan: Plan,
    place: RunFolder | None,
    quiet: bool,
    live: Live | None,
    tensorboard: bool,
    cluster: RayCluster | None,
    timings: Timings,
    scene: Scene,
    jobs: int | None,
) -> xr.Dataset:
    """Run all cells, and show the progress on the terminal, in the live report and in TensorBoard."""
    with ExitStack() as stack:
        watchers: list[Watcher] = [timings]
        if tensorboard and place is not None:
            watchers.append(report.tensorboard.TensorBoard(place.tensorboard))
        if live is not None:
            watchers.append(stack.enter_context(live))
            print(f"Follow the run at {live.url}", file=sys.stderr, flush=True)
        if not quiet:
            watchers.append(stack.enter_context(report.terminal.Terminal(plan)))
        cells, resume = (None, False) if place is None else (place.cells, place.resumed)
        with timings.watch.phase("set-up"):
            scenes = experiments.groups.shared_scenes(plan, scene) if cluster is None else [scene]
            if jobs is None:  # TensorBoard and the live report follow every round, which only this process can show
                jobs = 1 if tensorboard or live or cluster else experiments.players.usual_jobs(plan, scene)
        with timings.watch.phase("writing"):  # what is left besides the phases of the cells
            return experiments.sweep.sweep(
                plan, cells, resume=resume, watchers=watchers, engine=cluster, scenes=scenes, jobs=jobs
            )
