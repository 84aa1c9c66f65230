"""What the readers return: plain arrays, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from varangian.core.errors import BadInput
from varangian.studies.data.arrays import Field, read_npz, same_length

SIDE = 28
"""Every digit image is SIDE x SIDE grey pixels."""


@dataclass(frozen=True)
class Digits:
    """Grey digit images, (N, 28, 28) uint8, and their labels, (N,) int64 in 0..9."""

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int64]


@dataclass(frozen=True)
class HumanActivity:
    """561 features of each window, (N, 561) float32; its activity, 0..5; and its person, 0..29.

    Rows are grouped by person, in the order of recording. Adjacent windows overlap by half.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    person: NDArray[np.int64]
    label_names: tuple[str, ...]


@dataclass(frozen=True)
class School:
    """28 attributes of each pupil, (N, 28) float32; the exam score; and the school, 0..138."""

    x: NDArray[np.float32]
    y: NDArray[np.float32]
    school: NDArray[np.int64]


IMAGES = Field("u", (None, SIDE, SIDE), 0, 255)
LABELS = Field("ui", (None,), 0, 9)


def read_digits_npz(path: Path, counts: tuple[int, int] | None = None) -> Digits:
    """Digits from an ``npz`` with x_train, y_train, x_test, y_test; ``counts`` are the expected numbers of images."""
    found = read_npz(path, {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES, "y_test": LABELS})
    digits = Digits(
        found["x_train"].astype(np.uint8, copy=False),
        found["y_train"].astype(np.int64),
        found["x_test"].astype(np.uint8, copy=False),
        found["y_test"].astype(np.int64),
    )
    same_length(path, train_images=digits.train_images, train_labels=digits.train_labels)
    same_length(path, test_images=digits.test_images, test_labels=digits.test_labels)
    held = (len(digits.train_images), len(digits.test_images))
    if counts is not None and held != counts:
        raise BadInput(f"{path}: holds {held} images where its name says {counts}; delete it")
    return digits
