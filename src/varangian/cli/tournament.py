"""`varangian tournament`: every rule against every attack, one picture at the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from varangian.cli.options import (
    Address,
    Byzantine,
    Data,
    Engine,
    GpusPerShard,
    Quiet,
    Settings,
    Shards,
    What,
    engine_of,
    pair,
)
from varangian.errors import BadInput

Entrants = "`all` (unless given), or names, such as `{}`. Repeat, or part by commas."
Rules = Annotated[list[str] | None, typer.Option("--rules", "--rule", help=Entrants.format("loss-based:keep=all"))]
Attacks = Annotated[
    list[str] | None, typer.Option("--attacks", "--attack", help=Entrants.format("uniform:low=15,high=16"))
]


def tournament(
    what: What,
    rules: Rules = None,
    attacks: Attacks = None,
    byzantine: Byzantine = None,
    seeds: Annotated[int | None, typer.Option(help="Run seeds 0 … S−1; 5 unless given.", metavar="S")] = None,
    rounds: Annotated[int | None, typer.Option(help="How many rounds.", metavar="T")] = None,
    set_: Settings = None,
    device: Annotated[str | None, typer.Option(help="`auto`, `cpu`, `cuda`, …")] = None,
    dtype: Annotated[str | None, typer.Option(help="`float32` or `float64`.")] = None,
    data: Data = None,
    out: Annotated[Path | None, typer.Option(help="The folder for what is finished and for the results.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Insist that --out holds a tournament to go on with; else it may be new.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(help="Cells to run at once, a process each; one a core, or one on a GPU.", metavar="N")
    ] = None,
    engine: Engine = "local",
    address: Address = None,
    shards: Shards = None,
    gpus_per_shard: GpusPerShard = None,
    quiet: Quiet = False,
) -> None:
    """Let every rule meet every attack: which rule to use, and what breaks it.

    Every cell is compared with no cooperation, which is always run too. The folder then holds `tournament.csv`,
    `tournament.md` and `tournament.png`. What is finished is never run again: give the same command to go on after an
    interrupt, or with more rules and attacks to add them.

        varangian tournament target-localization --byzantine 20 --seeds 5 --out runs/tournament

        varangian tournament target-localization --rules average,loss-based --attacks pulling --out runs/small

        varangian tournament target-localization --engine ray --address auto --out runs/tournament
    """
    cluster = engine_of(engine, address, shards, gpus_per_shard)
    if cluster is not None and jobs is not None:
        raise BadInput("--jobs counts processes of this machine; leave it out with --engine ray, which has its own")
    if resume and out is None:
        raise BadInput("--resume needs --out, the folder of the tournament to go on with")
    if data is not None:
        os.environ["VARANGIAN_DATA"] = str(data)
    from varangian.experiments.config import from_toml, read_byzantine
    from varangian.experiments.tournament.entries import enter
    from varangian.experiments.tournament.run import compete, usual_jobs
    from varangian.report.standings import print_standings

    stored: dict[str, Any] = from_toml(Path(what)) if what.endswith(".toml") else {"study": what}
    given: dict[str, Any] = {
        "rules": parted(rules or ()),
        "attacks": parted(attacks or ()),
        "byzantine": [read_byzantine(value) for value in byzantine or ()],
        "seeds": seeds,
        "rounds": rounds,
        "device": device,
        "dtype": dtype,
    }
    stored |= {name: value for name, value in given.items() if value not in (None, [])}
    stored["settings"] = {**stored.get("settings", {}), **dict(pair(text) for text in set_ or ())}
    contest = enter(**stored)
    total = len(contest.cells) * contest.plan.seeds * contest.rounds
    try:
        with nullcontext() if cluster is None else cluster.connected(), _progress(total, quiet) as (begin, advance):
            at_once = 1 if cluster else usual_jobs(contest) if jobs is None else jobs
            how: dict[str, Any] = {"jobs": at_once, "resume": resume, "engine": cluster}
            standings = compete(contest, out, begin=begin, advance=advance, **how)
    except KeyboardInterrupt:
        print(f"varangian: interrupted{'; give the same command to go on' if out else ''}", file=sys.stderr)
        raise
    if not quiet:
        print_standings(standings)
        if out is not None:
            print(f"Written to {out}: config.toml, tournament.csv, tournament.md, tournament.png")
    failed = [outcome for outcome in standings.outcomes if outcome.problem.startswith("failed")]
    if failed:
        first = f"{failed[0].rule} under {failed[0].attack or 'no attack'} {failed[0].problem}"
        print(f"varangian: {len(failed)} cells failed, the first being {first}", file=sys.stderr)
        raise typer.Exit(1)


def parted(texts: Sequence[str]) -> list[str]:
    """The names in texts that may hold several, parted by commas; a comma before `key=` is a parameter's.

    >>> parted(["alone,sleeper:until=5,then=uniform:low=1,high=2,silent", "average"])
    ['alone', 'sleeper:until=5,then=uniform:low=1,high=2', 'silent', 'average']
    """
    names: list[str] = []
    for text in texts:
        first = len(names)
        for piece in filter(None, map(str.strip, text.split(","))):
            if "=" in piece.partition(":")[0] and len(names) > first:
                names[-1] += f",{piece}"
            else:
                names.append(piece)
    return names


@contextmanager
def _progress(total: int, quiet: bool) -> Iterator[tuple[Any, Any]]:
    """A bar on a terminal, a line a cell elsewhere, nothing when quiet."""
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
