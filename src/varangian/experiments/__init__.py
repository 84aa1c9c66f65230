"""Plans, sweeps and tournaments: many runs, and the folders that hold their results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from varangian.core.lazy import lazy

if TYPE_CHECKING:
    from varangian.experiments import cards as cards
    from varangian.experiments import cells as cells
    from varangian.experiments import config as config
    from varangian.experiments import folder_state as folder_state
    from varangian.experiments import groups as groups
    from varangian.experiments import own_code as own_code
    from varangian.experiments import players as players
    from varangian.experiments import reproduce as reproduce
    from varangian.experiments import run_folder as run_folder
    from varangian.experiments import spec as spec
    from varangian.experiments import summary as summary
    from varangian.experiments import sweep as sweep
    from varangian.experiments import tournament as tournament

__all__ = [
    "cards",
    "cells",
    "config",
    "folder_state",
    "groups",
    "own_code",
    "players",
    "reproduce",
    "run_folder",
    "spec",
    "summary",
    "sweep",
    "tournament",
]
__getattr__, __dir__ = lazy(__name__, modules={name: name for name in __all__})
