"""The robust functions of ByzFL and ByzPy, if installed. Tests compare with them; the library never uses them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType


def byzfl(part: str = "aggregators") -> ModuleType:
    """A module of ByzFL. The package itself is not imported, because it needs datasets and plotting libraries."""
    if "byzfl" not in sys.modules:
        spec = importlib.util.find_spec("byzfl")
        if spec is None or spec.submodule_search_locations is None:
            raise ModuleNotFoundError("No module named 'byzfl'", name="byzfl")
        package = ModuleType("byzfl")
        package.__path__ = spec.submodule_search_locations
        sys.modules["byzfl"] = package
    return importlib.import_module(f"byzfl.{part}")


def byzpy(part: str) -> ModuleType:
    """A module of ByzPy, such as `aggregators.geometric_wise`."""
    return importlib.import_module(f"byzpy.{part}")
