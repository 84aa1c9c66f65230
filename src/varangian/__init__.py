"""Learn from your neighbours without trusting them.

Decentralised multi-task learning among agents of which any number may be Byzantine. Everything is imported when it is
first used, so that a command line that only prints its help stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from varangian.core.lazy import lazy
from varangian.core.version import __version__ as __version__

if TYPE_CHECKING:
    from varangian import attacks as attacks
    from varangian import report as report
    from varangian import robust as robust
    from varangian import rules as rules
    from varangian import studies as studies
    from varangian import testing as testing
    from varangian.core import optimisers as optimisers
    from varangian.core.draws import Draws as Draws
    from varangian.core.errors import BadInput as BadInput
    from varangian.core.errors import RunFailed as RunFailed
    from varangian.core.graph import Graph as Graph
    from varangian.core.grouped import by_group as by_group
    from varangian.core.scene import Scene as Scene
    from varangian.core.task import Task as Task
    from varangian.engine.cluster.ray_cluster import RayCluster as RayCluster
    from varangian.engine.results import final as final
    from varangian.engine.results import summary as summary
    from varangian.engine.run import simulate as simulate
    from varangian.engine.simulated import Result as Result
    from varangian.engine.simulated import load as load
    from varangian.engine.trained import AgentModels as AgentModels
    from varangian.report.compare import compare as compare
    from varangian.report.comparison import Comparison as Comparison
    from varangian.report.tournament import tournament as tournament
    from varangian.studies import data as data

_MEMBERS = {
    "AgentModels": "engine.trained",
    "BadInput": "core.errors",
    "Comparison": "report.comparison",
    "Draws": "core.draws",
    "Graph": "core.graph",
    "RayCluster": "engine.cluster.ray_cluster",
    "Result": "engine.simulated",
    "RunFailed": "core.errors",
    "Scene": "core.scene",
    "Task": "core.task",
    "by_group": "core.grouped",
    "compare": "report.compare",
    "final": "engine.results",
    "load": "engine.simulated",
    "simulate": "engine.run",
    "summary": "engine.results",
    "tournament": "report.tournament",
}
"""Where each name that is exported is defined."""
_MODULES = {
    "attacks": "attacks",
    "data": "studies.data",
    "engines": "engine.cluster",
    "optimisers": "core.optimisers",
    "report": "report",
    "robust": "robust",
    "rules": "rules",
    "studies": "studies",
    "testing": "testing",
}

__all__ = [*_MEMBERS, *_MODULES]
__getattr__, __dir__ = lazy(__name__, members=_MEMBERS, modules=_MODULES)
