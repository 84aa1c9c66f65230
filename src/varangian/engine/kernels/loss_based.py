"""A kernel for the paper's rule: one loop over a table of agents, in `combine.cpp`, with the loss translated to C++.

Whole-tensor operations pass over a table about thirty times; compiled by torch, about five times. This loop passes over
it once. It supports `loss_based` with a `Formula` of few parameters. Torch compiles everything else.
"""

from __future__ import annotations

import ctypes
import warnings
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from varangian.core.exchange import Exchange
from varangian.core.execution import Execution
from varangian.core.graph import Neighbourhoods, int32_sources
from varangian.core.inbox import Table
from varangian.core.layout import FEW, by_column
from varangian.core.models.base import Formula, Models, Sample
from varangian.engine.compute.cpp.build import library, step_of, stored_by_column
from varangian.engine.compute.cpp.translate import Untranslatable, names_of, translated
from varangian.engine.kernels.registry import register
from varangian.rules.evidence import Smoothed
from varangian.rules.paper import loss_based


@dataclass(frozen=True, eq=False)
class Loop:
    """`loss_based.combine` in C++, for one formula."""

    combine: Callable[..., None]
    rule: loss_based
    forgetting: Float[Tensor, "agent 1"]
    execution: Execution

    def __call__(
        self, exchange: Exchange, memory: Sequence[Smoothed]
    ) -> tuple[Models, Sequence[Table], Sequence[Smoothed]]:
        """The models of all agents (Byzantine agents keep their own); the weights and φ of each table."""
        wiring, delivered, adapted = exchange.wiring, exchange.delivered, exchange.adapted
        tables = wiring.tables
        judge = self.rule.judge or exchange.judged_on
        fresh = exchange.fresh if judge == "next" else exchange.trained
        all_fresh = bool(fresh.all())
        everything_arrived = delivered.arrived is None and not delivered.two_faced and all_fresh
        models = adapted.new_empty(adapted.shape[1], len(adapted)).T
        matrices = adapted, *exchange.samples[judge]
        own, *sample = map(stored_by_column, matrices)
        rows = stored_by_column(delivered.rows)
        after, weights = list[Smoothed](), list[Table]()
        numbers, apart = list[int](), list[tuple[Tensor, Models]]()
        alive = [models, rows, own, *sample]
        for table, source, before in zip(tables, wiring.sources(delivered), memory, strict=True):
            agents, slots = table.senders.shape
            total, mass = map(_by_slot, before)
            new_total, new_mass, weight = [torch.empty_like(total) for _ in range(3)]
            senders = table.int32_senders
            if not everything_arrived:
                heard = delivered.heard(source, table)
                # To an agent without a new sample, everyone is silent: it judges nobody and keeps its own model.
                senders = int32_sources(source, heard if all_fresh else heard & table.rows_of(fresh))
            alive += senders, total, mass, new_total, new_mass, weight
            after.append(Smoothed(new_total, new_mass))
            weights.append(weight)
            if table.span is None:
                theirs = models.new_empty(models.shape[1], agents).T
                alive.append(theirs)
                apart.append((table.rows, theirs))
                into = theirs.data_ptr(), agents
            else:
                into = _place(models, table, alive)
            # In the order of the fields of `Table` in combine.cpp.
            numbers += agents, slots, senders.data_ptr()
            numbers += _place(exchange.listening, table, alive)[0], _place(self.forgetting, table, alive)[0]
            numbers += [values.data_ptr() for values in (total, mass, new_total, new_mass, weight)]
            numbers += rows.data_ptr(), step_of(rows), *_place(own, table, alive), *into
            for part in sample:
                numbers += _place(part, table, alive)
        given, taken = array("q", numbers), array("q", [0])

        def work(thread: int) -> object:
            self.combine(given.buffer_info()[0], len(tables), taken.buffer_info()[0])
            # An interrupt may end the call while a thread still works. Buffers stay alive until the threads return.
            return alive

        self.execution.each(work, range(min(self.execution.at_once, len(tables))))
        for who, theirs in apart:
            models[who] = theirs
        return models, weights, after


def _by_slot(table: Table) -> Table:
    """A table, stored slot by slot. It is copied only if necessary."""
    return table if table.stride() == (1, len(table)) else by_column(table)


def _place(matrix: Tensor, table: Neighbourhoods, alive: list[Tensor]) -> tuple[int, int]:
    """The address of a table's first agent in a matrix, and the distance between columns.

    Agents that are not consecutive are copied first.
    """
    if table.span is not None:
        return matrix.data_ptr() + table.span.start * matrix.element_size(), step_of(matrix)
    matrix = stored_by_column(matrix[table.rows])
    alive.append(matrix)
    return matrix.data_ptr(), step_of(matrix)


def loop_for(rule: loss_based, exchange: Exchange, execution: Execution) -> Loop | None:
    """The loop that computes the rule for exchanges like this one, or None if there is none."""
    model, sample, dtype = exchange.model, exchange.samples["next"], exchange.adapted.dtype
    if type(model) is not Formula or model.parameters > FEW or rule.weigh != "risk":
        return None
    if any(part.dtype != dtype for part in sample):
        return None
    try:
        loop = library(dtype, _formula(model, sample, rule), "combine.cpp").combine
    except Untranslatable as reason:
        warnings.warn(f"loss-based is compiled by torch, not as one loop, and is slower: {reason}", stacklevel=5)
        return None
    loop.argtypes, loop.restype = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p], None
    nu = exchange.forgetting
    return Loop(loop, rule, nu if rule.smoothing is None else torch.full_like(nu, rule.smoothing), execution)


register(loss_based, loop_for)


def _formula(model: Formula, sample: Sample, rule: loss_based) -> str:
    """The code that combine.cpp needs: constants and the translated loss."""
    widths = [part[0].numel() for part in sample]
    few = [part[:1].expand(5, *part.shape[1:]) for part in sample]
    theta = few[0].new_zeros(5, model.parameters)
    names = [*names_of("theta[{}]", [theta]), *names_of("sample[{}]", few)]
    text = translated(lambda theta, *sample: model.loss(theta, sample), [theta, *few], names)
    if len(text.results) != 1 or text.results[0].shape != (1,):
        raise Untranslatable("the loss is not one number per agent")
    return "\n".join(
        (
            f"constexpr int PARAMETERS = {model.parameters}, PARTS[] = {{{', '.join(map(str, widths))}}};",
            f"constexpr bool EVERYONE = {'true' if rule.keep == 'all' else 'false'};",
            "static inline Lanes loss(const Lanes* theta, const Lanes* sample) {",
            *("    " + line for line in (*text.lines, f"return {text.results[0][0]};")),
            "}",
        )
    )
