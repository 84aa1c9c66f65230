"""Printed digits: 0 to 9 in every matplotlib font that has digits, bent at random."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

DRAWN_AT = 72
"""Height in points at which each digit is drawn once. Every image is a bent and scaled copy of that drawing."""

STROKES = (0, 1, 3)
"""Extra stroke widths in pixels, so that each font comes in three weights."""

MESH = 4
"""The warp moves the corners of MESH x MESH cells, which bends the strokes."""

# These Computer Modern fonts have mathematical symbols in place of digits.
_SYMBOL_FONTS = ("cmex10", "cmmi10", "cmsy10")


@cache
def digit_fonts() -> tuple[Path, ...]:
    """The font files of matplotlib that have ten different digits, sorted by name.

    >>> all(path.suffix == ".ttf" for path in digit_fonts())
    True
    """
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    fonts = sorted(path for path in folder.glob("*.ttf") if path.stem not in _SYMBOL_FONTS)
    return tuple(path for path in fonts if _has_digits(path))


def _has_digits(path: Path) -> bool:
    # A font without digits draws the same empty box for each of them.
    shapes = {_outline(path, digit, 0).tobytes() for digit in range(10)}
    return len(shapes) == 10


@cache
def _outline(path: Path, digit: int, stroke: int) -> Image.Image:
    """The digit in white on black, cropped to its ink."""
    font = _open_font(path)
    left, top, right, bottom = font.getbbox(str(digit), stroke_width=stroke)
    size = (max(1, round(right - left)), max(1, round(bottom - top)))
    canvas = Image.new("L", size, 0)
    ImageDraw.Draw(canvas).text((-left, -top), str(digit), fill=255, font=font, stroke_width=stroke)
    return canvas.crop(canvas.getbbox() or (0, 0, *size))


@cache
def _open_font(path: Path) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(path), DRAWN_AT)


def random_digit(digit: int, side: int, rng: np.random.Generator) -> Image.Image:
    """A mask, white on black, ``side`` x ``side``: the digit in a random font, turned, slanted and bent."""
    fonts = digit_fonts()
    ink = _outline(fonts[rng.integers(len(fonts))], digit, STROKES[rng.integers(len(STROKES))])
    turn = np.deg2rad(rng.uniform(-15, 15))
    slant = rng.uniform(-0.25, 0.35)
    width, height = side * rng.uniform(0.6, 1.0), side * rng.uniform(0.8, 1.0)
    centre = side / 2 + rng.uniform(-0.5, 0.5, 2) * (side - np.array([width, height]))
    rotate = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    stretch = np.array([[ink.width / width, slant * ink.width / width], [0, ink.height / height]])

    ticks = np.linspace(0, side, MESH + 1)
    corners = np.stack(np.meshgrid(ticks, ticks), axis=-1)
    source = (corners - centre) @ rotate.T @ stretch.T + np.array(ink.size) / 2
    source = source + rng.normal(0, 0.03, source.shape) * np.array(ink.size)
    cells = [_cell(corners, source, row, column) for row in range(MESH) for column in range(MESH)]
    return ink.transform((side, side), Image.Transform.MESH, cells, Image.Resampling.BILINEAR)


def _cell(
    corners: np.ndarray, source: np.ndarray, row: int, column: int
) -> tuple[tuple[int, int, int, int], tuple[float, ...]]:
    left, top = (int(v) for v in corners[row, column])
    right, bottom = (int(v) for v in corners[row + 1, column + 1])
    # Pillow wants the four corners of the source in the order nw, sw, se, ne.
    quad = (
        source[row, column],
        source[row + 1, column],
        source[row + 1, column + 1],
        source[row, column + 1],
    )
    return (left, top, right, bottom), tuple(float(v) for point in quad for v in point)
