"""`varangian keys init|issue|renew|revoke|list`: the certificates of a fleet."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from varangian import agent

app = typer.Typer(help="The keys and certificates of a fleet of agents.", no_args_is_help=True)

Authority = Annotated[Path, typer.Option("--dir", metavar="DIR", help="The authority's folder.")]
Name = Annotated[str, typer.Argument(help="The agent: small letters, digits and hyphens.")]
Days = Annotated[int, typer.Option(min=1, max=36_500, help="How many days the certificate is valid.")]
Hosts = Annotated[
    list[str] | None,
    typer.Option(help="Where its neighbours reach the agent: a host name or an address. May be repeated."),
]
FOLDER = Path("keys")


@app.command("init")
def create(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the authority.")] = FOLDER,
    days: Days = 3650,
) -> None:
    """Make the certificate authority of a new fleet.

    Whoever has the file ca.key of this folder can speak as any agent. Keep it off the agents' machines.

        varangian keys init keys
    """
    agent.keys.create_authority(folder, timedelta(days=days))
    typer.echo(f"{folder} holds a new authority. Keep {folder / 'ca.key'} secret, and make a backup of the folder.")


@app.command()
def issue(
    name: Name,
    folder: Authority = FOLDER,
    host: Hosts = None,
    days: Days = 365,
) -> None:
    """Make a key and a certificate for an agent, by default for this machine only.

    Copy the folder it names to the agent's machine.

    varangian keys issue hospital-a --host a.example.org --host 192.0.2.7
    """
    made = agent.keys.issue(folder, name, host or agent.keys.LOCAL, timedelta(days=days))
    typer.echo(f"Copy {made} to the machine of {name}; it holds the agent's secret key.")


@app.command()
def renew(name: Name, folder: Authority = FOLDER, host: Hosts = None, days: Days = 365) -> None:
    """Make a new key and certificate for an agent. A running agent takes them up by itself.

    Without --host it has the hosts that it had. The old certificate stays valid until it ends.
    """
    made = agent.keys.renew(folder, name, host, timedelta(days=days))
    typer.echo(f"Copy {made / 'agent.pem'} to the machine of {name}, over the old file.")


@app.command()
def revoke(name: Name, folder: Authority = FOLDER) -> None:
    """Revoke all certificates of an agent, for ever. Copy the new ca.crl to every agent; running ones take it up."""
    made = agent.keys.revoke(folder, name)
    typer.echo(f"{name} is revoked. Copy {made} to the machines of all agents, over the old file.")


@app.command("list")
def show(folder: Authority = FOLDER) -> None:
    """List every certificate of an authority: agent, state, end, hosts."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    for entry in agent.keys.issued(folder):
        state = "revoked" if entry.revoked else "expired" if entry.until < now else "valid"
        typer.echo(f"{entry.name}  {state}  until {entry.until[:10]}  {' '.join(entry.hosts)}")
