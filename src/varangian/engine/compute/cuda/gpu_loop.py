"""Loops of ours on a GPU: the same C++ as on a CPU, one thread per agent. Torch compiles it at run time (NVRTC)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import torch

from varangian.engine.compute.cpp.translate import Untranslatable

THREADS = 128
"""Threads per block."""
MOST_NUMBERS = 512
"""The most numbers that a loop is given at its start: 4 KiB is the most that all GPUs take."""
_TYPES = {torch.float32: "float", torch.float64: "double"}
_OPTIONS = ["--std=c++17", "--device-as-default-execution-space"]


@dataclass(frozen=True, eq=False)
class GpuLoop:
    """A compiled loop over agents."""

    function: Any
    """Its handle."""
    launch: Callable[..., int]
    gpu: int
    """The number of the GPU."""

    def __call__(self, numbers: Sequence[int], agents: int, tables: int = 1) -> None:
        """Start the loop. It has not ended when this returns, but what torch does next comes after it.

        Args:
            numbers: What the loop needs to know, such as addresses; as many for each table.
            agents: How many agents a table has at most.
            tables: How many tables there are.
        """
        if not agents or not tables:
            return
        each = len(numbers) // tables
        at_once = MOST_NUMBERS // each
        if not at_once:
            raise RuntimeError(f"a GPU takes {MOST_NUMBERS} numbers at once, but a loop needs {each}")
        stream = torch._C._cuda_getCurrentRawStream(self.gpu)  # `current_stream` takes as long as a launch
        with torch.cuda.device(self.gpu):
            for first in range(0, tables, at_once):
                some = min(at_once, tables - first)
                # The driver copies the numbers before it returns.
                given = (ctypes.c_int64 * MOST_NUMBERS)(*numbers[first * each : (first + some) * each])
                pointer = (ctypes.c_void_p * 1)(ctypes.addressof(given))
                grid, block = (-(-agents // THREADS), some, 1), (THREADS, 1, 1)
                failed = self.launch(self.function, *grid, *block, 0, ctypes.c_void_p(stream), pointer, None)
                if failed:
                    raise RuntimeError(f"the GPU refused a loop: CUDA error {failed}")


def can_compile() -> bool:
    """Whether loops can be compiled for a GPU here."""
    try:
        _driver()
    except OSError:
        return False
    return hasattr(torch.cuda, "_compile_kernel")


def gpu_loop(device: torch.device, dtype: torch.dtype, translated: str, *loop: str) -> GpuLoop:
    """The loop for one GPU. Its function has the name of its last file. Raises `Untranslatable` if there is none.

    Args:
        device: The GPU.
        dtype: The number type.
        translated: The translated function that the loop calls.
        loop: The files of the loop, in order, relative to the folder `compute`.
    """
    *_, name = loop[-1].removesuffix(".cu").split("/")
    with torch.cuda.device(device):
        gpu = torch.cuda.current_device()
        compiled = _compiled(gpu_source(dtype, translated, *loop), name, gpu)
        return GpuLoop(compiled.func, _driver().cuLaunchKernel, gpu)


def gpu_source(dtype: torch.dtype, translated: str, *loop: str) -> str:
    """The code of a loop; see `gpu_loop`."""
    if dtype not in _TYPES:
        raise Untranslatable(f"there is no loop for {dtype}")
    limits = torch.finfo(dtype)
    head = (
        f"typedef {_TYPES[dtype]} real;",
        f"constexpr real LARGEST = {limits.max!r}, SMALLEST = {limits.tiny!r};",
        f"constexpr int MOST_NUMBERS = {MOST_NUMBERS};",
    )
    folder = files("varangian.engine.compute")
    lane, *rest = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("cuda/lane.h", *loop))
    return "\n".join((*head, lane, translated, *rest))


@cache
def _compiled(source: str, name: str, device: int) -> Any:
    if not can_compile():
        raise Untranslatable("this version of torch cannot compile for a GPU, or the GPU's driver is not at hand")
    try:
        return torch.cuda._compile_kernel(source, name, nvcc_options=_OPTIONS)
    except (RuntimeError, OSError) as error:
        raise Untranslatable(f"it cannot be compiled for the GPU: {str(error).strip()[:500]}") from error


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
