"""`varangian fleet up`: a fleet of real processes on this machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from varangian import agent as processes
from varangian import experiments, report
from varangian.cli.options import Data, Overwrite, Quiet, Settings, look_for_data_in, pair
from varangian.core.errors import BadInput

if TYPE_CHECKING:
    from varangian.agent.fleet import FleetOptions, Watch
    from varangian.agent.record import FleetRecord
    from varangian.experiments.config import Plan
    from varangian.experiments.run_folder import RunFolder

app = typer.Typer(help="A fleet of real processes on this machine.", no_args_is_help=True)


@app.command("up")
def up(
    study: Annotated[str, typer.Option(help="A study; each process is one of its agents.", metavar="STUDY")],
    out: Annotated[Path, typer.Option(help="The run folder: configuration, metrics, summary, figures, report.")],
    agents: Annotated[int | None, typer.Option(help="How many agents. By default those of the study.")] = None,
    byzantine: Annotated[str, typer.Option(help="The Byzantine agents: their number, share, or a list (3,5).")] = "0",
    rounds: Annotated[int | None, typer.Option(help="The number of rounds.", metavar="T")] = None,
    rule: Annotated[str, typer.Option(help="The rule of all agents.")] = "loss-based",
    attack: Annotated[str | None, typer.Option(help="What Byzantine processes send. By default the study's.")] = None,
    hostile: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="Byzantine processes send garbage: `random-bytes`, `truncated`, `oversized`, `wrong-shapes`, "
            "`not-finite`, `zip-bomb`, `replay`, `future`, `impostor`, `flood`, or `all` of them in turn.",
        ),
    ] = None,
    pace: Annotated[str, typer.Option(help="`lockstep`, as in the simulation, or `free`.")] = "lockstep",
    period: Annotated[float, typer.Option(help="Seconds between rounds at a free pace.")] = 1.0,
    deadline: Annotated[float, typer.Option(help="Seconds to wait for a neighbour in lockstep.")] = 10.0,
    seed: Annotated[int, typer.Option(help="The seed.")] = 0,
    set_: Settings = None,
    wire_dtype: Annotated[
        str, typer.Option(help="Numbers on the wire: `float32`, `float64` or `bfloat16`.")
    ] = "float32",
    data: Data = None,
    overwrite: Overwrite = False,
    live: Annotated[bool, typer.Option("--live", help="Serve a page about the fleet while it runs.")] = False,
    live_port: Annotated[int | None, typer.Option(help="The port of that page. By default a free one.")] = None,
    quiet: Quiet = False,
) -> None:
    """Start one process per agent, with fresh keys, and let them learn from each other until all rounds are finished.

    The processes talk over mutual TLS on loopback. In lockstep without Byzantine agents, the models are those of
    `varangian run` with the same settings. The run folder is the usual one.

        varangian fleet up --study human-activity --agents 10 --byzantine 2 --rounds 200 --out runs/fleet
    """
    look_for_data_in(data)
    if hostile is not None and attack is not None:
        raise BadInput("Byzantine processes send either an --attack or what is --hostile; leave one of them out")
    # Nothing of what hostile senders send is used, so in a simulation they are silent.
    attack = attack if hostile is None else "silent"
    plan = _plan(study, agents, byzantine, rounds, rule, attack, seed, dict(map(pair, set_ or ())))
    given = {"seed": seed, "pace": pace, "period": period, "deadline": deadline, "wire_dtype": wire_dtype}
    given |= {} if hostile is None else {"hostile": hostile}
    options = experiments.spec.with_settings(processes.fleet.FleetOptions, given, "fleet")
    experiments.config.check(plan)
    processes.fleet.check_fleet(plan, options)
    with ExitStack() as stack:
        place = stack.enter_context(experiments.run_folder.opened(out, plan, overwrite=overwrite))
        try:
            watchers: list[Watch] = []
            with ExitStack() as shown:
                if live or live_port is not None:
                    watchers.append(shown.enter_context(_page(plan, options, live_port or 0)))
                if not quiet:
                    watchers.append(shown.enter_context(processes.terminal.Shown(plan.study.rounds)))
                metrics = processes.fleet.fly(plan, options, lambda record: _tell(watchers, record))
        except BaseException:
            _forget(place)
            raise
        if not quiet:
            report.table.print_table(metrics, list(experiments.summary.summary_rows(metrics)))
        report.folder.finish(place, metrics)
    if not quiet:
        print(f"Written to {out}: config.toml, metrics.nc, summary.csv, figures/, report.html")


def _plan(
    study: str,
    agents: int | None,
    byzantine: str,
    rounds: int | None,
    rule: str,
    attack: str | None,
    seed: int,
    settings: dict[str, Any],
) -> Plan:
    """The plan of the run that the fleet repeats. Its configuration runs seeds 0 … S, since a plan counts its seeds."""
    if seed < 0:
        raise BadInput(f"a seed is 0 or a larger number, but --seed is {seed}")
    plan = experiments.config.plan_for(
        study,
        rules=[rule],
        attacks=[] if attack is None else [attack],
        byzantine=[experiments.config.read_byzantine(byzantine)],
        seeds=seed + 1,
        rounds=rounds,
        settings=settings,
    )
    if agents is not None:
        plan = processes.fleet.with_agents(plan, agents)
    return plan


@contextmanager
def _page(plan: Plan, options: FleetOptions, port: int) -> Iterator[Watch]:
    """A page about the fleet. At the end it stays for a moment, so that open pages get the last state."""
    names, byzantine = processes.fleet.names_of(plan, options)
    view = processes.watch.FleetView(f"A fleet on {plan.study.name}", names, byzantine)
    with processes.watch.page_server(view, port) as server:
        print(f"Follow the fleet at {server.url}", file=sys.stderr, flush=True)
        yield processes.watch.followed(view)
        time.sleep(2 * processes.watch.EVERY)


@app.command("watch")
def watch(
    agents: Annotated[
        list[str],
        typer.Argument(
            metavar="HOST:PORT|agent.toml…", help="Where agents serve their metrics, or their configurations."
        ),
    ],
    port: Annotated[int, typer.Option(help="The port of the page. By default a free one.")] = 0,
) -> None:
    """Serve a page about running agents on this machine, until Ctrl-C.

    It asks every agent once a second. Agents on other machines serve their metrics only there: forward their ports, for
    example with SSH.

        varangian fleet watch 127.0.0.1:9464 127.0.0.1:9465
    """
    addresses = [processes.start.metrics_address(text) for text in agents]
    view = processes.watch.FleetView("A fleet", list(addresses))
    with processes.watch.page_server(view, port) as server, processes.start.stopped_by_signals() as stop:
        print(f"Follow the fleet at {server.url}", file=sys.stderr, flush=True)
        processes.watch.ask(view, addresses, stop)


def _tell(watchers: Sequence[Watch], record: FleetRecord) -> None:
    for one in watchers:
        one(record)


def _forget(place: RunFolder) -> None:
    """Leave the run folder as it was: a fleet cannot be resumed."""
    place.discard()
    config = place.folder / "config.toml"
    if not (place.folder / "metrics.nc").exists() and config.read_text(encoding="utf-8") == place.text:
        config.unlink()
