"""The paper's rule on a formula as one loop over a table of agents: `combine.cpp`, with the loss spelled into it.

Whole-tensor operations pass over a table some thirty times, and given to torch's compiler still some five times; this
loop passes once. It is for `loss_based` and models of few numbers; everything else is compiled as it is written.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool
from torch import Tensor

from varangian.blocks import FEW, by_column
from varangian.fused import is_compiling
from varangian.graph import Neighbourhoods, narrowed
from varangian.inbox import Inbox, Table
from varangian.model import Formula, Models, Sample
from varangian.native.build import library, step_of, stored_by_column
from varangian.native.spelling import Unspelled, names_of, spelled
from varangian.rules.evidence import Smoothed
from varangian.rules.rule import Rule
from varangian.rules.weighing import loss_based
from varangian.world import World


@dataclass(frozen=True, eq=False)
class Loop:
    """`loss_based.combine` in C++, for one formula."""

    combine: Callable[..., None]
    rule: loss_based

    def __call__(
        self, table: Neighbourhoods, inbox: Inbox, memory: Smoothed, normal: Bool[Tensor, "agent 1"]
    ) -> tuple[Models, Table, Smoothed]:
        """The combined models of a table's normal agents, the others' own; weights; φ."""
        agents, slots = memory.total.shape
        before = [_by_slot(values) for values in memory]
        total, mass, weights = [torch.empty_like(before[0]) for _ in range(3)]
        models = inbox.own.new_empty(inbox.own.shape[1], agents).T
        known = inbox.source is table.senders and inbox.heard is table.present
        senders = table.narrow if known else narrowed(inbox.source, inbox.heard)
        forgetting = self.rule.smoothing or inbox.forgetting
        if not isinstance(forgetting, Tensor):
            forgetting = inbox.own.new_full((agents, 1), forgetting)
        sample = inbox.samples[self.rule.judge or inbox.judged_on]
        tables = senders, normal, forgetting, *before, total, mass, weights
        matrices = [stored_by_column(matrix) for matrix in (inbox.rows, inbox.own, models, *sample)]
        places = [part.data_ptr() for part in tables]
        for matrix in matrices:
            places += matrix.data_ptr(), step_of(matrix)
        self.combine(agents, slots, (ctypes.c_int64 * len(places))(*places))
        return models, weights, Smoothed(total, mass)


def _by_slot(table: Table) -> Table:
    """A table as it is to lie in memory; not copied where it does."""
    return table if table.stride() == (1, len(table)) else by_column(table)


def loop_for(world: World, rule: Rule[Any]) -> Loop | None:
    """The loop that does what the rule does in this world; nothing where there is none, or nothing is compiled."""
    if not is_compiling() or torch.is_grad_enabled() or not isinstance(rule, loss_based):
        return None
    made = _MADE.setdefault(world, {})
    if rule not in made:
        made[rule] = _loop(world, rule)
    return made[rule]


_MADE: WeakKeyDictionary[World, dict[loss_based, Loop | None]] = WeakKeyDictionary()


def _loop(world: World, rule: loss_based) -> Loop | None:
    model, sample = world.judging, world.sample(0)
    if type(model) is not Formula or model.parameters > FEW or rule.weigh != "risk":
        return None
    if any(part.dtype != world.start.dtype for part in sample):
        return None
    try:
        loop = library(world.start.dtype, _formula(model, sample, rule), "combine.cpp").combine
    except Unspelled as reason:
        warnings.warn(f"combining is compiled by torch, not as one loop: {reason}", stacklevel=5)
        return None
    loop.argtypes, loop.restype = [ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p], None
    return Loop(loop, rule)


def _formula(model: Formula, sample: Sample, rule: loss_based) -> str:
    """What combine.cpp leaves open."""
    widths = [part[0].numel() for part in sample]
    few = [part[:1].expand(5, *part.shape[1:]) for part in sample]
    theta = few[0].new_zeros(5, model.parameters)
    names = [*names_of("theta[{}]", [theta]), *names_of("sample[{}]", few)]
    text = spelled(lambda theta, *sample: model.loss(theta, sample), [theta, *few], names)
    if len(text.results) != 1 or text.results[0].shape != (1,):
        raise Unspelled("the loss is not one number for an agent")
    return "\n".join(
        (
            f"constexpr int PARAMETERS = {model.parameters}, PARTS[] = {{{', '.join(map(str, widths))}}};",
            f"constexpr bool EVERYONE = {'true' if rule.keep == 'all' else 'false'};",
            "static inline Lanes loss(const Lanes* theta, const Lanes* sample) {",
            *("    " + line for line in (*text.lines, f"return {text.results[0][0]};")),
            "}",
        )
    )
