"""The readers on tiny files in the forms their owners distribute, whole, damaged and missing.

Human activity has a file of its own.
"""

from __future__ import annotations

import bz2
import gzip
import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from varangian.core.errors import BadInput
from varangian.studies import data
from varangian.studies.data import locate
from varangian.studies.data.arrays import digest, record_of

REAL_DATA = os.environ.get("VARANGIAN_DATA")


@pytest.fixture(autouse=True)
def no_other_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VARANGIAN_DATA", raising=False)
    monkeypatch.setattr(locate, "cache_folder", lambda: tmp_path / "cache")


# Makers of tiny originals.


def idx(values: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


def mnist_files(home: Path, packed: bool = True) -> Path:
    rng = np.random.default_rng(0)
    for stem, count in (("train", 12), ("t10k", 5)):
        contents = {
            f"{stem}-images-idx3-ubyte": idx(rng.integers(0, 256, (count, 28, 28), np.uint8)),
            f"{stem}-labels-idx1-ubyte": idx((np.arange(count) % 10).astype(np.uint8)),
        }
        for name, content in contents.items():
            if packed:
                (home / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (home / name).write_bytes(content)
    return home


def kaggle_folders(home: Path) -> Path:
    for split, count in (("imgs_train", 2), ("imgs_valid", 1)):
        for digit in range(10):
            inside = home / split / str(digit)
            inside.mkdir(parents=True)
            for number in range(count):
                colour = (20 * digit, 10 * number, 0)
                Image.new("RGB", (128, 128), colour).save(inside / f"{digit}_{number:05d}.jpg")
    return home


def usps_files(home: Path) -> Path:
    rng = np.random.default_rng(2)
    for name, count in (("usps.bz2", 10), ("usps.t.bz2", 3)):
        lines: list[str] = []
        for label in range(1, count + 1):
            pixels = " ".join(f"{at}:{value:.4f}" for at, value in enumerate(rng.uniform(-1, 1, 256), start=1))
            lines.append(f"{label} {pixels} ")
        (home / name).write_bytes(bz2.compress("\n".join(lines).encode()))
    return home


def digit_arrays(side: int = 28) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {
        "x_train": rng.integers(0, 256, (6, side, side), np.uint8),
        "y_train": np.arange(6, dtype=np.uint8),
        "x_test": rng.integers(0, 256, (2, side, side), np.uint8),
        "y_test": np.arange(2, dtype=np.uint8),
    }


def school_arrays(**changes: Any) -> dict[str, Any]:
    return {
        "x": np.ones((4, 28), np.float32),
        "y": np.arange(4, dtype=np.float32),
        "task": np.array([1, 1, 139, 2], np.int16),
        **changes,
    }


def refused(reader: Callable[[Path], object], folder: Path, *words: str) -> None:
    """The reader refuses, in one line that holds every word."""
    with pytest.raises(BadInput) as caught:
        reader(folder)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


# MNIST.


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_reads_idx_files_packed_or_not(tmp_path: Path, packed: bool) -> None:
    digits = data.mnist(mnist_files(tmp_path, packed))
    expected = np.random.default_rng(0).integers(0, 256, (12, 28, 28), np.uint8)
    assert np.array_equal(digits.train_images, expected)
    assert digits.train_labels.tolist() == [*range(10), 0, 1]
    assert digits.train_labels.dtype == np.int64
    assert digits.test_images.shape == (5, 28, 28)


def test_mnist_reads_dotted_names_and_a_folder_of_its_own(tmp_path: Path) -> None:
    home = tmp_path / "mnist"
    home.mkdir()
    mnist_files(home, packed=False)
    for path in list(home.iterdir()):
        path.rename(home / path.name.replace("-idx", ".idx"))
    assert len(data.mnist(tmp_path).test_labels) == 5


def test_mnist_reads_npz_and_prefers_the_originals(tmp_path: Path) -> None:
    np.savez(tmp_path / "mnist.npz", **digit_arrays())
    assert len(data.mnist(tmp_path).train_images) == 6
    mnist_files(tmp_path)
    assert len(data.mnist(tmp_path).train_images) == 12


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_a_truncated_idx_file_is_named(tmp_path: Path, name: str) -> None:
    mnist_files(tmp_path, packed=False)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-1])
    refused(data.mnist, tmp_path, str(path), "header says")


def test_truncated_and_altered_gz_files_are_named(tmp_path: Path) -> None:
    path = mnist_files(tmp_path) / "train-labels-idx1-ubyte.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    refused(data.mnist, tmp_path, str(path))
    path.write_bytes(whole[:-8] + b"\x00\x00\x00\x00" + whole[-4:])
    refused(data.mnist, tmp_path, str(path))


def test_a_missing_idx_file_and_labels_out_of_range_are_named(tmp_path: Path) -> None:
    labels = mnist_files(tmp_path, packed=False) / "train-labels-idx1-ubyte"
    labels.write_bytes(idx(np.full(12, 10, np.uint8)))
    refused(data.mnist, tmp_path, str(labels), "0..9")
    labels.write_bytes(idx(np.zeros(11, np.uint8)))
    refused(data.mnist, tmp_path, str(tmp_path), "12 images", "11 labels")
    labels.unlink()
    refused(data.mnist, tmp_path, "train-labels", "missing")


def test_idx_images_of_another_size_or_another_kind_of_file_are_refused(tmp_path: Path) -> None:
    images = mnist_files(tmp_path, packed=False) / "t10k-images-idx3-ubyte"
    images.write_bytes(idx(np.zeros((5, 20, 20), np.uint8)))
    refused(data.mnist, tmp_path, str(images), "Nx28x28")
    images.write_bytes(b"<html>not found</html>")
    refused(data.mnist, tmp_path, str(images), "idx")


# npz files.


def test_mnist_m_and_school_read_their_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "mnist_m_gray28_24k.npz", **digit_arrays())
    np.savez(tmp_path / "school.npz", **school_arrays())
    assert data.mnist_m(tmp_path).test_images.shape == (2, 28, 28)
    pupils = data.school(tmp_path)
    assert pupils.school.tolist() == [0, 0, 138, 1]
    assert pupils.x.dtype == pupils.y.dtype == np.float32


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"x_train": np.zeros((6, 27, 28), np.uint8)}, "x_train"),
        ({"x_train": np.zeros((6, 28, 28), np.float32)}, "float32"),
        ({"y_test": np.array([0, 11], np.uint8)}, "0..11"),
        ({"y_train": np.arange(5, dtype=np.uint8)}, "6 train_images"),
        ({"x_test": np.zeros((0, 28, 28), np.uint8), "y_test": np.zeros(0, np.uint8)}, "empty"),
    ],
)
def test_wrong_arrays_are_refused(tmp_path: Path, change: dict[str, Any], word: str) -> None:
    np.savez(tmp_path / "mnist_m_gray28_24k.npz", **(digit_arrays() | change))
    refused(data.mnist_m, tmp_path, "mnist_m_gray28_24k.npz", word)


def test_not_finite_values_and_missing_arrays_are_refused(tmp_path: Path) -> None:
    arrays = school_arrays()
    arrays["y"][1] = np.nan
    np.savez(tmp_path / "school.npz", **arrays)
    refused(data.school, tmp_path, "school.npz [y]", "finite")
    del arrays["task"]
    np.savez(tmp_path / "school.npz", **arrays)
    refused(data.school, tmp_path, "school.npz", "'task'")


def test_truncated_and_altered_npz_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "school.npz"
    np.savez(path, **school_arrays())
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(data.school, tmp_path, str(path))
    changed = bytearray(whole)
    changed[300] ^= 1
    path.write_bytes(bytes(changed))
    refused(data.school, tmp_path, str(path))
    path.write_bytes(b"")
    refused(data.school, tmp_path, str(path))


def test_a_header_too_long_to_be_honest_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "school.npz"
    np.savez(path, **school_arrays())
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("x", "y", "task"):
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 20_000) + b" " * 20_000)
    refused(data.school, tmp_path, str(path), "npz")


class Trap:
    """Unpickling one writes a file."""

    def __init__(self, sprung: Path) -> None:
        self.sprung = sprung

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.sprung, "sprung")


def test_pickles_are_refused_and_never_opened(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    path = tmp_path / "school.npz"
    trap = np.empty(4, object)
    trap[:] = Trap(sprung)
    np.savez(path, **school_arrays(y=trap))
    refused(data.school, tmp_path, str(path), "pickled")
    path.write_bytes(pickle.dumps(Trap(sprung)))
    refused(data.school, tmp_path, str(path))
    assert not sprung.exists()


def test_a_header_that_claims_more_than_the_file_holds_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "school.npz"
    np.savez(path, **school_arrays())
    header = io.BytesIO()
    claim = {"descr": "<f4", "fortran_order": False, "shape": (10**12, 28)}
    np.lib.format.write_array_header_1_0(header, claim)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (members | {"x.npy": header.getvalue()}).items():
            archive.writestr(name, content)
    refused(data.school, tmp_path, "school.npz [x]", "size")


def test_a_file_that_differs_from_its_recorded_checksum_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "school.npz"
    np.savez(path, **school_arrays())
    record_of(path).write_text(f"{digest(path)}  school.npz\n")
    data.school(tmp_path)
    np.savez(path, **school_arrays(y=np.zeros(4, np.float32)))
    refused(data.school, tmp_path, str(path), "school.npz.sha256")


# Kaggle and USPS.


@pytest.mark.parametrize("inside", [".", "synthetic_digits", "synthetic-digits-kaggle"])
def test_kaggle_folders_are_read_in_order(tmp_path: Path, inside: str) -> None:
    kaggle_folders(tmp_path / inside)
    digits = data.kaggle_digits(tmp_path)
    assert digits.train_labels.tolist() == [digit for digit in range(10) for _ in range(2)]
    assert digits.train_images.shape == (20, 28, 28)
    assert digits.train_images.dtype == np.uint8
    assert digits.train_images[18].mean() == pytest.approx(0.299 * 180, abs=3)
    assert digits.train_images[1].mean() > digits.train_images[0].mean(), "file name order within a digit"
    assert digits.test_labels.tolist() == list(range(10))


def test_spoilt_kaggle_folders_are_refused(tmp_path: Path) -> None:
    kaggle_folders(tmp_path)
    image = tmp_path / "imgs_valid" / "3" / "3_00000.jpg"
    image.write_bytes(image.read_bytes()[:200])
    refused(data.kaggle_digits, tmp_path, str(image))
    Image.new("RGB", (1025, 4)).save(image)
    refused(data.kaggle_digits, tmp_path, str(image), "1025x4")
    image.unlink()
    refused(data.kaggle_digits, tmp_path, str(image.parent), "no images")


def test_usps_npz_is_enlarged(tmp_path: Path) -> None:
    arrays = digit_arrays(16)
    arrays["x_train"] = np.zeros((6, 16, 16), np.float32)
    arrays["x_train"][0] = 1
    arrays["x_train"][1, :, 8:] = 1
    arrays["x_test"] = np.zeros((2, 16, 16), np.float32)
    np.savez(tmp_path / "usps.npz", **arrays)
    digits = data.usps(tmp_path)
    assert digits.train_images.shape == (6, 28, 28)
    assert np.all(digits.train_images[0] == 255)
    assert np.all(digits.train_images[1, :, :13] == 0) and np.all(digits.train_images[1, :, 15:] == 255)


def test_usps_originals_are_read_and_checked(tmp_path: Path) -> None:
    digits = data.usps(usps_files(tmp_path))
    assert digits.train_labels.tolist() == list(range(10))
    assert digits.test_images.shape == (3, 28, 28)
    path = tmp_path / "usps.t.bz2"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    refused(data.usps, tmp_path, str(path))
    path.write_bytes(bz2.compress(bz2.decompress(whole).replace(b" 7:", b" 8:")))
    refused(data.usps, tmp_path, str(path), "256")
    path.unlink()
    refused(data.usps, tmp_path, str(path), "missing")


# Where to look.


def test_the_given_folder_comes_before_the_variable_and_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, score in (("given", 1), ("variable", 2), ("cache", 3)):
        (tmp_path / place).mkdir()
        np.savez(tmp_path / place / "school.npz", **school_arrays(y=np.full(4, score, np.float32)))
    monkeypatch.setenv("VARANGIAN_DATA", str(tmp_path / "variable"))
    assert data.school(tmp_path / "given").y[0] == 1
    assert data.school().y[0] == 2
    monkeypatch.delenv("VARANGIAN_DATA")
    assert data.school().y[0] == 3


@pytest.mark.parametrize(
    ("reader", "name"),
    [
        (data.human_activity, "human-activity"),
        (data.mnist, "mnist"),
        (data.mnist_m, "mnist-m"),
        (data.kaggle_digits, "synthetic-digits-kaggle"),
        (data.usps, "usps"),
        (data.school, "school"),
    ],
)
def test_nothing_found_is_one_line(tmp_path: Path, reader: Callable[[Path], object], name: str) -> None:
    refused(reader, tmp_path, name, data.dataset(name).page, str(tmp_path))


def test_a_named_folder_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(data.school, tmp_path / "nowhere", "nowhere")
    monkeypatch.setenv("VARANGIAN_DATA", str(tmp_path / "gone"))
    with pytest.raises(BadInput, match=r"VARANGIAN_DATA .*gone"):
        data.school()


@pytest.mark.skipif(REAL_DATA is None, reason="VARANGIAN_DATA is not set: no real files to read")
@pytest.mark.parametrize(
    ("reader", "shapes"),
    [
        (data.human_activity, {"x": (10299, 561), "y": (10299,), "person": (10299,)}),
        (data.mnist, {"train_images": (60000, 28, 28), "test_images": (10000, 28, 28)}),
        (data.mnist_m, {"train_images": (20000, 28, 28), "test_images": (4000, 28, 28)}),
        (data.usps, {"train_images": (7291, 28, 28), "test_images": (2007, 28, 28)}),
        (data.school, {"x": (15362, 28), "school": (15362,)}),
    ],
)
def test_real_files_have_the_right_shapes(reader: Callable[[Path], object], shapes: dict[str, tuple[int, ...]]) -> None:
    assert REAL_DATA is not None
    try:
        value = reader(Path(REAL_DATA))
    except BadInput as error:
        if "is not on this computer" in str(error):
            pytest.skip(str(error))
        raise
    assert {name: getattr(value, name).shape for name in shapes} == shapes
