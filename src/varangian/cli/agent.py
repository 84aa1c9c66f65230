"""`varangian agent run|status`: one agent on a real network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from varangian import agent as agents

app = typer.Typer(help="One agent on a real network: run it, or ask how it is.", no_args_is_help=True)

Config = Annotated[Path, typer.Argument(metavar="agent.toml", help="The agent's configuration.")]


@app.command("run")
def run_agent(config: Config) -> None:
    """Train, send the model to the neighbours, judge what they send, and combine; round after round.

    SIGTERM and Ctrl-C finish the round, save the state and exit with status 0. After a crash, the same command goes on
    from the last saved state.

        varangian agent run agent.toml
    """
    found = agents.config.read_config(config)
    agents.logs.start_logging(found.name, as_json=found.log == "json")
    with agents.start.stopped_by_signals() as stop:
        agents.start.run_agent(found, stop)


@app.command("status")
def status(
    config: Config,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show the round, the loss, and how much the agent trusts each neighbour.

    The numbers come from the running agent. If it does not answer, the state folder tells the last saved round, and the
    exit status is 1.
    """
    found = agents.start.status_of(agents.config.read_config(config))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        typer.echo("\n".join(_lines(found)))
    if not found["running"]:
        raise typer.Exit(1)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    if not found["running"]:
        saved = "no saved state" if found["round"] is None else f"saved at round {found['round']}"
        yield f"{found['agent']}: not running, {saved}"
        return
    measured = {**found["measured"], **found["evaluated"]}
    told = ", ".join(f"{name} {value:.4g}" for name, value in measured.items() if value is not None)
    yield f"{found['agent']}: round {found['round']}, {told}"
    weights = found["weights"] or {}
    for name in sorted({*weights, *found["bytes"], *found["rejected"]} - {found["agent"]}):
        age = f"{found['ages'][name]:.1f} s old" if name in found["ages"] else "not heard"
        weight = f"weight {weights[name]:.3f}" if name in weights else "no weight"
        refused = found["rejected"].get(name, {})
        rejected = ", ".join(f"{count} rejected ({reason})" for reason, count in refused.items())
        yield "  " + ", ".join(filter(None, (name or "strangers", weight, age, rejected)))
