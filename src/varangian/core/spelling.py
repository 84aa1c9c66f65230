"""How a rule, an attack or a study is written as text: `loss-based:keep=all`.

The same text is used on the command line, in configuration files, in tables and in the attributes of results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from varangian.core.errors import BadInput


def settings_of(value: Any) -> dict[str, Any]:
    """The fields of a value that can be written as text. A field with `metadata={"setting": False}` cannot."""
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    return {one.name: getattr(value, one.name) for one in fields if one.init and one.metadata.get("setting", True)}


def name_of(value: Any, made: Callable[[str], Any] | None = None) -> str:
    """The name of a rule or an attack as typed on the command line, with all parameters that are not the default.

    `made` gives the value of a name without parameters, if a study has its own.

    >>> from varangian import rules
    >>> name_of(rules.loss_based(keep="all"))
    'loss-based:keep=all'
    """
    name = type(value).__name__.replace("_", "-")
    if not dataclasses.is_dataclass(value):
        return name
    usual = _usual(value, name, made)
    usually = {} if usual is None else settings_of(usual)
    changed = [(key, now) for key, now in settings_of(value).items() if _differ(now, usually.get(key, _differ))]
    # A parameter that is itself a rule or an attack comes last.
    changed.sort(key=lambda pair: dataclasses.is_dataclass(pair[1]))
    return f"{name}:{','.join(f'{key}={_typed(now, made)}' for key, now in changed)}" if changed else name


def _usual(value: Any, name: str, made: Callable[[str], Any] | None) -> Any:
    """The value of the name without parameters, in this study. For a user's own class, the class without arguments."""
    try:
        if made is not None and type(usual := made(name)) is type(value):
            return usual
    except (BadInput, TypeError):
        pass
    try:
        return type(value)()
    except TypeError:
        return None


def _differ(one: Any, other: Any) -> bool:
    try:
        return bool(one != other)
    except (RuntimeError, ValueError):  # tensors and arrays, which are compared number by number
        return True


def _typed(value: Any, made: Callable[[str], Any] | None) -> str:
    if dataclasses.is_dataclass(value):
        return name_of(value, made)
    if isinstance(value, tuple | list):
        return "/".join(map(str, value))
    if getattr(value, "shape", ()):
        return f"{type(value).__name__.lower()}{tuple(value.shape)}"
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
