"""Tables, figures and the HTML report of a run, and the files they are written to.

Figures are imported on first use, because importing matplotlib takes longer than printing a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from varangian.core.lazy import lazy

if TYPE_CHECKING:
    from varangian.report import folder as folder
    from varangian.report import live as live
    from varangian.report import mlflow as mlflow
    from varangian.report import paper as paper
    from varangian.report import scalars as scalars
    from varangian.report import standings as standings
    from varangian.report import table as table
    from varangian.report import tensorboard as tensorboard
    from varangian.report import terminal as terminal
    from varangian.report import timings as timings
    from varangian.report import tournament as tournament
    from varangian.report import wandb as wandb
    from varangian.report.figures import curves as curves
    from varangian.report.figures import draw_figures as draw_figures
    from varangian.report.figures import network as network

_MEMBERS = {"curves": "figures", "draw_figures": "figures", "network": "figures"}
_FOLLOWERS = ("live", "mlflow", "scalars", "tensorboard", "terminal", "wandb")
_MODULES = (*_FOLLOWERS, "folder", "paper", "standings", "table", "timings", "tournament")

__all__ = [*_MEMBERS, *_MODULES]
__getattr__, __dir__ = lazy(__name__, members=_MEMBERS, modules={name: name for name in _MODULES})
