"""Packages that import what they offer when it is first used, so that printing a help text does not wait for torch."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


def lazy(
    package: str, *, members: Mapping[str, str] | None = None, modules: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` of a package, as PEP 562 has them.

    Args:
        package: Its `__name__`.
        members: What it offers, and in which of its modules each is defined. A member may have the name of its module:
            `studies.digits` is the study, however the file of that name was imported.
        modules: Modules that it offers, and where each is below the package.
    """
    offered, below = dict(members or {}), dict(modules or {})
    found = sys.modules[package]
    found.__class__ = type("LazyPackage", (_LazyPackage,), {"members": frozenset(offered)})

    def get(name: str) -> Any:
        if name in below:
            return imported(f"{package}.{below[name]}")
        if name in offered:
            return getattr(imported(f"{package}.{offered[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*found.__dict__, *offered, *below})

    return get, names


def imported(module: str) -> ModuleType:
    """Import a module without looking for garbage on the way.

    What an import makes stays. Python would look through all of it again and again, for a sixth of a short command's
    time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return import_module(module)
    finally:
        if collects:
            gc.enable()


class _LazyPackage(ModuleType):
    """Python binds a module to its package when it imports it; here a member of that name goes first."""

    members: frozenset[str] = frozenset()

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in self.members and isinstance(value, ModuleType)):
            super().__setattr__(name, value)
