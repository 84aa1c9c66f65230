"""Datasets: find them on this computer, check them, and read them as plain numpy arrays.

Reading never downloads. ``varangian data get NAME`` and ``varangian.studies.data.fetch.get`` do that.
"""

from varangian.studies.data.activity import human_activity
from varangian.studies.data.catalogue import DATASETS, Dataset, Original, dataset
from varangian.studies.data.kaggle import kaggle_digits
from varangian.studies.data.mnist_files import mnist, mnist_m
from varangian.studies.data.school_file import school
from varangian.studies.data.synthetic import draw_digit, synthetic_digits
from varangian.studies.data.usps_files import usps
from varangian.studies.data.values import Digits, HumanActivity, School

__all__ = [
    "DATASETS",
    "Dataset",
    "Digits",
    "HumanActivity",
    "Original",
    "School",
    "dataset",
    "draw_digit",
    "human_activity",
    "kaggle_digits",
    "mnist",
    "mnist_m",
    "school",
    "synthetic_digits",
    "usps",
]
