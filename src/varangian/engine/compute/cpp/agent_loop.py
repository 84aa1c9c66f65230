"""Functions of each agent's own numbers as one C++ loop over agents. Adapting a `Formula` is such a function."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from varangian.core.execution import Execution
from varangian.engine.compute.blocks import ROWS
from varangian.engine.compute.cpp.build import library, step_of, stored_by_column
from varangian.engine.compute.cpp.translate import Translation, Untranslatable, names_of, translated


@dataclass(frozen=True, eq=False)
class AgentLoop:
    """A compiled function of tensors with one row per agent. They must have the shapes and strides it was made for."""

    each: Callable[..., None]
    agents: int
    steps: ctypes.Array[ctypes.c_int64]
    results: Sequence[tuple[tuple[int, ...], torch.dtype]]
    execution: Execution
    as_stored: bool
    """Whether the given tensors are already stored column by column."""

    def __call__(self, *given: Tensor) -> list[Tensor]:
        matrices = given if self.as_stored else [stored_by_column(part) for part in given]
        out = [torch.empty(shape, dtype=dtype) for shape, dtype in self.results]
        begin = array("q", [matrix.data_ptr() for matrix in (*matrices, *out)])

        def work(first: int, last: int) -> object:
            self.each(first, last, self.steps, begin.buffer_info()[0])
            # An interrupt may end the call while a thread still works. Buffers stay alive until the threads return.
            return matrices, out

        threads = self.execution.at_once if self.agents > ROWS else 1
        cuts = [self.agents * part // threads for part in range(threads + 1)]
        self.execution.each(work, cuts[:-1], cuts[1:])
        return [matrix.mT if matrix.ndim == 2 else matrix for matrix in out]


def agent_loop(function: Callable[..., Sequence[Tensor]], given: Sequence[Tensor], threads: int = 1) -> AgentLoop:
    """Compile a function for tensors like the given ones. Raises `Untranslatable` if it cannot be one loop."""
    text = translated(function, given, names_of("a{}", given))
    kinds = {*(part.dtype for part in given), *text.dtypes} - {torch.bool}
    if len(kinds) != 1 or any(names.ndim > 2 for names in text.results):
        raise Untranslatable("it uses several number types, or returns tensors of more than two dimensions")
    agents = len(given[0])
    shapes = [(*names.shape[:0:-1], agents) for names in text.results]
    steps = [step_of(stored_by_column(part)) for part in given] + [agents] * len(shapes)
    loop = library(kinds.pop(), _compute(given, text), "each.cpp").each
    loop.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
    loop.restype = None
    return AgentLoop(
        loop,
        agents,
        (ctypes.c_int64 * len(steps))(*steps),
        list(zip(shapes, text.dtypes, strict=True)),
        Execution(threads=threads),
        as_stored=all(stored_by_column(part) is part for part in given),
    )


def _compute(given: Sequence[Tensor], text: Translation) -> str:
    def places(sizes: Sequence[int], dtypes: Sequence[torch.dtype], first: int) -> Iterator[str]:
        for k, (size, dtype) in enumerate(zip(sizes, dtypes, strict=True), first):
            for column in range(size):
                yield f"({'bool' if dtype == torch.bool else 'real'}*)begin[{k}] + {column} * steps[{k}] + at"

    read = places([part[0].numel() for part in given], [part.dtype for part in given], 0)
    written = places([part.size for part in text.results], text.dtypes, len(given))
    names = [name for part in text.results for name in part.flat]
    loads = [f"const auto a{k} = load({place}, count);" for k, place in enumerate(read)]
    stores = [f"store({place}, {name}, count);" for place, name in zip(written, names, strict=True)]
    head = "static inline void compute(const int64_t* steps, void* const* begin, int64_t at, int count) {"
    return "\n".join((head, *("    " + line for line in (*loads, *text.lines, *stores)), "}"))
