"""Our own printed digits over random backgrounds, like the synthetic digits of the paper; needs no network."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from varangian.core.errors import BadInput
from varangian.studies.data.arrays import write_npz
from varangian.studies.data.backgrounds import random_background
from varangian.studies.data.glyphs import random_digit
from varangian.studies.data.locate import cache_folder, search_folders
from varangian.studies.data.values import SIDE, Digits, read_digits_npz

VERSION = 1
"""Part of the name of the cache file. Increase it whenever the pictures change."""

DRAWN_SIDE = 64
"""Pictures are drawn in colour at this size, then reduced to 28x28 grey, as in the paper."""

LEAST_CONTRAST = 35
"""The least difference in grey between ink and background: two different colours can have the same grey."""

Split = Literal["train", "test"]
_SPLIT_NUMBER: dict[Split, int] = {"train": 0, "test": 1}


def synthetic_digits(
    train: int = 10_000,
    test: int = 2_000,
    seed: int = 0,
    cache: bool = True,
    folder: Path | str | None = None,
) -> Digits:
    """``train`` + ``test`` printed digits in random fonts and colours over random backgrounds, 28x28 grey.

    Picture i of a split depends only on (seed, split, i), so a smaller set is the beginning of a larger one. The
    same versions of Pillow and of matplotlib's fonts give the same bytes. With ``cache`` the set is read from
    ``folder``, ``VARANGIAN_DATA`` or the cache folder. If none holds it, it is drawn and saved in the cache folder.

    >>> digits = synthetic_digits(train=2, test=1, cache=False)
    >>> digits.train_images.shape, digits.train_images.dtype
    ((2, 28, 28), dtype('uint8'))
    """
    if train < 1 or test < 1 or seed < 0:
        raise BadInput(f"synthetic digits: train={train}, test={test} must be 1 or more, seed={seed} 0 or more")
    name = f"synthetic_digits_v{VERSION}_seed{seed}_{train}+{test}.npz"
    if cache:
        for place in search_folders(folder):
            if (place / name).is_file():
                return read_digits_npz(place / name, counts=(train, test))
    digits = Digits(*_draw_split(seed, "train", train), *_draw_split(seed, "test", test))
    if cache:
        _keep(cache_folder() / name, digits)
    return digits


def _keep(path: Path, digits: Digits) -> None:
    # If the cache cannot be written, for example on a read-only disk, the next run only takes half a minute longer.
    with suppress(OSError):
        write_npz(
            path,
            x_train=digits.train_images,
            y_train=digits.train_labels,
            x_test=digits.test_images,
            y_test=digits.test_labels,
        )


def _draw_split(seed: int, split: Split, count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    from PIL import Image

    images = np.empty((count, SIDE, SIDE), np.uint8)
    labels = np.empty(count, np.int64)
    for index in range(count):
        picture, labels[index] = draw_digit(seed, split, index)
        images[index] = np.asarray(picture.convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR))
    return images, labels


def draw_digit(seed: int, split: Split, index: int) -> tuple[Image.Image, int]:
    """One 64x64 picture in colour, before it is reduced, and its digit.

    >>> picture, digit = draw_digit(seed=0, split="train", index=3)
    >>> picture.size, picture.mode
    ((64, 64), 'RGB')
    """
    rng = np.random.default_rng([seed, _SPLIT_NUMBER[split], index])
    digit = int(rng.integers(10))
    picture = random_background(DRAWN_SIDE, rng)
    mask = random_digit(digit, DRAWN_SIDE, rng)
    under = float(np.average(np.asarray(picture.convert("L")), weights=np.asarray(mask, np.float64) + 1e-6))
    picture.paste(_ink(under, rng), (0, 0), mask)
    return picture, digit


def _ink(under: float, rng: np.random.Generator) -> tuple[int, int, int]:
    while True:
        red, green, blue = (int(v) for v in rng.integers(0, 256, 3))
        # The weights with which Pillow converts colour to grey.
        if abs(0.299 * red + 0.587 * green + 0.114 * blue - under) >= LEAST_CONTRAST:
            return red, green, blue
