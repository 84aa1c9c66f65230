"""Our own digits: the same for the same seed, however many are asked for, and kept in the cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from varangian.core.errors import BadInput
from varangian.studies.data import Digits, draw_digit, locate, synthetic, synthetic_digits
from varangian.studies.data.glyphs import digit_fonts


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.delenv("VARANGIAN_DATA", raising=False)
    monkeypatch.setattr(locate, "cache_folder", lambda: folder)
    monkeypatch.setattr(synthetic, "cache_folder", lambda: folder)
    return folder


def drawn(train: int, test: int, seed: int = 0) -> Digits:
    return synthetic_digits(train, test, seed, cache=False)


def test_a_smaller_set_is_the_beginning_of_a_larger_one() -> None:
    small, large = drawn(4, 2), drawn(9, 5)
    assert np.array_equal(small.train_images, large.train_images[:4])
    assert np.array_equal(small.train_labels, large.train_labels[:4])
    assert np.array_equal(small.test_images, large.test_images[:2])
    assert np.array_equal(small.test_labels, large.test_labels[:2])


def test_seeds_splits_and_indices_give_different_pictures() -> None:
    first, other = drawn(6, 6), drawn(6, 6, seed=1)
    pictures = [*first.train_images, *first.test_images, *other.train_images, *other.test_images]
    assert len({picture.tobytes() for picture in pictures}) == 24


def test_shapes_labels_and_range() -> None:
    digits = drawn(200, 1)
    assert digits.train_images.shape == (200, 28, 28)
    assert digits.train_images.dtype == np.uint8
    assert digits.train_labels.dtype == np.int64
    assert set(digits.train_labels.tolist()) == set(range(10))
    assert digits.train_images.std(axis=(1, 2)).min() > 3, "no picture is blank"


def test_every_font_has_digits_and_there_are_enough() -> None:
    stems = {path.stem for path in digit_fonts()}
    assert len(stems) >= 20
    assert {"DejaVuSans", "STIXGeneral", "cmr10"} <= stems
    assert not stems & {"cmsy10", "cmex10", "cmmi10", "STIXSizOneSymReg", "LastResortHE-Regular"}


def test_the_digit_can_be_told_from_what_lies_under_it() -> None:
    picture, _ = draw_digit(0, "train", 0)
    colours = picture.getcolors(64 * 64)
    assert colours is not None
    assert max(count for count, _ in colours) > 100, "the ink is one flat colour"


def test_the_cache_is_written_once_and_read_after(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = synthetic_digits(3, 2)
    assert [path.suffix for path in cache.iterdir()] == [".npz"]
    monkeypatch.setattr(synthetic, "draw_digit", None)
    second = synthetic_digits(3, 2)
    assert np.array_equal(first.train_images, second.train_images)
    assert np.array_equal(first.test_labels, second.test_labels)


def test_a_kept_set_is_taken_from_the_data_folder(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = synthetic_digits(3, 2)
    cache.rename(tmp_path / "elsewhere")
    monkeypatch.setattr(synthetic, "draw_digit", None)
    assert np.array_equal(synthetic_digits(3, 2, folder=tmp_path / "elsewhere").test_images, expected.test_images)
    monkeypatch.setenv("VARANGIAN_DATA", str(tmp_path / "elsewhere"))
    assert np.array_equal(synthetic_digits(3, 2).test_images, expected.test_images)


def test_a_damaged_or_misnamed_cache_is_refused(cache: Path) -> None:
    synthetic_digits(3, 2)
    (path,) = cache.iterdir()
    path.rename(path.with_name(path.name.replace("3+2", "4+2")))
    with pytest.raises(BadInput, match=r"4\+2.npz.*delete it"):
        synthetic_digits(4, 2)
    path.write_bytes(b"PK")
    with pytest.raises(BadInput, match=r"3\+2.npz"):
        synthetic_digits(3, 2)


def test_a_cache_that_cannot_be_written_does_no_harm(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    assert len(synthetic_digits(1, 1).train_images) == 1


def test_sizes_and_seeds_below_the_least_are_refused() -> None:
    for train, test, seed in ((0, 1, 0), (1, 0, 0), (1, 1, -1)):
        with pytest.raises(BadInput, match="synthetic digits"):
            synthetic_digits(train, test, seed)
