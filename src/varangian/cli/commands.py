"""All commands together, and how each of them ends."""

from __future__ import annotations

import atexit
import gc
import sys
from typing import Annotated

import typer

from varangian.cli.agent import app as agent_app
from varangian.cli.data import app as data_app
from varangian.cli.fleet import app as fleet_app
from varangian.cli.keys import app as keys_app
from varangian.cli.listing import attacks, rules, studies
from varangian.cli.new import new
from varangian.cli.options import spelled_out
from varangian.cli.report import report
from varangian.cli.reproduce import reproduce
from varangian.cli.run import run
from varangian.cli.signals import terminate_is_interrupt
from varangian.cli.tournament import tournament
from varangian.core.errors import BadInput
from varangian.core.version import __version__
from varangian.report.plain_text import never_fail

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Decentralised multi-task learning, in which any number of agents may be Byzantine: learn from your "
    "neighbours without trusting them.",
)
for command in (run, reproduce, tournament, report, rules, attacks, studies, new):
    app.command()(command)
app.add_typer(data_app, name="data", help="Datasets: list, download and check them.")
app.add_typer(keys_app, name="keys", help="The keys and certificates of a fleet of agents.")
app.add_typer(agent_app, name="agent", help="One agent on a real network: run it, or ask how it is.")
app.add_typer(fleet_app, name="fleet", help="A fleet of real processes on this machine.")


def main() -> None:
    """Run the command line.

    Bad input prints one line and exits with status 2. An interrupt (Ctrl-C or SIGTERM) exits with 130, a full disk
    with 1.
    """
    atexit.register(gc.freeze)  # or Python looks through every object at its end, which takes most of a second
    for stream in (sys.stdout, sys.stderr):
        never_fail(stream)
    try:
        with terminate_is_interrupt():
            # Typer returns a status if a command ended early, also after an interrupt. Otherwise it returns None.
            sys.exit(app(spelled_out(sys.argv[1:]), standalone_mode=False))
    except BadInput as error:
        _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        # A file that was being written is freed half-made, and some libraries complain of that after our last line.
        sys.unraisablehook = lambda what: None
        sys.exit(130)
    except OSError as error:
        hint = "finished work is kept; free some space, then run the same command with --resume"
        _fail(f"could not read or write: {error}; {hint}", status=1)
    except Exception as error:
        # Typer's own errors (an unknown option, a missing argument) print their own message.
        if hasattr(error, "format_message"):
            _fail(error.format_message())
        raise


def _fail(line: str, status: int = 2) -> None:
    if line.strip():  # empty without arguments: Typer has already shown its help
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
