"""Every rule against every attack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from varangian.core.lazy import lazy

if TYPE_CHECKING:
    from varangian.experiments.tournament import entries as entries
    from varangian.experiments.tournament import log as log
    from varangian.experiments.tournament import run as run
    from varangian.experiments.tournament import standings as standings

__all__ = ["entries", "log", "run", "standings"]
__getattr__, __dir__ = lazy(__name__, modules={name: name for name in __all__})
