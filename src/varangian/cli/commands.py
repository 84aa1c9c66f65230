"""All commands together, and how each of them ends."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from varangian.cli.data import app as data_app
from varangian.cli.listing import attacks, rules, studies
from varangian.cli.report import report
from varangian.cli.reproduce import reproduce
from varangian.cli.run import run
from varangian.cli.signals import terminate_is_interrupt
from varangian.cli.tournament import tournament
from varangian.core.version import __version__
from varangian.errors import BadInput

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Learn from your neighbours without trusting them: decentralised multi-task learning among agents of which "
    "any number may be Byzantine.",
)
for command in (run, reproduce, tournament, report, rules, attacks, studies):
    app.command()(command)
app.add_typer(data_app, name="data", help="Datasets: what there is, where it is, how to get it.")


def main() -> None:
    """Run the command line.

    Bad input is one line and status 2, an interrupt (Ctrl-C or SIGTERM) status 130, a full disk status 1.
    """
    try:
        with terminate_is_interrupt():
            # Typer returns the status of a command that ended early, also by an interrupt; otherwise None.
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
