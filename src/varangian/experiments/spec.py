"""Names and parameters as text: `loss-based`, `loss-based:keep=all,smoothing=0.05`.

The same text is used on the command line, in configuration files and in tables. A name is the Python name with
hyphens. Its parameters are the fields of the class. Lists of numbers are written with slashes (`point=0/0`).
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from varangian.core.errors import BadInput, unknown
from varangian.core.spelling import settings_of as settings_of

Named = Mapping[str, type[Any]]


def catalogue(package: types.ModuleType) -> dict[str, type[Any]]:
    """The classes that a package exports, by their command-line names.

    >>> from varangian import rules
    >>> sorted(catalogue(rules))[:2]
    ['alone', 'anchored']
    """
    exported = {name: getattr(package, name) for name in package.__all__}
    return {
        name.replace("_", "-"): value
        for name, value in exported.items()
        if isinstance(value, type) and dataclasses.is_dataclass(value) and name.islower()
    }


def first_line(value: type[Any]) -> str:
    """The one-line description of a rule, an attack or a study."""
    return " ".join((value.__doc__ or "").strip().split("\n\n")[0].split())


def tidied(text: str) -> str:
    """The text as tables show it: the name always has hyphens.

    >>> tidied(" loss_based:keep=all")
    'loss-based:keep=all'
    """
    name, colon, parameters = text.strip().partition(":")
    return name.strip().replace("_", "-") + colon + parameters


def parted(texts: Sequence[str]) -> list[str]:
    """All names in a list of texts. A text may hold several names, separated by commas.

    A comma before `key=` does not separate names: it belongs to a parameter.

    >>> parted(["alone,sleeper:until=5,then=uniform:low=1,high=2,silent", "average"])
    ['alone', 'sleeper:until=5,then=uniform:low=1,high=2', 'silent', 'average']
    """
    names: list[str] = []
    for text in texts:
        first = len(names)
        for piece in filter(None, map(str.strip, text.split(","))):
            if "=" in piece.partition(":")[0] and len(names) > first:
                names[-1] += f",{piece}"
            else:
                names.append(piece)
    return names


def made(
    text: str, kind: str, named: Named, usual: Mapping[str, Any] | None = None, within: Named | None = None
) -> Any:
    """The rule, attack or study that `text` describes. A name without parameters means its value in `usual`, if any.

    >>> from varangian import rules
    >>> made("distance-based:p=1", "rule", catalogue(rules))
    distance_based(target='current', p=1.0, smoothing=None, start=0.0)

    A parameter may itself be a rule or an attack. It must be the last one: all parameters after it belong to it.

    >>> from varangian import attacks
    >>> made("sleeper:until=5,then=uniform:low=1,high=2", "attack", catalogue(attacks))
    sleeper(until=5, then=uniform(low=1.0, high=2.0))

    `within` holds the classes that such a parameter may have, if these are more than the classes in the catalogue.
    """
    name, _, rest = tidied(text).partition(":")
    if name not in named:
        raise unknown(kind, name, named)
    if not rest.strip() and usual and name in usual:
        return usual[name]
    given: dict[str, Any] = {}
    while rest:
        part, _, after = rest.partition(",")
        if ":" in part:
            part, after = rest, ""
        rest = after
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals and part.strip():
            raise BadInput(f"{kind} {text!r}: {part.strip()!r} is not of the form parameter=value")
        if key in given:
            raise BadInput(f"{kind} {text!r}: {key} is given twice")
        if equals:
            given[key] = value
    return with_settings(named[name], given, f"{kind} {name}", within or named, usual)


def with_settings(
    value: type[Any],
    given: Mapping[str, Any],
    where: str,
    named: Named | None = None,
    usual: Mapping[str, Any] | None = None,
) -> Any:
    """A value with some fields set, from text or from TOML values. An unknown or missing field is an error.

    A field may be another dataclass, which is a table in TOML, or a tuple of them.
    """
    hints = get_type_hints(value)
    known = [field.name for field in dataclasses.fields(value)]
    for name in given:
        if name.replace("-", "_") not in known:
            raise unknown(f"setting of {where}", name, known)
    fields = {name.replace("-", "_"): raw for name, raw in given.items()}
    for field in dataclasses.fields(value):
        if field.name not in fields and field.default is field.default_factory is dataclasses.MISSING:
            raise BadInput(f"{where} needs a value for {field.name}")

    def nested(raw: Any, where: str) -> Any:
        if not named:
            raise BadInput(f"{where} cannot be set from text")
        return made(str(raw), where, named, usual)

    return value(**{name: _read(raw, hints[name], f"{where}: {name}", nested) for name, raw in fields.items()})


def _read(raw: Any, hint: Any, where: str, nested: Callable[[Any, str], Any]) -> Any:
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if raw is None or raw == "none":
            return None
        return _read(raw, next(option for option in options if option is not types.NoneType), where, nested)
    if origin is Literal:
        if raw not in options:
            raise unknown(f"value of {where},", str(raw), map(str, options))
        return raw
    if origin is tuple:
        parts = raw.split("/") if isinstance(raw, str) else list(raw) if isinstance(raw, list | tuple) else [raw]
        if Ellipsis not in options and len(parts) != len(options):
            raise BadInput(f"{where} takes {len(options)} numbers, as in 1/2, but got {raw!r}")
        return tuple(_read(part, options[0], where, nested) for part in parts)
    if hint in (bool, int, float, str):
        return _plain(raw, hint, where)
    if (dataclasses.is_dataclass(hint) or origin is dict) and isinstance(raw, dict):
        return raw if origin is dict else with_settings(hint, raw, where)
    return nested(raw, where)


def _plain(raw: Any, kind: type[Any], where: str) -> Any:
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    if kind is bool:
        if isinstance(raw, bool) or raw in ("true", "false"):
            return raw if isinstance(raw, bool) else raw == "true"
    elif not isinstance(raw, bool) and isinstance(raw, str | (float if kind is int else kind) | int):
        try:
            value = kind(raw)
            if not isinstance(raw, float) or raw == value:
                return value
        except (ValueError, OverflowError):
            pass
    raise BadInput(f"{where} takes {words[kind]}, but got {raw!r}")
