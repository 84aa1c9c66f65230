"""Beyond one process: the same run on a Ray cluster. Nothing here needs Ray until it is used."""

from varangian.engine.cluster.cluster import Engine as Engine
from varangian.engine.cluster.cluster import chosen as chosen
from varangian.engine.cluster.cluster import ray as ray

__all__ = ["Engine", "chosen", "ray"]
