"""The second digit set of the paper: colour images, one folder per digit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from varangian.core.errors import BadInput
from varangian.studies.data.catalogue import KAGGLE_DIGITS
from varangian.studies.data.locate import locate
from varangian.studies.data.values import SIDE, Digits

_ENDINGS = (".jpg", ".jpeg", ".png")
_LARGEST_SIDE = 1024


def kaggle_digits(folder: Path | str | None = None) -> Digits:
    """Synthetic digits from ``imgs_train/0..9`` and ``imgs_valid/0..9``, converted to 28x28 grey.

    Images are sorted by digit, then by file name, so shuffle before you take the first few.
    """
    home = locate(KAGGLE_DIGITS, folder).path
    return Digits(*_read_split(home / "imgs_train"), *_read_split(home / "imgs_valid"))


def _read_split(home: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    images: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    for digit in range(10):
        inside = home / str(digit)
        files = sorted(path for path in inside.glob("*") if path.suffix.lower() in _ENDINGS)
        if not files:
            raise BadInput(f"{inside}: holds no images; unpack the whole archive again")
        images += [_read_image(path) for path in files]
        labels += [digit] * len(files)
    return np.stack(images), np.array(labels, np.int64)


def _read_image(path: Path) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(path, formats=("JPEG", "PNG")) as image:
            # The size is known before decoding, so an image made to exhaust memory is never decoded.
            if max(image.size) > _LARGEST_SIDE:
                raise BadInput(f"{path}: is {image.width}x{image.height}, larger than any image here; get it again")
            small = image.convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    except BadInput:
        raise
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadInput(f"{path}: is not a whole JPEG or PNG image; unpack the archive again") from error
    return np.asarray(small, np.uint8)
