"""Beyond one process: the same run on a Ray cluster. Nothing here needs Ray until it is used."""

from varangian.engines.cluster import Engine as Engine
from varangian.engines.cluster import chosen as chosen
from varangian.engines.cluster import ray as ray

__all__ = ["Engine", "chosen", "ray"]
