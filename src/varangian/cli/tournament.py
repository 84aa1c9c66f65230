"""`varangian tournament`: every rule against every attack, with one figure of all results."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from varangian import experiments, report
from varangian.cli.options import (
    Address,
    Attacks,
    Byzantine,
    Data,
    Engine,
    GpusPerShard,
    Overwrite,
    Quiet,
    Resume,
    Rounds,
    Rules,
    Seeds,
    Settings,
    Shards,
    What,
    asked_for,
    check_folder,
    check_jobs,
    engine_of,
    look_for_data_in,
    with_run_options,
)
from varangian.cli.signals import connected
from varangian.engine.options import RunSettings


@with_run_options(without=["record_every"])
def tournament(
    what: What,
    rules: Rules = None,
    attacks: Attacks = None,
    byzantine: Byzantine = None,
    seeds: Seeds = None,
    rounds: Rounds = None,
    set_: Settings = None,
    options: RunSettings = {},  # noqa: B006
    data: Data = None,
    out: Annotated[Path | None, typer.Option(help="The folder for finished cells and results.")] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="How many processes run cells at the same time. By default one per core, or one on a GPU.", metavar="N"
        ),
    ] = None,
    engine: Engine = "local",
    address: Address = None,
    shards: Shards = None,
    gpus_per_shard: GpusPerShard = None,
    quiet: Quiet = False,
) -> None:
    """Run every rule against every attack: which rule to use, and which attack breaks it.

    By default this runs all rules, all attacks and 5 seeds. It always runs no cooperation too, and compares every cell
    with it. The results are `tournament.csv`, `tournament.md` and `tournament.png`. With `--resume`, finished cells are
    not run again: use it after an interrupt, or to add rules and attacks.

        varangian tournament target-localization --byzantine 20 --seeds 5 --out runs/tournament

        varangian tournament target-localization --rules average,loss-based --attacks pulling --out runs/small

        varangian tournament target-localization --engine ray --address auto --out runs/tournament --resume
    """
    cluster = engine_of(engine, address, shards, gpus_per_shard)
    check_jobs(jobs, cluster)
    check_folder(out, resume, overwrite)
    look_for_data_in(data)
    asked = asked_for(what, rules, attacks, byzantine, seeds, rounds, set_, options, cluster)
    contest = experiments.tournament.entries.enter(**asked)
    total = len(contest.cells) * contest.plan.seeds * contest.rounds
    try:
        with connected(cluster), _progress(total, quiet) as (begin, advance):
            at_once = 1 if cluster else experiments.tournament.run.usual_jobs(contest) if jobs is None else jobs
            how: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "jobs": at_once, "engine": cluster}
            standings = report.tournament.compete_into(contest, out, begin=begin, advance=advance, **how)
    except KeyboardInterrupt:
        hint = "; to continue, run the same command with --resume" if out else ""
        print(f"varangian: interrupted{hint}", file=sys.stderr)
        raise
    if not quiet:
        report.standings.print_standings(standings)
        if out is not None:
            print(f"In {out}: config.toml, tournament.csv, tournament.md, tournament.png")
    failed = [outcome for outcome in standings.outcomes if outcome.problem.startswith("failed")]
    if failed:
        first = f"{failed[0].rule} under {failed[0].attack or 'no attack'} {failed[0].problem}"
        print(f"varangian: {len(failed)} cells failed; the first is {first}", file=sys.stderr)
        raise typer.Exit(1)


@contextmanager
def _progress(total: int, quiet: bool) -> Iterator[tuple[Any, Any]]:
    """A progress bar on a terminal, one line per cell elsewhere, nothing with `--quiet`."""
    if quiet:
        yield (lambda cell: None), (lambda rounds: None)
    elif not sys.stderr.isatty():
        yield (lambda cell: print(f"{cell} …", file=sys.stderr, flush=True)), (lambda rounds: None)
    else:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=total)
            yield (lambda cell: bar.update(task, description=str(cell))), (lambda rounds: bar.advance(task, rounds))
