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
from varangian.engine.compute.cuda.gpu_loop import gpu_loop

Start = Callable[[Sequence[Tensor]], object]
"""Computes all agents, given the matrices that are read, and then those that are written."""


@dataclass(frozen=True, eq=False)
class AgentLoop:
    """A compiled function of tensors with one row per agent. They must have the shapes and strides it was made for."""

    start: Start
    results: Sequence[tuple[tuple[int, ...], torch.dtype]]
    device: torch.device
    as_stored: bool
    """Whether the given tensors are already stored column by column."""

    def __call__(self, *given: Tensor) -> list[Tensor]:
        matrices = given if self.as_stored else [stored_by_column(part) for part in given]
        out = [torch.empty(shape, dtype=dtype, device=self.device) for shape, dtype in self.results]
        self.start((*matrices, *out))
        return [matrix.mT if matrix.ndim == 2 else matrix for matrix in out]


def agent_loop(function: Callable[..., Sequence[Tensor]], given: Sequence[Tensor], threads: int = 1) -> AgentLoop:
    """Compile a function for tensors like the given ones. Raises `Untranslatable` if it cannot be one loop."""
    text = translated(function, given, names_of("a{}", given))
    kinds = {*(part.dtype for part in given), *text.dtypes} - {torch.bool}
    if len(kinds) != 1 or any(names.ndim > 2 for names in text.results):
        raise Untranslatable("it uses several number types, or returns tensors of more than two dimensions")
    if len({part.device for part in given}) != 1:
        raise Untranslatable("its inputs are on several devices")
    agents = len(given[0])
    shapes = [(*names.shape[:0:-1], agents) for names in text.results]
    steps = [step_of(stored_by_column(part)) for part in given] + [agents] * len(shapes)
    compute, dtype, device = _compute(given, text), kinds.pop(), given[0].device
    return AgentLoop(
        _on_threads(compute, dtype, agents, steps, Execution(threads=threads))
        if device.type == "cpu"
        else _on_gpu(compute, dtype, agents, steps, device),
        list(zip(shapes, text.dtypes, strict=True)),
        device,
        as_stored=all(stored_by_column(part) is part for part in given),
    )


def _on_threads(compute: str, dtype: torch.dtype, agents: int, steps: Sequence[int], execution: Execution) -> Start:
    each = library(dtype, compute, "each.cpp").each
    each.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
    each.restype = None
    of_columns = (ctypes.c_int64 * len(steps))(*steps)
    threads = execution.at_once if agents > ROWS else 1
    cuts = [agents * part // threads for part in range(threads + 1)]

    def start(matrices: Sequence[Tensor]) -> None:
        begin = array("q", [matrix.data_ptr() for matrix in matrices])

        def work(first: int, last: int) -> object:
            each(first, last, of_columns, begin.buffer_info()[0])
            # An interrupt may end the call while a thread still works. Buffers stay alive until the threads return.
            return matrices

        execution.each(work, cuts[:-1], cuts[1:])

    return start


def _on_gpu(compute: str, dtype: torch.dtype, agents: int, steps: Sequence[int], device: torch.device) -> Start:
    matrices = f"constexpr int MATRICES = {len(steps)};"
    loop = gpu_loop(device, dtype, "\n".join((matrices, compute)), "cuda/each.cu")

    def start(matrices: Sequence[Tensor]) -> None:
        loop((agents, *steps, *(matrix.data_ptr() for matrix in matrices)), agents)

    return start


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
