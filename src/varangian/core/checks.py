"""Checks of arguments: numbers and words as people write them, with one line where they do not fit."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args

import numpy as np

from varangian.core.errors import BadInput, unknown


def whole_number(value: Any, name: str, least: int | None = None) -> int:
    """An int from a whole number: Python's, NumPy's or torch's.

    >>> whole_number(np.int32(3), "rounds")
    3
    >>> whole_number(1.5, "rounds", least=1)
    Traceback (most recent call last):
    varangian.core.errors.BadInput: rounds must be a whole number of at least 1, but is 1.5
    """
    try:
        if isinstance(value, bool | np.bool_) or str(getattr(value, "dtype", None)) == "torch.bool":
            raise TypeError
        number = operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        number = None
    if number is None or (least is not None and number < least):
        of_at_least = "" if least is None else f" of at least {least}"
        raise BadInput(f"{name} must be a whole number{of_at_least}, but is {shown(value)}") from None
    return number


def whole_numbers(values: Any, name: str) -> list[int]:
    """Ints from a list, a range, a NumPy array or a tensor of whole numbers."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise BadInput(f"{name} must be a list of whole numbers, but is {shown(values)}")
    if getattr(values, "ndim", 1) != 1:
        raise BadInput(f"{name} must be a list of whole numbers, but has shape {tuple(getattr(values, 'shape', ()))}")
    kind = str(getattr(values, "dtype", "")).removeprefix("torch.")
    if kind.startswith(("int", "uint")):  # an array or a tensor: no call for each number
        values = getattr(values, "tolist", lambda: values)()
    if isinstance(values, list | tuple) and set(map(type, values)) <= {int}:
        return list(values)
    return [whole_number(value, f"each of {name}") for value in values]


def first_repeated(values: Sequence[int]) -> int | None:
    """The first value that stands twice.

    >>> first_repeated([3, 1, 3]), first_repeated([1, 2])
    (3, None)
    """
    seen: set[int] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None


def check_word(value: Any, name: str, words: Any) -> None:
    """Refuse a value that is not one of the words of a `Literal`.

    >>> from typing import Literal
    >>> check_word("nxt", "judge", Literal["next", "same"])
    Traceback (most recent call last):
    varangian.core.errors.BadInput: unknown judge 'nxt'; did you mean 'next'? (known: next, same)
    """
    known = get_args(words)
    if not isinstance(value, str) or value not in known:
        raise unknown(name, str(value), known)


def plain(value: Any) -> Any:
    """A number or a name of Python from one of NumPy or torch; anything else as it is.

    >>> import torch
    >>> plain(np.float32(0.5)), plain(torch.float64), plain(np.float64), plain(torch.device("cpu")), plain("text")
    (0.5, 'float64', 'float64', 'cpu', 'text')
    """
    import torch  # not above: a command that prints its help does not wait for torch

    if isinstance(value, np.generic) or (isinstance(value, np.ndarray | torch.Tensor) and value.ndim == 0):
        return value.item()
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return np.dtype(value).name
    return str(value) if isinstance(value, torch.device) else value


def with_plain_fields(value: Any) -> Any:
    """A dataclass whose numbers are Python's, also where it was made with NumPy's; anything else as it is."""
    if isinstance(value, type) or not is_dataclass(value):
        return value
    given = {one.name: getattr(value, one.name) for one in fields(value) if one.init}
    changed = {name: with_plain_fields(plain(part)) for name, part in given.items()}
    changed = {name: part for name, part in changed.items() if part is not given[name]}
    same: Any = value
    return replace(same, **changed) if changed else value


def shown(value: Any, most: int = 60) -> str:
    """A value in an error message: on one line, and not too long.

    >>> shown("1\\n2"), shown(list(range(99)))
    ("'1\\\\n2'", '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 1…')
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= most else text[:most] + "…"


def one_line(error: BaseException, most: int = 160) -> str:
    """The type and the first line of an error.

    >>> one_line(ValueError("no\\nmore"))
    'ValueError: no'
    """
    said = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
    return text if len(text) <= most else text[:most] + "…"
