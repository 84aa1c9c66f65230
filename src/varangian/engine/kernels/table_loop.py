"""What kernels in C++ share: a loop over tables of agents, as in `tables.h`, with the loss translated to C++.

Such a loop passes over a table once: it gathers, judges, weighs and mixes one message before it looks at the next one.
It supports a `Formula` of few parameters, on a CPU and on a GPU.
"""

from __future__ import annotations

import ctypes
import warnings
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any

from torch import Tensor

from varangian.core.exchange import Exchange
from varangian.core.execution import Execution
from varangian.core.graph import Neighbourhoods, int32_sources
from varangian.core.inbox import Table
from varangian.core.layout import FEW
from varangian.core.models.base import Formula, Models, Sample
from varangian.core.task import JudgedOn
from varangian.engine.compute.cpp.build import library, step_of, stored_by_column
from varangian.engine.compute.cpp.translate import Untranslatable, names_of, translated
from varangian.engine.compute.cuda.gpu_loop import gpu_loop


class Addresses:
    """The addresses of tensors in memory. The tensors stay alive as long as this does."""

    def __init__(self) -> None:
        self.alive: list[Tensor] = []

    def of(self, *tensors: Tensor) -> list[int]:
        self.alive += tensors
        return [tensor.data_ptr() for tensor in tensors]

    def of_rows(self, matrix: Tensor, table: Neighbourhoods) -> tuple[int, int]:
        """The address of a table's first agent in a matrix of all agents, and the distance between columns.

        The matrix is stored column by column. Agents that are not consecutive are copied first.
        """
        self.alive.append(matrix)
        if table.span is not None:
            return matrix.data_ptr() + table.span.start * matrix.element_size(), step_of(matrix)
        matrix = stored_by_column(matrix[table.rows])
        self.alive.append(matrix)
        return matrix.data_ptr(), step_of(matrix)


OfRule = Callable[[Neighbourhoods, Any, Addresses], Iterable[int]]
"""From a table, the rule's memory of it, and a place for addresses, to what `Table` in C++ has besides `Messages`."""
Start = Callable[[Sequence[int], Sequence[Neighbourhoods], Sequence[Tensor]], object]
"""Combines the models of all tables, from what `Table` in C++ has of each, and the tensors to keep alive meanwhile."""


@dataclass(frozen=True, eq=False)
class TableLoop:
    """`combine` of a rule in C++, for one formula."""

    start: Start

    def __call__(
        self, exchange: Exchange, judge: JudgedOn, memory: Sequence[Any], of_rule: OfRule
    ) -> tuple[Models, list[Table]]:
        """The models of all agents, and the weights of each table. Agents that do not listen keep their own models.

        Args:
            exchange: The messages of the round.
            judge: The sample to judge on.
            memory: The rule's memory of each table.
            of_rule: What else the loop needs to know of each table.
        """
        wiring, delivered, adapted = exchange.wiring, exchange.delivered, exchange.adapted
        fresh = exchange.fresh if judge == "next" else exchange.trained
        all_fresh = fresh.device.type == "cpu" and bool(fresh.all())  # a GPU would have to be waited for
        models = adapted.new_empty(adapted.shape[::-1]).T
        rows, own, *sample = map(stored_by_column, (delivered.rows, adapted, *exchange.samples[judge]))
        addresses = Addresses()
        (arrived,) = (0,) if delivered.arrived is None else addresses.of(delivered.arrived)
        weights, numbers, apart = list[Table](), list[int](), list[tuple[Tensor, Models]]()
        for table, source, before in zip(wiring.tables, wiring.sources(delivered), memory, strict=True):
            agents, slots = table.senders.shape
            senders = int32_sources(source, table.present) if delivered.two_faced else table.int32_senders
            weights.append(adapted.new_empty(slots, agents).T)
            if table.span is None:
                theirs = models.new_empty(models.shape[1], agents).T
                apart.append((table.rows, theirs))
                into = (*addresses.of(theirs), agents)
            else:
                into = addresses.of_rows(models, table)
            # In the order of the fields of `Messages` in tables.h.
            numbers += agents, slots, *addresses.of(senders), arrived
            numbers += (
                addresses.of_rows(exchange.listening, table)[0],
                0 if all_fresh else addresses.of_rows(fresh, table)[0],
            )
            numbers += *addresses.of(weights[-1], rows), step_of(rows), *addresses.of_rows(own, table), *into
            for part in sample:
                numbers += addresses.of_rows(part, table)
            numbers += of_rule(table, before, addresses)
        self.start(numbers, wiring.tables, addresses.alive)
        for who, theirs in apart:
            models[who] = theirs
        return models, weights


def by_slot(table: Tensor) -> Tensor:
    """A tensor (agent, slot, …), stored slot by slot, and before that by the dimensions that follow.

    It is copied only if necessary.
    """
    if table.stride() == tuple(accumulate(table.shape[:-1], mul, initial=1)):
        return table
    order = tuple(range(table.ndim))[::-1]
    return table.permute(order).contiguous().permute(order)


def table_loop(name: str, file: str, constants: str, exchange: Exchange, execution: Execution) -> TableLoop | None:
    """The loop for exchanges like this one, or None if there is none.

    Args:
        name: The rule, for a warning.
        file: The C++ of the rule.
        constants: What it needs to have defined.
        exchange: A typical exchange.
        execution: Where to compute.
    """
    model, sample, adapted = exchange.model, exchange.samples["next"], exchange.adapted
    if type(model) is not Formula or model.parameters > FEW or any(part.dtype != adapted.dtype for part in sample):
        return None
    try:
        text = "\n".join((constants, _formula(model, sample)))
        return TableLoop((_on_threads if adapted.device.type == "cpu" else _on_gpu)(text, file, adapted, execution))
    except Untranslatable as reason:
        warnings.warn(f"{name} is not one compiled loop here, and is slower: {reason}", stacklevel=6)
        return None


def _on_threads(text: str, file: str, like: Tensor, execution: Execution) -> Start:
    combine = library(like.dtype, text, "tables.h", file, "combine.cpp").combine
    combine.argtypes, combine.restype = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p], None

    def start(numbers: Sequence[int], tables: Sequence[Neighbourhoods], alive: Sequence[Tensor]) -> None:
        given, taken = array("q", numbers), array("q", [0])

        def work(thread: int) -> object:
            combine(given.buffer_info()[0], len(tables), taken.buffer_info()[0])
            # An interrupt may end the call while a thread still works. Buffers stay alive until the threads return.
            return alive

        execution.each(work, range(min(execution.at_once, len(tables))))

    return start


def _on_gpu(text: str, file: str, like: Tensor, execution: Execution) -> Start:
    loop = gpu_loop(like.device, like.dtype, text, "cpp/tables.h", f"cpp/{file}", "cuda/combine.cu")

    def start(numbers: Sequence[int], tables: Sequence[Neighbourhoods], alive: Sequence[Tensor]) -> None:
        loop(numbers, max(len(table.senders) for table in tables), len(tables))

    return start


def _formula(model: Formula, sample: Sample) -> str:
    """The code that tables.h needs: sizes and the translated loss."""
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
            "static inline Lanes loss(const Lanes* theta, const Lanes* sample) {",
            *("    " + line for line in (*text.lines, f"return {text.results[0][0]};")),
            "}",
        )
    )
