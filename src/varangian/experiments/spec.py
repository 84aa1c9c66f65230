"""Names and parameters as text: `loss-based`, `loss-based:keep=all,smoothing=0.05`, `mine.py:exponential:eta=2`.

The same text is used on the command line, in configuration files and in tables. A name is the Python name with
hyphens. Its parameters are the fields of the class. Lists of numbers are written with slashes (`point=0/0`). A rule,
an attack or a study of one's own is `FILE.py:NAME` or `package.module:NAME`; `own_code` finds it.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from varangian.core.errors import BadInput, unknown
from varangian.core.spelling import settings_of as settings_of
from varangian.core.user_code import said

Named = Mapping[str, Any]
"""Classes, or objects, by their names."""


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


def is_place(name: str) -> bool:
    """Whether this is a Python file or a dotted module, and not the name of a rule, an attack or a study.

    >>> is_place("mine.py"), is_place("package.module"), is_place("loss-based")
    (True, True, False)
    """
    return name.endswith(".py") or re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", name) is not None


def headed(text: str) -> tuple[str, str]:
    """What is named, and its parameters. After a file or a module, the name is the part without `=`.

    >>> headed("loss-based:keep=all"), headed("mine.py:fast_rule:eta=2"), headed("./mine.py:eta=2")
    (('loss-based', 'keep=all'), ('mine.py:fast-rule', 'eta=2'), ('mine.py', 'eta=2'))
    """
    place, _, rest = (part.strip() for part in text.partition(":"))
    if not is_place(place):
        return place.replace("_", "-"), rest
    place = os.path.normpath(place) if place.endswith(".py") else place
    name, _, after = rest.partition(":")
    if "=" in name or not name.strip():
        return place, after if not name.strip() else rest
    return f"{place}:{name.strip().replace('_', '-')}", after.strip()


def tidied(text: str) -> str:
    """The text as tables show it: names have hyphens, and the paths of files are as short as they can be.

    >>> tidied(" loss_based:keep=all"), tidied("./mine.py:fast_rule")
    ('loss-based:keep=all', 'mine.py:fast-rule')
    """
    return ":".join(filter(None, headed(text)))


def parted(texts: Sequence[str]) -> list[str]:
    """All names in a list of texts. A text may hold several names, separated by commas.

    A comma before `key=` does not separate names: it belongs to a parameter. Neither does a comma in the path of a file
    that exists.

    >>> parted(["alone,sleeper:until=5,then=uniform:low=1,high=2,silent", "average"])
    ['alone', 'sleeper:until=5,then=uniform:low=1,high=2', 'silent', 'average']
    """
    names: list[str] = []
    for text in texts:
        first, rest = len(names), text
        while rest.strip():
            piece, rest = cut(rest)
            head = piece.partition(":")[0]
            if "=" in head and len(names) > first and not Path(head).is_file():
                names[-1] += f",{piece}"
            elif piece:
                names.append(piece)
    return names


def cut(text: str) -> tuple[str, str]:
    """The text up to the first comma, and the rest. A comma in the path of a file that exists does not count."""
    end = text.find(",")
    for ending in re.finditer(r"\.py(?=[:,]|\s*$)", text):
        path = text[: ending.end()].strip()
        if "," in path and any(Path(one).is_file() for one in (path, path.partition("=")[2])):
            end = text.find(",", ending.end())
    return (text.strip(), "") if end < 0 else (text[:end].strip(), text[end + 1 :])


def made(
    text: str, kind: str, named: Named, usual: Mapping[str, Any] | None = None, within: Named | None = None
) -> Any:
    """The rule, attack or study that `text` describes. A name without parameters means its value in `usual`, if any.

    >>> from varangian import rules
    >>> made("distance-based:p=1", "rule", catalogue(rules))
    distance_based(target='current', p=1.0, smoothing=None, start=0.0)

    A parameter may itself be a rule or an attack. If it has parameters, it must be the last one: all parameters after
    it belong to it.

    >>> from varangian import attacks
    >>> made("sleeper:until=5,then=uniform:low=1,high=2", "attack", catalogue(attacks))
    sleeper(until=5, then=uniform(low=1.0, high=2.0))

    `within` holds the classes that such a parameter may have, if these are more than the classes in the catalogue.
    """
    name, rest = headed(text)
    if not rest.strip() and usual and name in usual:
        return usual[name]
    if name not in named:
        raise no_such(kind, name, named)
    given: dict[str, Any] = {}
    while rest:
        part, after = cut(rest)
        if ":" in part and not _is_only_a_name(part.partition("=")[2]):
            part, after = rest, ""
        rest = after
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals and part.strip():
            raise BadInput(f"{kind} {text!r}: {part.strip()!r} is not of the form parameter=value")
        if key in given:
            raise BadInput(f"{kind} {text!r}: {key} is given twice")
        if equals:
            given[key] = value
    return with_settings(named[name], given, f"{kind} {name}", named if within is None else within, usual)


def _is_only_a_name(text: str) -> bool:
    """Whether this is `FILE.py:NAME` without parameters."""
    place, _, name = text.strip().partition(":")
    return is_place(place) and not {*":="} & {*name}


def no_such(kind: str, name: str, named: Named) -> BadInput:
    """The error for an unknown name, which may be that of a file without its ending."""
    file = f"{name.replace('-', '_')}.py"
    return unknown(kind, name, [file] if Path(file).is_file() else named)


def with_settings(
    value: Any,
    given: Mapping[str, Any],
    where: str,
    named: Named | None = None,
    usual: Mapping[str, Any] | None = None,
) -> Any:
    """A value with some parameters set, from text or from TOML values. An unknown or missing one is an error.

    A parameter may be another dataclass, which is a table in TOML, or a tuple of them.

    Args:
        value: A class, or an object of a dataclass, whose other fields stay.
        given: The parameters.
        where: What it is, for error messages.
        named: The classes that a parameter may have.
        usual: The values of names without parameters.
    """
    known = parameters_of(value, where)
    for name in given:
        if name.replace("-", "_") not in known:
            raise unknown(f"setting of {where}", name, known)

    def nested(raw: Any, where: str) -> Any:
        if not named:
            raise BadInput(f"{where} cannot be set from text")
        return made(str(raw), where, named, usual)

    fields = {
        name: _read(raw, known[name].hint, f"{where}: {name}", nested)
        for name, raw in ((name.replace("-", "_"), raw) for name, raw in given.items())
    }
    missing = [name for name, parameter in known.items() if parameter.needed and name not in fields]
    if missing and isinstance(value, type):
        raise BadInput(f"{where} needs a value for {', '.join(missing)}, as in {missing[0]}=…")
    try:
        return value(**fields) if isinstance(value, type) else dataclasses.replace(value, **fields) if fields else value
    except (BadInput, MemoryError):
        raise
    except Exception as error:
        raise BadInput(f"{where}: {failed_in(value, error)}") from error


def failed_in(value: Any, error: Exception) -> str:
    """One line about an error in the code of a class or an object: the file, the line, the error."""
    kind = value if isinstance(value, type) else type(value)
    path = getattr(sys.modules.get(kind.__module__), "__file__", None) or kind.__module__
    return said(error, path, Path(path).name)


class Parameter(NamedTuple):
    """What a parameter of a class takes, and whether it has no default."""

    hint: Any
    needed: bool


def parameters_of(value: Any, where: str) -> dict[str, Parameter]:
    """The parameters of a class: the fields of a dataclass, or what its constructor takes."""
    kind = value if isinstance(value, type) else type(value)
    try:
        if dataclasses.is_dataclass(kind):
            hints = get_type_hints(kind)
            fields = [field for field in dataclasses.fields(kind) if field.init]
            needed = {one.name: one.default is one.default_factory is dataclasses.MISSING for one in fields}
            return {name: Parameter(hints[name], needed[name]) for name in needed}
        constructor = vars(kind).get("__init__", kind.__init__)  # type: ignore[misc]
        taken = inspect.signature(kind).parameters.values() if constructor is not object.__init__ else ()
        hints = get_type_hints(constructor)
    except Exception as error:  # annotations are code too
        raise BadInput(f"{where}: the types of its parameters cannot be read: {failed_in(kind, error)}") from error
    empty = inspect.Parameter.empty
    named = [one for one in taken if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    usual = {one.name: str if one.default in (empty, None) else type(one.default) for one in named}
    return {one.name: Parameter(hints.get(one.name, usual[one.name]), one.default is empty) for one in named}


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
