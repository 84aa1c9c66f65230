"""USPS: digits from envelopes, 16x16, enlarged to the 28x28 of the other digit sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from varangian.core.errors import BadInput
from varangian.studies.data.arrays import AGAIN, Field, check_array, read_bytes, read_npz, same_length, table
from varangian.studies.data.catalogue import USPS
from varangian.studies.data.locate import locate
from varangian.studies.data.values import LABELS, SIDE, Digits

_SMALL = 16
_IMAGES = Field("f", (None, _SMALL, _SMALL), 0, 1)


def usps(folder: Path | str | None = None) -> Digits:
    """USPS from the two LIBSVM files, or from ``usps.npz``."""
    found = locate(USPS, folder)
    if found.form == "npz":
        fields = {"x_train": _IMAGES, "y_train": LABELS, "x_test": _IMAGES, "y_test": LABELS}
        arrays = read_npz(found.path, fields)
        train, test = (arrays["x_train"], arrays["y_train"]), (arrays["x_test"], arrays["y_test"])
    else:
        train, test = _read_libsvm(found.path / "usps.bz2"), _read_libsvm(found.path / "usps.t.bz2")
    for images, labels in (train, test):
        same_length(found.path, images=images, labels=labels)
    return Digits(_enlarge(train[0]), train[1].astype(np.int64), _enlarge(test[0]), test[1].astype(np.int64))


def _read_libsvm(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Lines of ``label 1:value ... 256:value``, labels from 1 to 10 and values from -1 to 1."""
    if not path.is_file():
        raise BadInput(f"{path}: is missing, but the other USPS file is there; run `varangian data get usps`")
    numbers = table(str(path), read_bytes(path).replace(b":", b" "))
    pixels = _SMALL * _SMALL
    if numbers.shape[1] != 1 + 2 * pixels or np.any(numbers[:, 1::2] != np.arange(1, pixels + 1)):
        raise BadInput(f"{path}: does not list {pixels} numbered pixels per line; {AGAIN}")
    images = ((numbers[:, 2::2] + 1) / 2).reshape(-1, _SMALL, _SMALL)
    labels = numbers[:, 0] - 1
    check_array(str(path), images, _IMAGES)
    if np.any(labels != np.floor(labels)):
        raise BadInput(f"{path}: has labels that are not whole numbers; {AGAIN}")
    check_array(str(path), labels.astype(np.int64), LABELS)
    return images, labels


def _enlarge(images: NDArray[Any]) -> NDArray[np.uint8]:
    """Bilinear enlargement, written as one small matrix applied to rows and to columns."""
    at = np.clip((np.arange(SIDE) + 0.5) * _SMALL / SIDE - 0.5, 0, _SMALL - 1)
    weight = np.maximum(0, 1 - np.abs(at[:, None] - np.arange(_SMALL)[None, :])).astype(np.float32)
    grey = weight @ images.astype(np.float32) @ weight.T
    enlarged: NDArray[np.uint8] = np.rint(grey * 255).astype(np.uint8)
    return enlarged
