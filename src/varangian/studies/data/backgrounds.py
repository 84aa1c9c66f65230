"""Backgrounds that look like small photographs: overlapping shapes, gradients and 1/f noise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter


def random_background(side: int, rng: np.random.Generator) -> Image.Image:
    """A coloured texture, ``side`` x ``side``, in RGB.

    Photographs show objects that hide one another (the "dead leaves" model), in uneven light, with less detail at
    higher frequencies. Here these mix in random proportions, from flat sky to clutter.
    """
    palette = _palette(rng)
    picture = Image.fromarray(_gradient(side, palette, rng))
    _scatter_leaves(picture, palette, rng)
    if rng.random() < 0.4:
        picture = picture.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 2.0)))
    strength = rng.gamma(2.0, 9.0)
    noise = strength * _one_over_f(side, rng)[..., None] * rng.uniform(0.7, 1.3, 3)
    return Image.fromarray(np.clip(np.asarray(picture) + noise, 0, 255).astype(np.uint8))


def _palette(rng: np.random.Generator) -> NDArray[np.float64]:
    """A few colours of one scene: shades around two anchors, some of them dark or light."""
    anchors = rng.uniform(0, 255, (2, 1)) + rng.normal(0, 40, (2, 3))
    shades = anchors[rng.integers(2, size=6)] * rng.uniform(0.35, 1.4, (6, 1))
    return np.clip(shades + rng.normal(0, rng.uniform(5, 30), (6, 3)), 0, 255)


def _gradient(side: int, palette: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.uint8]:
    angle = rng.uniform(0, 2 * np.pi)
    axis = np.linspace(-1, 1, side)
    ramp = np.cos(angle) * axis[None, :] + np.sin(angle) * axis[:, None]
    share = 1 / (1 + np.exp(-ramp * rng.uniform(0.5, 8)))[..., None]
    shaded: NDArray[np.uint8] = (share * palette[0] + (1 - share) * palette[1]).astype(np.uint8)
    return shaded


def _scatter_leaves(picture: Image.Image, palette: NDArray[np.float64], rng: np.random.Generator) -> None:
    draw = ImageDraw.Draw(picture)
    side = picture.width
    for _ in range(int(rng.integers(0, 28))):
        radius = min(0.5, 0.04 / max(rng.random(), 1e-3) ** 0.7) * side
        x, y = rng.uniform(-0.1, 1.1, 2) * side
        base = palette[rng.integers(len(palette))] + rng.normal(0, 12, 3)
        red, green, blue = (int(v) for v in np.clip(base, 0, 255))
        colour = (red, green, blue)
        kind = rng.random()
        if kind < 0.4:
            flat = rng.uniform(0.3, 1.0)
            draw.ellipse((x - radius, y - radius * flat, x + radius, y + radius * flat), fill=colour)
        elif kind < 0.75:
            spokes = np.sort(rng.uniform(0, 2 * np.pi, int(rng.integers(3, 7))))
            reach = radius * rng.uniform(0.6, 1.4, len(spokes))
            draw.polygon(
                [(x + r * np.cos(a), y + r * np.sin(a)) for a, r in zip(spokes, reach, strict=True)],
                fill=colour,
            )
        else:
            dx, dy = rng.normal(0, 0.4 * side, 2)
            draw.line((x - dx, y - dy, x + dx, y + dy), fill=colour, width=int(rng.integers(1, 6)))


def _one_over_f(side: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Noise with a 1/f spectrum, mean 0 and variance 1."""
    rows, columns = np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None, :]
    frequency = np.hypot(rows, columns)
    frequency[0, 0] = np.inf
    shape = frequency.shape
    spectrum = (rng.normal(size=shape) + 1j * rng.normal(size=shape)) / frequency**1.3
    noise: NDArray[np.float64] = np.fft.irfft2(spectrum, s=(side, side))
    return noise / np.std(noise)
