"""Datasets: find them on this computer, check them, and read them as plain numpy arrays.

Nothing is downloaded on reading; ``varangian data get NAME`` or ``varangian.data.fetch.get`` does that.
"""

from varangian.data.activity import human_activity
from varangian.data.catalogue import DATASETS, Dataset, Original, dataset
from varangian.data.kaggle import kaggle_digits
from varangian.data.mnist_files import mnist, mnist_m
from varangian.data.school_file import school
from varangian.data.synthetic import draw_digit, synthetic_digits
from varangian.data.usps_files import usps
from varangian.data.values import Digits, HumanActivity, School

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
