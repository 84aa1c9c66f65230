"""One run over a Ray cluster. Ray itself is imported when a cluster is used."""

import warnings
from typing import Any

from varangian.engine.cluster.ray_cluster import Engine as Engine
from varangian.engine.cluster.ray_cluster import RayCluster as RayCluster
from varangian.engine.cluster.ray_cluster import chosen as chosen

__all__ = ["Engine", "RayCluster", "chosen"]


def __getattr__(name: str) -> Any:
    if name == "ray":
        warnings.warn("engines.ray is now varangian.RayCluster", DeprecationWarning, stacklevel=2)
        return RayCluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
