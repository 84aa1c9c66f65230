"""Learn from your neighbours without trusting them.

Decentralised multi-task learning among agents of which any number may be Byzantine. Everything is imported when it is
first used, so that a command line that only prints its help stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from varangian import attacks as attacks
    from varangian import robust as robust
    from varangian import rules as rules
    from varangian import studies as studies
    from varangian import testing as testing
    from varangian.core import optimisers as optimisers
    from varangian.core.graph import Graph as Graph
    from varangian.core.task import Task as Task
    import varangian.engine.cluster as engines
    from varangian.engine.results import load as load
    from varangian.engine.results import summary as summary
    from varangian.errors import BadInput as BadInput
    from varangian.simulate import simulate as simulate
    from varangian.studies import data as data
    from varangian.tournament import tournament as tournament

__version__ = "0.1.0"

_HOME = {
    "BadInput": "errors",
    "Graph": "core.graph",
    "Task": "core.task",
    "load": "engine.results",
    "simulate": "simulate",
    "summary": "engine.results",
    "tournament": "tournament",
}
_MODULES = {
    "attacks": "attacks",
    "data": "studies.data",
    "engines": "engine.cluster",
    "optimisers": "core.optimisers",
    "robust": "robust",
    "rules": "rules",
    "studies": "studies",
    "testing": "testing",
}

__all__ = [*_HOME, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"varangian.{_MODULES[name]}")
    if name in _HOME:
        return getattr(import_module(f"varangian.{_HOME[name]}"), name)
    raise AttributeError(f"module 'varangian' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
