"""`varangian agent run|status`: one agent on a real network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
