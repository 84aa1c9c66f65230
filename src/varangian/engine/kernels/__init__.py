"""Hand-written kernels for rules. Importing this package registers the kernels of the library."""

from varangian.engine.kernels import anchored as anchored
from varangian.engine.kernels import loss_based as loss_based
from varangian.engine.kernels.registry import register as register

__all__ = ["register"]
