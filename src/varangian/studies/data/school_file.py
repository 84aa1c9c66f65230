"""School: exam scores of pupils in 139 London schools, one regression task per school."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from varangian.studies.data.arrays import Field, read_npz, same_length
from varangian.studies.data.catalogue import SCHOOL
from varangian.studies.data.locate import locate
from varangian.studies.data.values import School

_FIELDS = {
    "x": Field("f", (None, 28)),
    "y": Field("f", (None,)),
    "task": Field("ui", (None,), 1, 139),
}


def school(folder: Path | str | None = None) -> School:
    """All pupils from ``school.npz``, in the order of the file."""
    path = locate(SCHOOL, folder).path
    arrays = read_npz(path, _FIELDS)
    same_length(path, pupils=arrays["x"], scores=arrays["y"], schools=arrays["task"])
    return School(
        x=arrays["x"].astype(np.float32, copy=False),
        y=arrays["y"].astype(np.float32, copy=False),
        school=arrays["task"].astype(np.int64) - 1,
    )
