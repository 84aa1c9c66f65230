"""What tests of the command line share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """`--data` sets a variable of the environment; put it back."""
    before = os.environ.get("VARANGIAN_DATA")
    yield
    os.environ.pop("VARANGIAN_DATA", None)
    if before is not None:
        os.environ["VARANGIAN_DATA"] = before
