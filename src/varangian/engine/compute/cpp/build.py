"""The library of a loop over agents, from C++ text."""

from __future__ import annotations

import ctypes
from importlib.resources import files

import torch
from torch import Tensor

from varangian.core.cpp.build import NotBuilt, built
from varangian.core.layout import by_column
from varangian.engine.compute.cpp.translate import Untranslatable

_OPTIONS = ("-fno-math-errno",)
"""Roots of vectors are single instructions, if no error numbers are asked for."""
_NUMBERS = {torch.float32: ("float", "int32_t"), torch.float64: ("double", "int64_t")}


def library(dtype: torch.dtype, translated: str, *loop: str) -> ctypes.CDLL:
    """The library of a loop.

    Args:
        dtype: The number type.
        translated: The translated function that the loop calls.
        loop: The files of the loop in this folder, in order.
    """
    if dtype not in _NUMBERS:
        raise Untranslatable(f"there are no vectors of {dtype}")
    real, word = _NUMBERS[dtype]
    head = f"#include <cstdint>\nusing real = {real};\nusing word = {word};\n"
    folder = files("varangian.engine.compute.cpp")
    lanes, *rest = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("lanes.h", *loop))
    try:
        return built("\n".join((head, lanes, translated, *rest)), *_OPTIONS)
    except NotBuilt as error:
        raise Untranslatable(str(error)) from error


def stored_by_column(values: Tensor) -> Tensor:
    """A tensor with one row per agent, stored column by column. It is copied only if necessary."""
    if values.ndim > 2:
        values = values.flatten(1)
    if values.stride(0) == 1:
        return values
    return values.contiguous() if values.ndim == 1 else by_column(values)


def step_of(matrix: Tensor) -> int:
    """The distance from one column of a matrix to the next, in numbers."""
    return matrix.stride(1) if matrix.ndim == 2 else 0
