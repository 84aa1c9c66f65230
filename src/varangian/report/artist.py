"""A process that draws the figures of a run, while this one goes on.

Only the process that draws imports matplotlib, because that takes long. So this file imports little.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from varangian.core.lazy import imported
from varangian.engine.process_pool import Assistant, Lost, assistant

if TYPE_CHECKING:
    import xarray as xr

    from varangian.report.figure_data import FigureData


class Artist:
    """Another process that draws the figures of one run."""

    def __init__(self, helper: Assistant[FigureData, dict[str, bytes] | None]) -> None:
        self._helper = helper
        self._has_begun = False

    def begin(self, data: FigureData) -> None:
        """Let it draw."""
        self._helper.begin(data)
        self._has_begun = True

    def end(self) -> dict[str, bytes] | None:
        """Wait for the figures, as files by name. None if it has not begun, or if it failed or died."""
        images = self._helper.end() if self._has_begun else None
        return None if isinstance(images, Lost) else images


@contextmanager
def hired_artist() -> Iterator[Artist]:
    """An artist, who gets ready while this process goes on."""
    with assistant(_images_if_possible, ready=_figures) as helper:
        yield Artist(helper)


def _figures() -> ModuleType:
    """The module that draws. It is imported by the first call."""
    return imported("varangian.report.figures")


def _images_if_possible(data: FigureData) -> dict[str, bytes] | None:
    """The figures, or None: the process that asked will then find out why."""
    try:
        images: dict[str, bytes] = _figures().images_of(data)
        return images
    except Exception:
        return None


def draw_figures(metrics: xr.Dataset, folder: Path) -> list[Path]:
    """As `figures.draw_figures`, in this process."""
    written: list[Path] = _figures().draw_figures(metrics, folder)
    return written
