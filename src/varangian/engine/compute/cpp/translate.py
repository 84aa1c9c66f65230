"""Translates functions of an agent's own numbers into C++, number by number.

The function is traced. Its operations are of two kinds. Some only select or rearrange numbers: they are done here, and
need no C++. The others compute, and become one line of C++ for every number.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx

Names = np.ndarray[Any, Any]
"""An array of C++ names in the shape of a tensor. Its first dimension, that of agents, has size 1."""

MAX_LINES = 400
"""The most lines of C++ that are worth compiling."""


class Untranslatable(ValueError):
    """Raised for a function that cannot be translated into C++ here."""


class Translation(NamedTuple):
    """A function in C++."""

    lines: list[str]
    results: list[Names]
    """The names of its results …"""
    dtypes: list[torch.dtype]
    """… and their types."""


def translated(function: Callable[..., Any], given: Sequence[Tensor], names: Sequence[Names]) -> Translation:
    """Translate a function of tensors with one row per agent; `names` are the C++ names of their numbers.

    >>> a, b = torch.ones(5, 2), torch.ones(5)
    >>> translated(lambda a, b: (a[:, 0] - b) ** 2, (a, b), names_of("x[{}]", (a, b))).lines
    ['const auto t0 = x[0] - x[2];', 'const auto t1 = t0 * t0;']
    """
    from torch._decomp import core_aten_decompositions
    from torch.fx.experimental.proxy_tensor import make_fx

    try:
        graph = make_fx(function, dict(core_aten_decompositions()), tracing_mode="fake")(*given).graph
        return _written(graph, len(given[0]), names)
    except Untranslatable:
        raise
    except Exception as error:  # a user's function may do anything, such as branch on a value
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:150]
        raise Untranslatable(f"it cannot be traced: {reason}") from error


def _written(graph: fx.Graph, agents: int, names: Sequence[Names]) -> Translation:
    writer, left, known = _Writer(agents), list(names), dict[Any, Any]()
    for node in graph.nodes:
        if node.op == "placeholder":
            known[node] = left.pop(0)
        elif node.op == "call_function":
            args, settings = fx.map_arg((node.args, node.kwargs), known.__getitem__)
            known[node] = writer.translate(node.target, *args, **settings)
        elif node.op != "output":
            raise Untranslatable(f"it contains {node.target}")
    last: Any = graph.output_node().args[0]
    returned = last if isinstance(last, list | tuple) else [last]
    return Translation(writer.lines, [known[node] for node in returned], [node.meta["val"].dtype for node in returned])


def names_of(name: str, parts: Sequence[Tensor]) -> list[Names]:
    """Names for the numbers of an agent in every part, with consecutive indices.

    >>> names_of("a{}", (torch.ones(5), torch.ones(5, 2)))
    [array(['a0'], dtype=object), array([['a1', 'a2']], dtype=object)]
    """
    if any(part.ndim == 0 or part.shape[0] != parts[0].shape[0] for part in parts):
        raise Untranslatable("not all of its inputs have one row per agent")
    ends = np.cumsum([part[0].numel() for part in parts])
    return [
        np.array([name.format(place) for place in range(end - part[0].numel(), end)], dtype=object).reshape(
            1, *part.shape[1:]
        )
        for part, end in zip(parts, ends, strict=True)
    ]


class _Writer:
    """Collects lines of C++. Its methods return the names of the results."""

    def __init__(self, agents: int) -> None:
        self.agents = agents
        self.lines: list[str] = []

    def translate(self, operation: Any, *args: Any, **settings: Any) -> Any:
        if operation is torch.ops.aten.scalar_tensor.default:  # its type does not matter: other operands have one
            return _number(*args)
        if settings:
            raise Untranslatable(f"there is no C++ for {operation} with {', '.join(settings)}")
        if operation in _REARRANGEMENTS:
            return _REARRANGEMENTS[operation](*args)
        if operation in _REDUCTIONS:
            return self.reduced(_REDUCTIONS[operation], *args)
        if operation in (torch.ops.aten.slice.Tensor, torch.ops.aten.mean.dim, torch.ops.aten.clamp.default):
            return getattr(self, operation._opname)(*args)
        text = _POWERS.get(args[1]) if operation is torch.ops.aten.pow.Tensor_Scalar else _ELEMENTWISE.get(operation)
        if text is None:
            raise Untranslatable(f"there is no C++ for {operation}")
        return self.each(text, *args)

    def each(self, text: str, *args: Any) -> Names:
        """One line for every number, with its operands in place of {0}, {1}, …"""
        operands = [arg if isinstance(arg, np.ndarray) else _number(arg) for arg in args]
        return np.asarray(np.frompyfunc(lambda *names: self.line(text.format(*names)), len(args), 1)(*operands))

    def line(self, expression: str) -> str:
        if len(self.lines) == MAX_LINES:
            raise Untranslatable(f"it takes more than {MAX_LINES} lines")
        self.lines.append(f"const auto t{len(self.lines)} = {expression};")
        return f"t{len(self.lines) - 1}"

    def reduced(self, text: str, values: Names, over: Sequence[int], keep: bool = False) -> Names:
        places = [_inner_dim(values, dim) for dim in over] or [_inner_dim(values, 0)]  # no dims means all: rejected
        moved = np.moveaxis(values, places, range(-len(places), 0))
        first, *rest = np.moveaxis(moved.reshape(*moved.shape[: -len(places)], -1), -1, 0)
        for more in rest:
            first = self.each(text, first, more)
        return np.expand_dims(first, places) if keep else np.asarray(first)

    def mean(self, values: Names, over: Sequence[int], keep: bool = False) -> Names:
        count = math.prod(values.shape[dim] for dim in over)
        return self.each("{0} / {1}", self.reduced("{0} + {1}", values, over, keep), count)

    def clamp(self, values: Names, low: float | None = None, high: float | None = None) -> Names:
        raised = values if low is None else self.each("larger({0}, {1})", values, low)
        return raised if high is None else self.each("smaller({0}, {1})", raised, high)

    def slice(
        self, values: Names, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
    ) -> Names:
        if dim % values.ndim == 0 and not start and (end is None or end >= self.agents) and step == 1:
            return values
        return values[(slice(None),) * _inner_dim(values, dim) + (slice(start, end, step),)]


def _inner_dim(values: Names, dim: int) -> int:
    """The dimension as a positive number. It must not be the first, that of agents."""
    if dim % values.ndim == 0:
        raise Untranslatable("it selects or sums over agents")
    return dim % values.ndim


def _number(value: object) -> Names:
    if not isinstance(value, int | float):
        raise Untranslatable(f"{value} is not a number")
    name = "limits::infinity()" if abs(value) == math.inf else "limits::quiet_NaN()" if value != value else abs(value)
    return np.array([f"lanes({'-' * (value < 0)}{name})"], dtype=object)


def _select(values: Names, dim: int, place: int) -> Names:
    return np.asarray(np.take(values, place, axis=_inner_dim(values, dim)))


def _unbind(values: Names, dim: int = 0) -> list[Names]:
    return list(np.moveaxis(values, _inner_dim(values, dim), 0))


def _squeeze(values: Names, dims: int | Sequence[int]) -> Names:
    places = [_inner_dim(values, dim) for dim in ([dims] if isinstance(dims, int) else dims)]
    return np.squeeze(values, tuple(place for place in places if values.shape[place] == 1))


def _unsqueeze(values: Names, dim: int) -> Names:
    if dim % (values.ndim + 1) == 0:
        raise Untranslatable("it adds a dimension before agents")
    return np.expand_dims(values, dim)


_REARRANGEMENTS: dict[Any, Callable[..., Any]] = {
    operator.getitem: operator.getitem,
    torch.ops.aten.select.int: _select,
    torch.ops.aten.unbind.int: _unbind,
    torch.ops.aten.unsqueeze.default: _unsqueeze,
    torch.ops.aten.squeeze.dim: _squeeze,
    torch.ops.aten.squeeze.dims: _squeeze,
}
_POWERS: dict[float, str] = {2: "{0} * {0}", 3: "{0} * {0} * {0}", -1: "1 / {0}"}
_REDUCTIONS = {
    torch.ops.aten.sum.dim_IntList: "{0} + {1}",
    torch.ops.aten.amax.default: "larger({0}, {1})",
    torch.ops.aten.amin.default: "smaller({0}, {1})",
}
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "=="}
_ELEMENTWISE: dict[Any, str] = {
    getattr(getattr(torch.ops.aten, name), kind): f"{{0}} {sign} {{1}}"
    for name, sign in (*_SIGNS.items(), ("bitwise_and", "&"), ("bitwise_or", "|"))
    for kind in ("Tensor", "Scalar")
} | {
    getattr(torch.ops.aten, name).default: text
    for name, text in {
        "neg": "-{0}",
        "abs": "magnitude({0})",
        "reciprocal": "1 / {0}",
        "maximum": "larger({0}, {1})",
        "minimum": "smaller({0}, {1})",
        "logical_and": "{0} & {1}",
        "logical_not": "negated({0})",
        "bitwise_not": "negated({0})",
        **{name: f"each_{name}({{0}})" for name in ("exp", "log", "log1p", "expm1", "sqrt", "sin", "cos", "tanh")},
    }.items()
}
_ELEMENTWISE[torch.ops.aten.where.self] = "({0} ? {1} : {2})"
