"""The robust functions of ByzFL and ByzPy, where they are installed: to compare with, never to use."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType


def byzfl(part: str = "aggregators") -> ModuleType:
    """ByzFL's aggregators, or its attacks: its front page imports data sets and plotting, which need much."""
    if "byzfl" not in sys.modules:
        spec = importlib.util.find_spec("byzfl")
        if spec is None or spec.submodule_search_locations is None:
            raise ModuleNotFoundError("No module named 'byzfl'", name="byzfl")
        package = ModuleType("byzfl")
        package.__path__ = spec.submodule_search_locations
        sys.modules["byzfl"] = package
    return importlib.import_module(f"byzfl.{part}")


def byzpy(part: str) -> ModuleType:
    """One of ByzPy's modules, such as `aggregators.geometric_wise`."""
    return importlib.import_module(f"byzpy.{part}")
