"""`varangian report`: the report of one run or of several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from varangian import report as pages
from varangian.cli.options import Quiet


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Run folders, or folders of summary tables.")],
    out: Annotated[
        Path | None, typer.Option(help="The file to write. By default DIR/report.html, for one DIR.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Make the report of a run again from the files in its folder, or a report that compares several runs.

    Nothing is run again. If a folder has only tables, such as summary.csv, the report shows only their contents.

        varangian report runs/first runs/second --out both.html
    """
    written = pages.folder.report(folders, out)
    if not quiet:
        more = f" and {len(written) - 1} figures" if len(written) > 1 else ""
        print(f"Written: {written[0]}{more}")
