"""All figures of a run: its curves, and its network with the Byzantine agents and the final loss-based weights.

Figures are made without pyplot, so no window opens and no figure stays in memory after it is written.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure
from PIL import Image

from varangian.report.curve_data import CurveData, curve_data
from varangian.report.curve_figure import curve_figure
from varangian.report.figure_data import FigureData, figure_data, write_images
from varangian.report.network_data import network_data
from varangian.report.network_figure import network_figure

__all__ = ["curves", "draw_figures", "network"]


def draw_figures(metrics: xr.Dataset, folder: Path) -> list[Path]:
    """Write all figures of a run as PNG and PDF into `folder`/figures; returns the files written.

    These are the curves of the study's own metric and of others that are worth seeing, if they were measured, and the
    network. Studies with results by group also have curves for each group.
    """
    return write_images(images_of(figure_data(metrics)), folder)


def curves(metrics: xr.Dataset, metric: str, group: object = None) -> Figure:
    """`metric` of normal agents over time: one column per number of Byzantine agents, one row per attack.

    The line of each rule is the mean over agents and seeds. Its band reaches from the best to the worst agent, both
    averaged over seeds. Streaming metrics are drawn as a moving mean, and the axis label says so. With `group`, only
    the agents of this group are shown.
    """
    return curve_figure(curve_data(metrics, metric, group))


def network(metrics: xr.Dataset, byzantine: int | None = None) -> Figure:
    """The network of the first seed. Colours are groups, and crosses are Byzantine agents.

    Agents are drawn at their positions, or on a circle if they have none. `byzantine` is the number of Byzantine
    agents; by default it is the largest number that leaves a majority of normal agents. If the weights of a loss-based
    run of this scenario are known, a second panel draws edges with a width according to their final weight. Of a large
    network, the picture shows only the agents in the middle.
    """
    return network_figure(network_data(metrics, byzantine))


def images_of(figures: FigureData) -> dict[str, bytes]:
    """All figures of a run, as files by name."""
    images: dict[str, bytes] = {}
    for name, data in figures.items():
        images |= _images(curve_figure(data) if isinstance(data, CurveData) else network_figure(data), name)
    return images


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write a figure as PNG and PDF."""
    images = {stem.with_name(name): image for name, image in _images(figure, stem.name).items()}
    for path, image in images.items():
        path.write_bytes(image)
    return list(images)


def _images(figure: Figure, name: str) -> dict[str, bytes]:
    """A figure as PNG and PDF.

    The PNG has a palette, which makes it a third of the size. The palette is chosen by maximum coverage, because the
    default method turns rare colours grey.
    """
    png, pdf = BytesIO(), BytesIO()
    # `savefig` would draw four times, and lay out the figure twice.
    figure.dpi = 150
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    image = Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba()).convert("RGB")  # type: ignore[no-untyped-call]
    few = image.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)
    few.save(png, "PNG", dpi=(150, 150))
    figure.set_layout_engine("none")
    figure.dpi = 200  # of what is drawn as pixels
    FigureCanvasPdf(figure).print_pdf(pdf, metadata={"CreationDate": None})  # type: ignore[no-untyped-call]
    return {f"{name}.png": png.getvalue(), f"{name}.pdf": pdf.getvalue()}
