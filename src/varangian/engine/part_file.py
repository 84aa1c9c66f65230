"""The result of a part of a run, one cell or some seeds, in a file that is written in milliseconds.

It stays until the whole run is finished; then `metrics.nc` takes its place. It is a safetensors file. Names of
dimensions, texts and attributes are JSON in its header.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import xarray as xr
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as as_bytes

from varangian.core.errors import BadInput
from varangian.core.files import whole
from varangian.engine.fingerprint import what_differs

ENDING = ".result"


def save_part(result: xr.Dataset, path: Path) -> None:
    """Save a result, completely or not at all."""
    numbers = {str(name): array for name, array in result.variables.items() if array.dtype.kind in "biuf"}
    header = {
        "dims": {str(name): list(array.dims) for name, array in result.variables.items()},
        "coords": list(map(str, result.coords)),
        "texts": {str(name): array.values.tolist() for name, array in result.variables.items() if name not in numbers},
        "attrs": result.attrs,
    }
    stored = {name: np.asarray(array.values, order="C") for name, array in numbers.items()}
    with whole(path) as file:
        file.write_bytes(as_bytes(stored, {"about": json.dumps(header)}))


def load_part(path: Path, fingerprint: str | None = None) -> xr.Dataset:
    """Read a saved result. With a fingerprint, it must be the result of that run."""
    try:
        with safe_open(path, "np") as file:
            header = json.loads(file.metadata()["about"])
            numbers = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        texts = {name: np.asarray(text, dtype=str) for name, text in header["texts"].items()}
        arrays = {**numbers, **texts}
        values = {name: (dims, arrays[name]) for name, dims in header["dims"].items()}  # in their order
        coords = {name: values.pop(name) for name in header["coords"]}
        result = xr.Dataset(values, coords, header["attrs"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path} is not a result file: {str(error).splitlines()[0]}") from error
    if fingerprint is not None and result.attrs.get("fingerprint") != fingerprint:
        changed = what_differs(fingerprint, str(result.attrs.get("fingerprint")))
        raise BadInput(f"{path} belongs to another run ({changed}); remove it, or run without --resume")
    return result
