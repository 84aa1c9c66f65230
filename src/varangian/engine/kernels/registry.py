"""Hand-written kernels: they combine the models of a whole network for one rule, instead of the rule's own functions.

A kernel is registered for the class of a rule, and compiled runs then use it. Its results must equal those of the rule,
up to rounding. You can register one for your own rule:

    from varangian.engine.kernels import register

    register(my_rule, lambda rule, exchange, execution: my_kernel)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from varangian.core.exchange import Exchange
from varangian.core.execution import Execution
from varangian.core.inbox import Table
from varangian.core.models.base import Models
from varangian.rules.base import Rule

Kernel = Callable[[Exchange, Sequence[Any]], tuple[Models, Sequence[Table | None], Sequence[Any]]]
"""From an exchange and the rule's memory of each table to the models of all agents, the weights and the memory."""
MakeKernel = Callable[[Any, Exchange, Execution], Kernel | None]
"""From a rule and a typical exchange to a kernel, or to None if it does not support them."""

_KERNELS: dict[type, MakeKernel] = {}


def register(rule: type, make: MakeKernel) -> None:
    """Use the kernels that `make` returns for rules of this class. Subclasses do not use them: they may differ."""
    _KERNELS[rule] = make


def has_kernels(rule: Rule[Any]) -> bool:
    """Whether there are kernels for rules of this class."""
    return type(rule) in _KERNELS


def kernel_for(rule: Rule[Any], exchange: Exchange, execution: Execution) -> Kernel | None:
    """The kernel of the rule for exchanges like this one, or None if there is none."""
    make = _KERNELS.get(type(rule))
    return None if make is None else make(rule, exchange, execution)
