"""Compiles C++ code to a library and loads it into this process."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from functools import cache
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from varangian.core.layout import by_column
from varangian.engine.compute.cpp.translate import Untranslatable

_NUMBERS = {torch.float32: ("float", "int32_t"), torch.float64: ("double", "int64_t")}
_OPTIONS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-shared", "-Wno-psabi")


def compiler() -> str:
    """The C++ compiler; torch uses the same one."""
    return os.environ.get("CXX") or {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")


def library(dtype: torch.dtype, translated: str, loop: str) -> ctypes.CDLL:
    """The library of a loop.

    Args:
        dtype: The number type.
        translated: The translated function that the loop calls.
        loop: The file of the loop in this folder.
    """
    if dtype not in _NUMBERS:
        raise Untranslatable(f"there are no vectors of {dtype}")
    real, word = _NUMBERS[dtype]
    head = f"#include <cstdint>\nusing real = {real};\nusing word = {word};\n"
    texts = [
        files("varangian.engine.compute.cpp").joinpath(name).read_text(encoding="utf-8") for name in ("lanes.h", loop)
    ]
    return _built("\n".join((head, texts[0], translated, texts[1])))


@cache
def _built(text: str) -> ctypes.CDLL:
    """Compile and load, once per process. The file is not needed after it is loaded."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder) / "loop.cpp", Path(folder) / "loop.so"
            source.write_text(text, encoding="utf-8")
            subprocess.run([compiler(), *_OPTIONS, source, "-o", library], check=True, capture_output=True, text=True)
            return ctypes.CDLL(str(library))
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if "error" in line] or ["no reason given"]
        raise Untranslatable(f"{compiler()} failed: {said[0][-150:]}") from error
    except OSError as error:
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
