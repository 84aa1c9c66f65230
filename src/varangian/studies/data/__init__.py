"""Datasets: find them on this computer, check them, and read them as plain numpy arrays.

Reading never downloads. ``varangian data get NAME`` and ``varangian.studies.data.fetch.get`` do that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from varangian.core.lazy import lazy

if TYPE_CHECKING:
    from varangian.studies.data.activity import human_activity as human_activity
    from varangian.studies.data.catalogue import DATASETS as DATASETS
    from varangian.studies.data.catalogue import Dataset as Dataset
    from varangian.studies.data.catalogue import Original as Original
    from varangian.studies.data.catalogue import dataset as dataset
    from varangian.studies.data.kaggle import kaggle_digits as kaggle_digits
    from varangian.studies.data.mnist_files import mnist as mnist
    from varangian.studies.data.mnist_files import mnist_m as mnist_m
    from varangian.studies.data.school_file import school as school
    from varangian.studies.data.synthetic import draw_digit as draw_digit
    from varangian.studies.data.synthetic import synthetic_digits as synthetic_digits
    from varangian.studies.data.usps_files import usps as usps
    from varangian.studies.data.values import Digits as Digits
    from varangian.studies.data.values import HumanActivity as HumanActivity
    from varangian.studies.data.values import School as School

_MEMBERS = {
    "DATASETS": "catalogue",
    "Dataset": "catalogue",
    "Digits": "values",
    "HumanActivity": "values",
    "Original": "catalogue",
    "School": "values",
    "dataset": "catalogue",
    "draw_digit": "synthetic",
    "human_activity": "activity",
    "kaggle_digits": "kaggle",
    "mnist": "mnist_files",
    "mnist_m": "mnist_files",
    "school": "school_file",
    "synthetic_digits": "synthetic",
    "usps": "usps_files",
}

__all__ = [*_MEMBERS]
__getattr__, __dir__ = lazy(__name__, members=_MEMBERS)
