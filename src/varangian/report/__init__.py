"""What a run folder shows its reader.

Figures are imported when first asked for: matplotlib takes longer to import than a table takes to print.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from varangian.report.figures import curves as curves
    from varangian.report.figures import draw_figures as draw_figures
    from varangian.report.figures import network as network

__all__ = ["curves", "draw_figures", "network"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("varangian.report.figures"), name)
    raise AttributeError(f"module 'varangian.report' has no attribute {name!r}")
