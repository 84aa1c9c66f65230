"""Hashes of code and values: whether a loss or a model is still the one that a run began with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from varangian.core.execution import Execution


def hash_of(*values: object) -> str:
    """A short hash of values, and of the code of functions among them. It is the same in every process.

    Comments, names of variables and places in a file do not count. A function counts with its defaults, with the
    variables that it takes from around it, and with the functions of its module that it calls.

    >>> texts = ("lambda x: 2 * x", "lambda y: 2 * y", "lambda x: 3 * x")
    >>> double, again, triple = (eval(text, {}) for text in texts)  # functions of varangian count by their names
    >>> hash_of(double) == hash_of(again), hash_of(double) == hash_of(triple)
    (True, False)
    """
    digest = hashlib.blake2b(digest_size=8)
    feed = _Feeder(digest.update)
    for value in values:
        feed(value)
    return digest.hexdigest()


class _Feeder:
    """Feeds bytes that describe a value to `update`, part by part."""

    def __init__(self, update: Callable[[bytes], None]) -> None:
        self.update = update
        self.seen: dict[int, Any] = {}
        """What was fed already, by id. The values stay alive here, so that no other one gets the same id."""

    def __call__(self, value: Any) -> None:
        if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic | torch.dtype):
            self._say(type(value).__name__, repr(value))
        elif id(value) in self.seen:
            self._say("again")
        else:
            self.seen[id(value)] = value
            self._part_by_part(value)

    def _part_by_part(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self._say("tensor", str(value.dtype), str(tuple(value.shape)))
            self.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, np.ndarray):
            self._say("array", str(value.dtype), str(value.shape))
            self.update(repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes())
        elif isinstance(value, tuple | list):
            self._say(type(value).__name__, str(len(value)))
            self._each(value)
        elif isinstance(value, dict):
            self._say("dict", str(len(value)))
            self._each(part for item in value.items() for part in item)
        elif isinstance(value, partial):
            self._each(("partial", value.func, value.args, value.keywords))
        elif isinstance(value, MethodType):
            self._each(("method", value.__func__, value.__self__))
        elif isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, nn.Module):
            self._module(value)
        elif isinstance(value, Execution):  # may change when a run is resumed
            self._say("execution")
        elif isinstance(value, type) or not hasattr(value, "__dict__"):
            self._say(_name(value if hasattr(value, "__qualname__") else type(value)))
        elif is_dataclass(value):
            self._say(_name(type(value)))
            self._each((one.name, getattr(value, one.name)) for one in fields(value) if not one.name.startswith("_"))
        else:
            self._say(_name(type(value)))
            self._each(vars(value).values())

    def _function(self, function: FunctionType) -> None:
        self._say("function")
        if (function.__module__ or "").partition(".")[0] in ("torch", "numpy", "varangian"):
            self._say(_name(function))  # its code is that of a version, which is nobody's choice for one run
        else:
            self._code(function.__code__)
            for name in sorted(set(_names(function.__code__))):
                self._global(function, function.__globals__.get(name))
        self._each((function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            try:
                self(cell.cell_contents)
            except ValueError:  # an empty cell
                self._say("empty")

    def _global(self, function: FunctionType, value: Any) -> None:
        """What a function uses from its module: numbers and arrays, and other functions of the same module."""
        plain = isinstance(value, int | float | str | tuple | Tensor | np.ndarray)
        if plain or (isinstance(value, FunctionType) and value.__module__ == function.__module__):
            self(value)

    def _code(self, code: CodeType) -> None:
        self.update(code.co_code)
        self._each(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._code(constant)
            elif not isinstance(constant, str) or constant != code.co_name:
                self(constant)

    def _module(self, module: nn.Module) -> None:
        self(layers_of(module))
        self._each((*module.named_parameters(), *module.named_buffers()))

    def _each(self, values: Any) -> None:
        for value in values:
            self(value)

    def _say(self, *words: str) -> None:
        self.update("\x1f".join((*words, "\x1e")).encode())


def layers_of(module: nn.Module) -> list[tuple[object, ...]]:
    """What a module is made of: the code and the settings of all its parts, without parameters and buffers."""

    def settings(part: nn.Module) -> dict[str, object]:
        return {name: value for name, value in vars(part).items() if not name.startswith("_") and name != "training"}

    return [(name, type(part), type(part).forward, settings(part)) for name, part in module.named_modules()]


def _names(code: CodeType) -> Iterator[str]:
    """The names of what some code looks up outside, also in functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"
