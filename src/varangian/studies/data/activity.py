"""Human activity: 30 people, six activities, 561 features of each window of a phone's motion."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from varangian.core.errors import BadInput
from varangian.studies.data.arrays import (
    AGAIN,
    BROKEN,
    Field,
    check_array,
    limited,
    one_line,
    read_bytes,
    read_npz,
    same_length,
    table,
    verify_record,
)
from varangian.studies.data.catalogue import HUMAN_ACTIVITY
from varangian.studies.data.locate import locate
from varangian.studies.data.values import HumanActivity

LABEL_NAMES = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")

# Features are scaled to [-1, 1], but rounding in the text files may exceed that slightly.
_FEATURES = Field("f", (None, 561), -1.0001, 1.0001)
_ACTIVITY = Field("uif", (None,), 1, 6)
_PERSON = Field("uif", (None,), 1, 30)

Table = NDArray[np.float64]
ReadPart = Callable[[str], tuple[str, bytes]]
"""Takes a name such as ``train/X_train.txt``; returns the full name, for messages, and the content of the file."""


def human_activity(folder: Path | str | None = None) -> HumanActivity:
    """The whole dataset, from the unpacked UCI folder, the UCI zip or ``uci_har_561.npz``."""
    found = locate(HUMAN_ACTIVITY, folder)
    if found.form == "npz":
        arrays = read_npz(found.path, {"x": _FEATURES, "y": _ACTIVITY, "subject": _PERSON})
        return _by_person(str(found.path), arrays["x"], arrays["y"], arrays["subject"])
    if found.form == "uci folder":
        return _read_parts(str(found.path), lambda part: _from_folder(found.path, part))
    verify_record(found.path)
    try:
        with zipfile.ZipFile(found.path) as archive:
            return _read_zip(str(found.path), archive)
    except BadInput:
        raise
    except BROKEN as error:
        raise BadInput(f"{found.path}: is damaged or not a zip file ({one_line(error)}); {AGAIN}") from error


def _read_zip(where: str, archive: zipfile.ZipFile, nested: bool = False) -> HumanActivity:
    names = archive.namelist()
    inner = [name for name in names if name.endswith("UCI HAR Dataset.zip")]
    if inner and not nested:
        # UCI puts the authors' original zip into another zip.
        data = _member(where, archive, inner[0])
        with zipfile.ZipFile(io.BytesIO(data)) as inside:
            return _read_zip(f"{where} [{inner[0]}]", inside, nested=True)

    def read(part: str) -> tuple[str, bytes]:
        matches = [name for name in names if name == part or name.endswith("/" + part)]
        if not matches:
            raise BadInput(f"{where}: holds no {part}; {AGAIN}")
        return f"{where} [{matches[0]}]", _member(where, archive, matches[0])

    return _read_parts(where, read)


def _member(where: str, archive: zipfile.ZipFile, name: str) -> bytes:
    with archive.open(name) as stream:
        return limited(f"{where} [{name}]", stream)


def _from_folder(home: Path, part: str) -> tuple[str, bytes]:
    path = home / part
    if not path.is_file():
        raise BadInput(f"{home}: holds no {part}; {AGAIN}")
    return str(path), read_bytes(path)


def _read_parts(where: str, read: ReadPart) -> HumanActivity:
    halves = [_read_half(where, read, half) for half in ("train", "test")]
    x, y, subject = (np.concatenate(parts) for parts in zip(*halves, strict=True))
    return _by_person(where, x, y, subject)


def _read_half(where: str, read: ReadPart, half: str) -> tuple[Table, Table, Table]:
    name, text = read(f"{half}/X_{half}.txt")
    features = table(name, text)
    check_array(name, features, _FEATURES)
    columns: list[Table] = []
    for stem, field in (("y", _ACTIVITY), ("subject", _PERSON)):
        name, text = read(f"{half}/{stem}_{half}.txt")
        column = table(name, text).reshape(-1)
        check_array(name, column, field)
        columns.append(column)
    same_length(f"{where} ({half})", features=features, activities=columns[0], people=columns[1])
    return features, columns[0], columns[1]


def _by_person(where: str, x: NDArray[Any], y: NDArray[Any], subject: NDArray[Any]) -> HumanActivity:
    same_length(where, features=x, activities=y, people=subject)
    for name, values in (("activities", y), ("people", subject)):
        if np.any(values != np.floor(values)):
            raise BadInput(f"{where}: the {name} are not whole numbers; {AGAIN}")
    # A stable sort keeps each person's windows in the order of recording.
    order = np.argsort(subject, kind="stable")
    return HumanActivity(
        x=x[order].astype(np.float32),
        y=y[order].astype(np.int64) - 1,
        person=subject[order].astype(np.int64) - 1,
        label_names=LABEL_NAMES,
    )
