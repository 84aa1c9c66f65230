"""Find a dataset on this computer, and the form of its files. Nothing is downloaded here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from varangian.core.errors import BadInput
from varangian.core.files import cache_folder as cache_folder
from varangian.studies.data.catalogue import HUMAN_ACTIVITY, KAGGLE_DIGITS, MNIST, USPS, Dataset, how_to_get

VARIABLE = "VARANGIAN_DATA"

Form = Literal["npz", "uci folder", "uci zip", "idx", "libsvm", "image folders"]


@dataclass(frozen=True)
class Found:
    """A dataset on this computer: its form, and its file or folder."""

    form: Form
    path: Path


def search_folders(folder: Path | str | None = None) -> tuple[Path, ...]:
    """The folders to search, in order: ``folder``, ``VARANGIAN_DATA``, the cache.

    A named folder that does not exist is an error; a missing cache is not.
    """
    named: list[Path] = []
    for origin, value in (("the data folder", folder), (VARIABLE, os.environ.get(VARIABLE))):
        if value is None or value == "":
            continue
        path = Path(value).expanduser()
        if not path.is_dir():
            raise BadInput(f"{origin} {path} is not a folder; make it, or name another one")
        named.append(path)
    return (*named, cache_folder())


def find(entry: Dataset, folder: Path | str | None = None) -> Found | None:
    """The first form of the dataset in the first folder that holds one, or None.

    Each folder is searched, then its subfolder with the name of the dataset. Originals come before ``npz`` files.
    """
    for place in search_folders(folder):
        for home in (place, place / entry.name):
            for found in _forms(entry, home):
                return found
    return None


def locate(entry: Dataset, folder: Path | str | None = None) -> Found:
    """Like ``find``, but a missing dataset is an error that says how to get it and where to put it."""
    found = find(entry, folder)
    if found is None:
        where = str(search_folders(folder)[0])
        raise BadInput(f"{entry.name} is not on this computer; {how_to_get(entry, where)}")
    return found


def _forms(entry: Dataset, home: Path) -> Iterator[Found]:
    if entry is HUMAN_ACTIVITY:
        yield from _uci(home)
    elif entry is MNIST and any(idx_file(home, original.name) for original in MNIST.originals):
        yield Found("idx", home)
    elif entry is USPS and any((home / original.name).is_file() for original in USPS.originals):
        yield Found("libsvm", home)
    elif entry is KAGGLE_DIGITS:
        for inside in (home, home / "synthetic_digits", home / "data" / "synthetic_digits"):
            if (inside / "imgs_train").is_dir():
                yield Found("image folders", inside)
    if entry.npz and (home / entry.npz).is_file():
        yield Found("npz", home / entry.npz)


def _uci(home: Path) -> Iterator[Found]:
    for inside in (home / "UCI HAR Dataset", home):
        if (inside / "train" / "X_train.txt").is_file():
            yield Found("uci folder", inside)
    for name in (HUMAN_ACTIVITY.originals[0].name, "UCI HAR Dataset.zip"):
        if (home / name).is_file():
            yield Found("uci zip", home / name)


def idx_file(home: Path, name: str) -> Path | None:
    """An MNIST file under any of its usual names: compressed or not, with a dash or a dot before ``idx``."""
    plain = name.removesuffix(".gz")
    for candidate in (name, plain, plain.replace("-idx", ".idx"), plain.replace("-idx", ".idx") + ".gz"):
        if (home / candidate).is_file():
            return home / candidate
    return None
