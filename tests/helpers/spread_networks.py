"""A small network for tests that spread one over a cluster, and how results are compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from varangian import attacks, rules, studies

STUDY = studies.target_localization(agents=30)
ABOUT: dict[str, Any] = {"rule": rules.loss_based(), "attack": attacks.delay(), "byzantine": 6, "dtype": "float64"}


def alike(found: xr.Dataset, expected: xr.Dataset) -> None:
    """All that was measured, but for how long it took."""
    for name, values in expected.drop_vars("seconds").data_vars.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-9, atol=1e-12, err_msg=str(name))
