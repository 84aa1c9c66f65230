"""Hand-written kernels: a whole network's combining for one rule, in place of the rule's own functions.

A kernel registers itself for a rule's class, and compiled runs then use it. It must give what the rule gives, up to
rounding. A rule of your own can bring one:

    from varangian.engine.kernels import register

    register(my_rule, lambda rule, exchange, execution: my_kernel)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from varangian.core.exchange import Exchange
from varangian.core.execution import Execution
from varangian.engine.executor import CombinedNetwork
from varangian.rules.base import Rule

Kernel = Callable[[Exchange, Sequence[Any]], CombinedNetwork]
"""From an exchange and what the rule remembers of each table to everyone's models, the weights and the memory."""
MakeKernel = Callable[[Any, Exchange, Execution], Kernel | None]
"""From a rule and an exchange of the kind that will follow to a kernel, or None where there is none for them."""

_KERNELS: dict[type, MakeKernel] = {}


def register(rule: type, make: MakeKernel) -> None:
    """Use the kernels that `make` gives for rules of exactly this class; a subclass may compute something else."""
    _KERNELS[rule] = make


def kernel_for(rule: Rule[Any], exchange: Exchange, execution: Execution) -> Kernel | None:
    """The kernel that computes what the rule computes on such exchanges, if there is one."""
    make = _KERNELS.get(type(rule))
    return None if make is None else make(rule, exchange, execution)
