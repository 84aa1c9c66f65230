"""The files of a run folder, made from its metrics."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

import xarray as xr

from varangian.core.errors import BadInput
from varangian.core.files import linked
from varangian.core.stopwatch import Stopwatch
from varangian.engine import results
from varangian.engine.process_pool import cores
from varangian.experiments.cells import MODELS, cells
from varangian.experiments.config import Plan
from varangian.experiments.folder_state import FINISHED
from varangian.experiments.run_folder import RunFolder, recover, writing
from varangian.experiments.summary import write_summary
from varangian.report.artist import Artist, draw_figures, hired_artist
from varangian.report.figure_data import figure_data, figure_names, write_images
from varangian.report.page import write_page
from varangian.report.paper_panels import paper_figure_names
from varangian.report.source import read_runs, run_of
from varangian.report.table import Row
from varangian.report.timings import Timings

TIMINGS = "timings.csv"
MANY = 6
"""From so many cells on, another process draws the figures."""


@contextmanager
def artist_for(plan: Plan) -> Iterator[Artist | None]:
    """A process that draws the figures of a run, if that saves time. It starts up while the cells are computed."""
    with ExitStack() as stack:
        artist = None
        if len(cells(plan)) >= MANY and cores() > 1:
            with suppress(OSError, AssertionError):  # no more processes are allowed: this one can draw
                artist = stack.enter_context(hired_artist())
        yield artist


def begin_figures(artist: Artist | None, metrics: xr.Dataset) -> None:
    """Let the artist draw, if there is one."""
    if artist is not None:
        with suppress(Exception):  # `write_folder` draws then, or tells why it can't
            artist.begin(figure_data(metrics))


def write_folder(
    metrics: xr.Dataset,
    folder: Path,
    name: str | None = None,
    watch: Stopwatch | None = None,
    artist: Artist | None = None,
    rows: list[Row] | None = None,
) -> list[Path]:
    """`metrics.nc`, `summary.csv`, `figures/` and `report.html`; returns the files written.

    Args:
        metrics: The result of a sweep.
        folder: Where to write.
        name: What the run is called in the report. By default as its folder.
        watch: Measures the phases.
        artist: Has begun to draw, and goes on while this process writes the rest. By default this process draws.
        rows: Those of the summary, if they are known already.
    """
    watch = watch or Stopwatch()
    written = [folder / "metrics.nc", folder / "summary.csv"]
    with watch.phase("writing"):
        results.save(metrics, written[0])
        rows = write_summary(metrics, written[1], rows)
    try:
        with watch.phase("report"):
            write_page([run_of(metrics, folder, name, rows)], folder / "report.html")
        written.append(folder / "report.html")
    except ModuleNotFoundError as error:  # a machine that only computes may lack the plotting library
        warnings.warn(f"report.html is left out: {error}; make it later with `varangian report`", stacklevel=2)
    with watch.phase("figures"):
        images = None if artist is None else artist.end()
        # Whatever has stopped the other process: this one can draw, or tell why it can't.
        written += draw_figures(metrics, folder) if images is None else write_images(images, folder)
    return written


def finish(
    place: RunFolder,
    metrics: xr.Dataset,
    more: Iterable[Path] = (),
    timings: Timings | None = None,
    artist: Artist | None = None,
    rows: list[Row] | None = None,
) -> None:
    """Write the results of a run, and move them to their places with `more` files that are in `place.result`.

    The models of finished cells are moved too. Until the results are in their places, both names lead to them.
    `timings.csv` has the seconds of all phases up to the moment at which it is written.

    Args:
        place: The run folder.
        metrics: The result of the sweep.
        more: Files to move besides those that are written here.
        timings: Measures the phases.
        artist: Has begun to draw, and goes on while this process writes the rest. By default this process draws.
        rows: Those of the summary, if they are known already.
    """
    watch = Stopwatch() if timings is None else timings.watch
    written = write_folder(metrics, place.result, place.folder.resolve().name, watch, artist, rows)
    if timings is not None and timings.shown:
        written.append(timings.write(place.result / TIMINGS))
    with watch.phase("writing"):
        for source in sorted((place.cells / MODELS).glob("*.safetensors")):
            written.append(place.result / MODELS / source.name)
            linked(source, written[-1])
        place.commit([*written, *more], earlier_files(place.folder))


def has_models(folder: Path | None) -> bool:
    """Whether a run folder holds final models."""
    return folder is not None and any((folder / MODELS).glob("*.safetensors"))


def earlier_files(folder: Path) -> list[str]:
    """The files in a folder that an earlier run or tournament wrote. Files of other programs are not included."""
    names = ["config.toml", "report.html", "tensorboard", TIMINGS, *FINISHED["run"]]
    if (folder / "tournament.jsonl").exists():
        names += [*FINISHED["tournament"], "tournament.md", "tournament.png"]
    names += [path.relative_to(folder).as_posix() for path in (folder / MODELS).glob("*-seed-*.safetensors")]
    if (folder / "metrics.nc").exists():
        try:
            with xr.open_dataset(folder / "metrics.nc") as metrics:
                stems = [*figure_names(metrics), *paper_figure_names(metrics)]
        except (OSError, ValueError, KeyError, TypeError):  # the metrics cannot be read, so the figures stay
            stems = []
        names += [f"figures/{stem}.{kind}" for stem in stems for kind in ("png", "pdf")]
    return [name for name in names if (folder / name).exists()]


def _check_page(path: Path) -> None:
    """Whether a page may be written here: not over another kind of file, nor in the place of a run's other files."""
    run_file = {"config.toml", *(name for names in FINISHED.values() for name in names)}
    try:
        there = path.read_bytes()[:9].lower() if path.is_file() else b"<!doctype"
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error
    if path.name in run_file or there not in (b"<!doctype", b""):
        raise BadInput(f"{path} is not a report, and a report would replace it; name another file, such as report.html")


def report(folders: Sequence[Path], out: Path | None = None) -> list[Path]:
    """Make the report of one folder again, or a report that compares several; returns the files written.

    The report of a single folder is written into this folder. If the folder has metrics, its figures are written too.
    `out` names another file for the report.
    """
    if out is None and len(folders) > 1:
        raise BadInput("a report on several folders needs a file to write to; add --out FILE")
    for folder in folders:
        recover(folder)
    runs = read_runs(folders)
    path = out if out is not None else folders[0] / "report.html"
    if out is not None:
        _check_page(out)
    written = [path]
    try:
        with writing(folders[0]) if out is None else nullcontext():
            write_page(runs, path)
            if out is None and len(runs) == 1 and runs[0].metrics is not None:
                written += draw_figures(runs[0].metrics, folders[0])
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from error
    return written
