"""The command line: parses, calls the library, prints. Heavy imports wait until a command needs them."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from varangian.cli.data import app as data_app
from varangian.cli.listing import listing
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
    as_options,
    engine_of,
)
from varangian.cli.options import pair as _pair
from varangian.cli.tournament import tournament
from varangian.core.version import __version__
from varangian.engine.cluster import RayCluster
from varangian.errors import BadInput

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Learn from your neighbours without trusting them: decentralised multi-task learning among agents of which "
    "any number may be Byzantine.",
)
app.add_typer(data_app, name="data", help="Datasets: what there is, where it is, how to get it.")


def main() -> None:
    """Run the command line; bad input is one line and status 2, an interrupt is status 130, a full disk status 1."""
    try:
        # Typer returns the status of a command that was left early, by an interrupt too; else what it returned: None.
        sys.exit(app(standalone_mode=False))
    except BadInput as error:
        _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except OSError as error:
        hint = "what had finished is kept: make room and give the same command with --resume"
        _fail(f"could not read or write: {error}; {hint}", status=1)
    except Exception as error:
        # Typer's own complaints (an unknown option, a missing argument) know how to show themselves.
        if hasattr(error, "format_message"):
            _fail(error.format_message())
        raise


def _fail(line: str, status: int = 2) -> None:
    if line.strip():  # without arguments, Typer has shown its help and has nothing to add
        print(f"varangian: {' '.join(line.split())}", file=sys.stderr)
    sys.exit(status)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"varangian {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


Rules = Annotated[
    list[str] | None,
    typer.Option("--rule", help="A rule, such as `loss-based` or `loss-based:keep=all`. Repeat to compare."),
]
Attacks = Annotated[
    list[str] | None,
    typer.Option(
        "--attack",
        help="An attack, such as `pulling` or `uniform:low=15,high=16`; without parameters, the study's own. "
        "Repeat to compare.",
    ),
]
Out = Annotated[Path | None, typer.Option(help="The run folder: configuration, metrics, summary, figures, report.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run in --out stopped.")]


@app.command()
def run(
    what: What,
    rule: Rules = None,
    attack: Attacks = None,
    byzantine: Byzantine = None,
    seeds: Annotated[int | None, typer.Option(help="Run seeds 0 … S−1.", metavar="S")] = None,
    rounds: Annotated[int | None, typer.Option(help="How many rounds.", metavar="T")] = None,
    set_: Settings = None,
    device: Annotated[str | None, typer.Option(help="`auto`, `cpu`, `cuda`, …")] = None,
    dtype: Annotated[str | None, typer.Option(help="`float32` or `float64`.")] = None,
    judge_dtype: Annotated[
        str | None, typer.Option(help="Judge neighbours in coarser numbers, such as `bfloat16`; faster on a GPU.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Keep to so much memory, such as `4GiB`; refuse what cannot fit.", metavar="SIZE")
    ] = None,
    compile_: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Compile rounds for this CPU: two to twenty seconds for rounds two to four times as fast, "
            "worth it in long runs and large networks. Needs a C++ compiler; results differ by rounding.",
        ),
    ] = False,
    threads: Annotated[
        int | None, typer.Option(help="Use so many CPU cores; unless given, one for small networks, else all.", min=1)
    ] = None,
    data: Data = None,
    out: Out = None,
    resume: Resume = False,
    live: Annotated[
        bool, typer.Option("--live", help="Serve the report on this machine while the run goes on.")
    ] = False,
    live_port: Annotated[int | None, typer.Option(help="Where to serve it; a free port unless given.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write --out/tensorboard too.")] = False,
    engine: Engine = "local",
    address: Address = None,
    shards: Shards = None,
    gpus_per_shard: GpusPerShard = None,
    quiet: Quiet = False,
) -> None:
    """Run every combination of rules, attacks, numbers of Byzantine agents and seeds on a study.

    Options given more than once are swept. What is not given is the study's own, as in the paper.

        varangian run target-localization --rule alone --rule loss-based --byzantine 20 --seeds 5 --out runs/first

        varangian run runs/first/config.toml --out runs/again

        varangian run runs/first/config.toml --out runs/again --engine ray --address auto
    """
    cluster = engine_of(engine, address, shards, gpus_per_shard)
    if tensorboard and cluster is not None:
        raise BadInput("--tensorboard watches rounds played by this process; leave it out, or leave out --engine ray")
    for option, given in (("--compile", compile_), ("--threads", threads)):
        if given and cluster is not None:
            raise BadInput(f"{option} is for rounds played by this process; leave it out, or leave out --engine ray")
    if resume and out is None:
        raise BadInput("--resume needs --out, the folder of the run to go on with")
    if tensorboard and out is None:
        raise BadInput("--tensorboard needs --out, the folder to write to")
    if data is not None:
        os.environ["VARANGIAN_DATA"] = str(data)
    from varangian.experiments.config import check, from_toml, plan_for, read_byzantine

    stored: dict[str, Any] = from_toml(Path(what)) if what.endswith(".toml") else {"study": what}
    settings: dict[str, Any] = {
        "rules": rule,
        "attacks": attack,
        "byzantine": [read_byzantine(value) for value in byzantine or ()],
        "seeds": seeds,
        "rounds": rounds,
        "device": device,
        "dtype": dtype,
        "judge_dtype": judge_dtype,
        "memory": memory,
    }
    stored |= {name: value for name, value in settings.items() if value not in (None, [])}
    stored["settings"] = {**stored.get("settings", {}), **dict(_pair(text) for text in set_ or ())}
    plan = plan_for(**stored)
    check(plan)
    if compile_:
        from varangian.engine.compute.compile import check_compiler

        check_compiler()
    try:
        port = live_port or 0 if live or live_port is not None else None
        _run(plan, out, resume, quiet, port, tensorboard, cluster, compile_)
    except KeyboardInterrupt:
        again = ["varangian", "run", f"{out}/config.toml", "--resume", "--out", str(out)]
        again += ["--data", str(data)] if data is not None else []
        again += as_options(cluster) + ["--compile"] * compile_
        again += ["--threads", str(threads)] if threads else []
        print(
            f"varangian: interrupted; go on with: {shlex.join(again)}" if out else "varangian: interrupted",
            file=sys.stderr,
        )
        raise


def _run(
    plan: Any,
    out: Path | None,
    resume: bool,
    quiet: bool,
    port: int | None,
    tensorboard: bool,
    cluster: RayCluster | None,
    compile: bool,
) -> None:
    from varangian.experiments import sweep
    from varangian.report.folder import write_folder
    from varangian.report.table import print_table

    with ExitStack() as stack:
        watchers: list[sweep.Watcher] = []
        if cluster is not None:  # first, so that nothing is written where there is no cluster
            stack.enter_context(cluster.connected())
        if tensorboard and out is not None:
            from varangian.report.tensorboard import TensorBoard

            watchers.append(TensorBoard(out / "tensorboard"))
        if port is not None:
            from varangian.report.live import Live

            watchers.append(live := stack.enter_context(Live(plan, port)))
        if out is not None:
            sweep.open_folder(out, plan, resume)
        if port is not None:
            print(f"Follow the run at {live.url}", file=sys.stderr, flush=True)
        if not quiet:
            from varangian.report.terminal import Terminal

            watchers.append(stack.enter_context(Terminal(plan)))
        metrics = sweep.sweep(plan, out, resume=resume, watchers=watchers, engine=cluster, compile=compile)
    rows = list(sweep.summary_rows(metrics))
    if not quiet:
        print_table(metrics, rows)
    if out is not None:
        write_folder(metrics, out)
        sweep.close_folder(out)
        if not quiet:
            print(f"Written to {out}: config.toml, metrics.nc, summary.csv, figures/, report.html")


@app.command()
def reproduce(
    studies: Annotated[
        list[str] | None, typer.Argument(metavar="[STUDY…|all]", help="Which studies; the paper's three unless given.")
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Minutes instead of hours: shorter, smaller, fewer seeds.")
    ] = False,
    device: Annotated[str, typer.Option(help="`auto`, `cpu`, `cuda`, …")] = "auto",
    data: Data = None,
    out: Annotated[Path, typer.Option(help="Where to put a folder for each study, and the table.")] = Path(
        "runs/reproduce"
    ),
    engine: Engine = "local",
    address: Address = None,
    shards: Shards = None,
    gpus_per_shard: GpusPerShard = None,
    quiet: Quiet = False,
) -> None:
    """Make the paper's figures and tables: every study, rule and number of Byzantine agents, at the paper's settings.

    Every study gets a run folder with the paper's figures in it; `table.md` puts our numbers beside the published ones.
    What an interrupted run had finished is kept: give the same command again.
    """
    cluster = engine_of(engine, address, shards, gpus_per_shard)
    if data is not None:
        os.environ["VARANGIAN_DATA"] = str(data)
    from varangian.experiments import reproduce as paper
    from varangian.experiments import sweep
    from varangian.experiments.config import check
    from varangian.report.terminal import Terminal

    wanted = studies or ["all"]
    names = [name for asked in wanted for name in (paper.PAPER if asked == "all" else (asked,))]
    plans = [paper.plan_of(name, fast, device) for name in dict.fromkeys(names)]
    for plan in plans:
        check(plan)
    rows: list[dict[str, Any]] = []
    with nullcontext() if cluster is None else cluster.connected():
        for plan in plans:
            folder = out / plan.study.name
            with nullcontext() if quiet else Terminal(plan) as terminal:
                watchers = [] if terminal is None else [terminal]
                metrics = paper.reproduce(plan, folder, watchers=watchers, engine=cluster)
            rows += paper.comparison(metrics)
            if not quiet:
                from varangian.report.table import print_table

                print_table(metrics, list(sweep.summary_rows(metrics)))
                print(f"Written to {folder}")
    paper.write_comparison(rows, out)
    if rows and not quiet:
        print(f"Ours beside the published numbers: {out}/table.md")


app.command()(tournament)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Run folders, or folders of summary tables.")],
    out: Annotated[Path | None, typer.Option(help="The file to write; DIR/report.html of a single folder.")] = None,
    quiet: Quiet = False,
) -> None:
    """Make the report of a run again from what its folder holds, or one that compares several runs.

    Nothing is computed anew. Of folders that hold only tables, such as summary.csv, the report shows what these allow.

        varangian report runs/first runs/second --out both.html
    """
    from varangian.report.folder import report as make

    written = make(folders, out)
    if not quiet:
        more = f" and {len(written) - 1} figures" if len(written) > 1 else ""
        print(f"Written: {written[0]}{more}")


AsJson = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]


@app.command()
def rules(json: AsJson = False) -> None:
    """How agents combine what they hear: the rules there are."""
    from varangian import rules as room

    listing(room, json)


@app.command()
def attacks(json: AsJson = False) -> None:
    """What Byzantine agents send: the attacks there are."""
    from varangian import attacks as room

    listing(room, json)


@app.command()
def studies(json: AsJson = False) -> None:
    """What agents learn, and on which network: the studies there are."""
    from varangian import studies as room

    listing(room, json)


if __name__ == "__main__":
    main()
