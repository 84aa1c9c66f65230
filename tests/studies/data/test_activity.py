"""Human activity from the UCI folder, its zip, the zip in a zip, and npz; whole, damaged and missing."""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from varangian.core.errors import BadInput
from varangian.studies import data
from varangian.studies.data import locate

UCI_NAME = "human+activity+recognition+using+smartphones.zip"


@pytest.fixture(autouse=True)
def no_other_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VARANGIAN_DATA", raising=False)
    monkeypatch.setattr(locate, "cache_folder", lambda: tmp_path / "cache")


def uci_folder(home: Path) -> Path:
    """People 2 and 1 in the training part, in that order, and person 3 in the test part."""
    rng = np.random.default_rng(1)
    for half, people in (("train", [2, 2, 1, 1]), ("test", [3, 3])):
        inside = home / "UCI HAR Dataset" / half
        inside.mkdir(parents=True)
        features = rng.uniform(-1, 1, (len(people), 561))
        features[:, 0] = np.linspace(0, 0.5, len(people))
        np.savetxt(inside / f"X_{half}.txt", features, fmt="%16.7e")
        np.savetxt(inside / f"y_{half}.txt", 1 + np.arange(len(people)) % 6, fmt="%d")
        np.savetxt(inside / f"subject_{half}.txt", people, fmt="%d")
    return home


def zipped(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*.txt")):
            archive.write(path, path.relative_to(folder))
    return buffer.getvalue()


def nested_zip(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("UCI HAR Dataset.names", "as UCI distributes it")
        archive.writestr("UCI HAR Dataset.zip", zipped(folder))
    return buffer.getvalue()


def refused(reader: Callable[[Path], object], folder: Path, *words: str) -> None:
    """The reader refuses, in one line that holds every word."""
    with pytest.raises(BadInput) as caught:
        reader(folder)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_folder_zip_and_zip_in_zip_give_the_same_activity(tmp_path: Path) -> None:
    made = uci_folder(tmp_path / "made")
    forms: dict[str, Callable[[Path], object]] = {
        "plain": lambda home: shutil.copytree(made, home, dirs_exist_ok=True),
        "zip": lambda home: (home / "UCI HAR Dataset.zip").write_bytes(zipped(made)),
        "nested": lambda home: (home / UCI_NAME).write_bytes(nested_zip(made)),
    }
    read: list[data.HumanActivity] = []
    for name, put in forms.items():
        home = tmp_path / name
        home.mkdir()
        put(home)
        read.append(data.human_activity(home))
    for activity in read:
        assert activity.person.tolist() == [0, 0, 1, 1, 2, 2]
        assert activity.y.tolist() == [2, 3, 0, 1, 0, 1]
        marks = activity.x[:, 0].reshape(3, 2)
        assert np.all(marks[:, 1] > marks[:, 0]), "order of recording within a person"
        assert activity.x.dtype == np.float32
        assert np.array_equal(activity.x, read[0].x)
    assert read[0].label_names[5] == "LAYING"


def test_activity_npz_is_grouped_by_person(tmp_path: Path) -> None:
    x = np.zeros((4, 561), np.float32)
    x[:, 0] = [0.1, 0.2, 0.3, 0.4]
    np.savez(tmp_path / "uci_har_561.npz", x=x, y=np.array([1, 2, 3, 6]), subject=np.array([30, 1, 30, 1]))
    activity = data.human_activity(tmp_path)
    assert activity.person.tolist() == [0, 0, 29, 29]
    assert activity.x[:, 0].tolist() == pytest.approx([0.2, 0.4, 0.1, 0.3])
    assert activity.y.tolist() == [1, 5, 0, 2]


SPOILT: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("train/X_train.txt", lambda text: text[: len(text) - 40], "table of numbers"),
    ("test/X_test.txt", lambda text: b"9 " * 561 + b"\n", "9..9"),
    ("test/X_test.txt", lambda text: b"0.5 0.5\n", "Nx561"),
    ("train/y_train.txt", lambda text: text[2:], "3 activities"),
    ("train/y_train.txt", lambda text: text.replace(b"1", b"7"), "1..6"),
    ("train/subject_train.txt", lambda text: text.replace(b"2", b"1.5"), "whole"),
    ("test/subject_test.txt", lambda text: b"", "empty"),
    ("test/subject_test.txt", lambda text: b"\x00\xff\x80", "subject_test"),
]


@pytest.mark.parametrize(("part", "spoil", "word"), SPOILT)
def test_a_spoilt_activity_file_is_refused(
    tmp_path: Path, part: str, spoil: Callable[[bytes], bytes], word: str
) -> None:
    path = uci_folder(tmp_path) / "UCI HAR Dataset" / part
    path.write_bytes(spoil(path.read_bytes()))
    refused(data.human_activity, tmp_path, str(tmp_path / "UCI HAR Dataset"), word)


def test_missing_activity_files_and_bad_zips_are_refused(tmp_path: Path) -> None:
    made = uci_folder(tmp_path / "made")
    (made / "UCI HAR Dataset" / "test" / "y_test.txt").unlink()
    refused(data.human_activity, made, "test/y_test.txt")
    path = tmp_path / "UCI HAR Dataset.zip"
    path.write_bytes(zipped(made))
    refused(data.human_activity, tmp_path, str(path), "test/y_test.txt")
    path.write_bytes(zipped(made)[:-30])
    refused(data.human_activity, tmp_path, str(path), "damaged")
