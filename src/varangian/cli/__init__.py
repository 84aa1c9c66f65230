"""The command line: parses, calls the library, prints. One file per command; heavy imports wait until they are used."""

from varangian.cli.commands import app as app
from varangian.cli.commands import main as main
