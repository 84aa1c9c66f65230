"""MNIST and its relative MNIST-M: handwritten digits, plain and over photographs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from varangian.core.errors import BadInput
from varangian.studies.data.arrays import AGAIN, check_array, read_bytes, same_length
from varangian.studies.data.catalogue import MNIST, MNIST_M
from varangian.studies.data.locate import idx_file, locate
from varangian.studies.data.values import IMAGES, LABELS, Digits, read_digits_npz


def mnist(folder: Path | str | None = None) -> Digits:
    """MNIST from its four idx files, compressed or not, or from ``mnist.npz``."""
    found = locate(MNIST, folder)
    if found.form == "npz":
        return read_digits_npz(found.path)
    home = found.path
    digits = Digits(
        train_images=_idx(home, "train-images-idx3-ubyte.gz"),
        train_labels=_idx(home, "train-labels-idx1-ubyte.gz").astype(np.int64),
        test_images=_idx(home, "t10k-images-idx3-ubyte.gz"),
        test_labels=_idx(home, "t10k-labels-idx1-ubyte.gz").astype(np.int64),
    )
    same_length(f"{home} (train idx files)", images=digits.train_images, labels=digits.train_labels)
    same_length(f"{home} (t10k idx files)", images=digits.test_images, labels=digits.test_labels)
    return digits


def mnist_m(folder: Path | str | None = None) -> Digits:
    """MNIST-M in grey from ``mnist_m_gray28_24k.npz``."""
    return read_digits_npz(locate(MNIST_M, folder).path)


def _idx(home: Path, name: str) -> NDArray[Any]:
    path = idx_file(home, name)
    if path is None:
        raise BadInput(f"{home}: {name} is missing, but other MNIST files are there; run `varangian data get mnist`")
    array = _parse_idx(str(path), read_bytes(path))
    check_array(str(path), array, IMAGES if "idx3" in name else LABELS)
    return array


def _parse_idx(where: str, data: bytes) -> NDArray[np.uint8]:
    """An idx file: two zero bytes, 8 (which means bytes), the number of dimensions, their sizes, the values."""
    if len(data) < 4 or data[:3] != b"\x00\x00\x08" or not 1 <= data[3] <= 3 or len(data) < 4 + 4 * data[3]:
        raise BadInput(f"{where}: does not begin like an idx file of bytes; {AGAIN}")
    start = 4 + 4 * data[3]
    shape = tuple(int.from_bytes(data[at : at + 4], "big") for at in range(4, start, 4))
    count = 1
    for length in shape:
        count *= length
    if len(data) - start != count:
        raise BadInput(f"{where}: holds {len(data) - start} values where its header says {count}; {AGAIN}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
