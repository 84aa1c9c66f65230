"""Find a rule, an attack or a study of one's own: in a file, in a package, or among what installed packages announce.

| text | where it is |
|---|---|
| `mine.py:exponential` | in a file; `mine.py` is enough if the file has only one of the kind |
| `package.module:exponential` | in a module that Python can import |
| `exponential` | announced by an installed package, with an entry point in the group `varangian.rules` |

Naming a file or a module means: run it. So whoever reads a name from a file or a message that somebody else wrote runs
the code of somebody else.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import hashlib
import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Literal

from varangian import attacks, rules, studies
from varangian.core.errors import BadInput, unknown
from varangian.core.user_code import UserFile, kept_file, module_of, read_file, said
from varangian.experiments.spec import catalogue, is_place

Kind = Literal["rule", "attack", "study"]

PACKAGES: dict[Kind, ModuleType] = {"rule": rules, "attack": attacks, "study": studies}
GROUPS: dict[Kind, str] = {"rule": "varangian.rules", "attack": "varangian.attacks", "study": "varangian.studies"}
"""The groups of entry points with which packages announce what they have."""
METHODS: dict[Kind, tuple[str, ...]] = {"rule": ("init", "combine"), "attack": ("init", "send"), "study": ("scene",)}
"""What a class must have to be of a kind."""


@dataclass(frozen=True)
class Origin:
    """Where a rule, an attack or a study came from, as a run folder records it."""

    path: str
    sha256: str = ""
    """The hash of the file. Empty if it is not known yet."""
    imports: Mapping[str, str] = field(default_factory=dict)
    """The hashes of the files beside it that it imports, by name."""

    @property
    def entry(self) -> dict[str, Any]:
        """The entry in a configuration file."""
        return {"path": self.path, "sha256": self.sha256} | ({"imports": {**self.imports}} if self.imports else {})


@dataclass(frozen=True)
class Offered(Mapping[str, Any]):
    """Everything that can be named: what is built in, what packages announce, and what files and modules hold.

    Iterating shows only the first two. The others are loaded when they are looked up.

    >>> "average" in Offered(("rule",)), "exponential" in Offered(("rule",))
    (True, False)
    """

    kinds: tuple[Kind, ...]
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """Where files are, and what they must hold. By default a file is where its path says, in the folder."""
    folder: Path = Path()
    """The folder that relative paths refer to."""
    used: dict[str, Origin] = field(default_factory=dict)
    """Where everything came from that was looked up and is not built in."""
    also: Mapping[str, Any] = field(default_factory=dict)
    """More classes by name, such as those that a study brings along."""
    planned: bool = False
    """Whether a plan has looked them up before. Then what it found is used, even if a file has changed meanwhile."""

    def __getitem__(self, name: str) -> Any:
        if name in self.also:
            return self.also[name]
        for kind in self.kinds:
            if name in (own := catalogue(PACKAGES[kind])):
                return own[name]
        place, _, inner = name.partition(":")
        if is_place(place):
            module, origin = self.module(place)
            value = self._member(module, place, inner)
        else:
            for kind in self.kinds:
                if name in (announcing := announced(kind)):
                    value, origin = loaded(announcing[name], kind)
                    break
            else:
                raise KeyError(name)
        self._check(place, origin)
        self.used[place] = origin
        return value

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        # Packages come last: to read what they announce takes long.
        return (
            is_place(name.partition(":")[0])
            or name in self._built_in()
            or any(name in announced(kind) for kind in self.kinds)
        )

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys([*self._built_in(), *(name for kind in self.kinds for name in announced(kind))])

    def _built_in(self) -> list[str]:
        return [*self.also, *(name for kind in self.kinds for name in catalogue(PACKAGES[kind]))]

    def __len__(self) -> int:
        return len(list(iter(self)))

    def module(self, place: str) -> tuple[ModuleType, Origin]:
        """The module of a file, or a module by its dotted name, and where it is."""
        return self._of_file(place) if place.endswith(".py") else self._of_module(place)

    def _of_file(self, place: str) -> tuple[ModuleType, Origin]:
        known = self.origins.get(place)
        file = kept_file(known.path, known.sha256, known.imports) if known is not None and self.planned else None
        if file is None:
            file = self._read(place, known)
        return module_of(file, place), Origin(file.path, file.sha256, file.imports)

    def _read(self, place: str, known: Origin | None) -> UserFile:
        beside = self.folder / Path(place).expanduser()
        path = Path(known.path) if known is not None and Path(known.path).is_file() else beside
        if not path.exists():
            recorded = "" if known is None else f", and none at {known.path}"
            raise BadInput(f"there is no file {place}{_similar(path)}{_looked_in(path, place)}{recorded}")
        return read_file(path)

    def _of_module(self, place: str) -> tuple[ModuleType, Origin]:
        if find_spec(place.partition(".")[0]) is None and str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))  # as `python -m` has it, but behind everything that is installed
        return _imported(lambda: importlib.import_module(place), place, place)

    def _member(self, module: ModuleType, place: str, name: str) -> Any:
        members = {one: value for kind in self.kinds for one, value in members_of(module, kind).items()}
        what = " or ".join(self.kinds)
        if not name:
            if len(members) != 1:
                one = f"its {_plural(what)} are {', '.join(members)}; name one, as in {place}:" if members else ""
                raise BadInput(f"{place}: {one}{next(iter(members))}" if members else f"{place} holds no {what}")
            return next(iter(members.values()))
        python_name = name.replace("-", "_")
        if python_name.startswith("_") or not hasattr(module, python_name):
            if not members:
                raise BadInput(f"{place} holds no {what}, and nothing named {python_name}")
            raise unknown(f"{what} in {place}:", name, members)
        value = getattr(module, python_name)
        if not any(is_of_kind(value, kind) for kind in self.kinds):
            lacking = " and ".join(one for one in METHODS[self.kinds[0]] if not callable(getattr(value, one, None)))
            where = _line(module, python_name)
            raise BadInput(f"{place}{where}: {python_name} is not {_one(what)}: it has no {lacking}")
        return value

    def _check(self, place: str, origin: Origin) -> None:
        known = self.origins.get(place)
        if known is None or not known.sha256:
            return
        if known.sha256 != origin.sha256:
            raise changed(place)
        for name, sha256 in known.imports.items():
            if origin.imports.get(name) != sha256:
                raise changed(name)


@dataclass(frozen=True)
class Within:
    """Where names were written: in a configuration file in this folder, or on the command line."""

    folder: Path = Path()
    """The folder that relative paths refer to."""
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """Where the configuration file says that they came from."""


NOWHERE: Mapping[str, Within] = MappingProxyType({})


def check_own_study(study: Any, label: str) -> None:
    """Whether a study of one's own has everything that a run needs to know about it."""
    if not dataclasses.is_dataclass(study):
        raise BadInput(f"{label} is not a dataclass; write @dataclass(frozen=True) above its class")
    wanted = {"name": str, "byzantine": tuple, "attacks": tuple, "metric": str, "by_group": bool, "rounds": int}
    given = {name: getattr(study, name, None) for name in wanted}
    for name, kind in wanted.items():
        if type(given[name]) is not kind:
            what = "no" if given[name] is None else f"{given[name]!r} as its"
            raise BadInput(f"the study {label} has {what} {name}, which must be of type {kind.__name__}")
    if not re.fullmatch(r"\w[\w. -]{0,79}", own := str(given["name"])):
        raise BadInput(f"the study {label} has the name {own!r}; use letters, digits and hyphens")
    if own in catalogue(studies):
        raise BadInput(f"the study {label} has the name of a built-in study, {own}; give it another name")


def joined_origins(some: Mapping[str, Origin], others: Mapping[str, Origin]) -> dict[str, Origin]:
    """All of them. One name cannot stand for two files, such as one in this folder and one beside a configuration."""
    for place in {*some} & {*others}:
        if some[place].path != others[place].path:
            both = f"{some[place].path} and {others[place].path}"
            raise BadInput(f"{place} means two files, {both}; give the full path of one of them")
    return {**some, **others}


def changed(place: str) -> BadInput:
    """The error for a source that is not what it was when a run was begun."""
    return BadInput(
        f"{place} has changed since this run was begun (its SHA-256 differs); undo the change to get the same results, "
        "or run it as it is now under its own name, into a new folder or with --overwrite"
    )


def members_of(module: ModuleType, kind: Kind) -> dict[str, Any]:
    """The rules, attacks or studies that a module defines, by name. What it only imports does not count."""
    own = {name: value for name, value in vars(module).items() if not name.startswith("_") and is_of_kind(value, kind)}
    classes = {name: v for name, v in own.items() if isinstance(v, type) and v.__module__ == module.__name__}
    objects = {name: value for name, value in own.items() if not isinstance(value, type)}
    return {name.replace("_", "-"): value for name, value in (classes | objects).items()}


def is_of_kind(value: Any, kind: Kind) -> bool:
    return not isinstance(value, ModuleType) and all(callable(getattr(value, one, None)) for one in METHODS[kind])


def announced(kind: Kind) -> dict[str, EntryPoint]:
    """What installed packages announce, by name. The names of what is built in are taken."""
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUPS[kind]):
        other = found.setdefault(entry.name.replace("_", "-"), entry)
        if other.value != entry.value:
            raise BadInput(
                f"two packages announce the {kind} {entry.name}: {provider(other)} and {provider(entry)}; remove one"
            )
    built_in = catalogue(PACKAGES[kind])
    return {name: entry for name, entry in sorted(found.items()) if name not in built_in}


def shadowed(kind: Kind) -> list[str]:
    """One line for each package that announces a name that is built in."""
    built_in = catalogue(PACKAGES[kind])
    taken = (one for one in entry_points(group=GROUPS[kind]) if one.name.replace("_", "-") in built_in)
    return [f"{provider(one)} announces the {kind} {one.name}, but that is a built-in {kind}" for one in taken]


def loaded(entry: EntryPoint, kind: Kind) -> tuple[Any, Origin]:
    """What an entry point announces, and where it is."""
    shown = f"{kind} {entry.name}, announced by {provider(entry)}"
    value, origin = _imported(entry.load, shown, entry.module)
    if not is_of_kind(value, kind):
        raise BadInput(f"{shown}: {entry.value} is not {_one(kind)}")
    return value, origin


def provider(entry: EntryPoint) -> str:
    """The package that announces something, with its version."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.module


def _imported(load: Callable[[], Any], shown: str, module: str) -> tuple[Any, Origin]:
    """Something from a module, and where it is. `shown` is what error messages call it."""
    try:
        value = load()
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:
        steps = [step.filename for step in traceback.extract_tb(error.__traceback__)]
        inside = [one for one in steps if Path(one).is_file() and Path(one).parts[-2:-1] != ("importlib",)]
        path = inside[-1] if inside and inside[-1] != __file__ else ""
        raise BadInput(f"{shown}: {said(error, path, path)}") from error
    path = getattr(sys.modules.get(module), "__file__", None) or ""
    sha256 = hashlib.sha256(Path(path).read_bytes()).hexdigest() if Path(path).is_file() else ""
    return value, Origin(path, sha256)


def _similar(path: Path) -> str:
    """A hint at a file with a similar name in the same folder."""
    try:
        names = [one.name for one in path.parent.glob("*.py")]
    except OSError:
        return ""
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.5)
    return f"; did you mean {os.path.relpath(path.parent / near[0])}?" if near else ""


def _looked_in(path: Path, place: str) -> str:
    return "" if Path(place).is_absolute() else f" (looked in {path.parent.resolve()})"


def _plural(kind: str) -> str:
    return {"study": "studies"}.get(kind, f"{kind}s")


def _one(kind: str) -> str:
    return f"{'an' if kind.startswith('a') else 'a'} {kind}"


def _line(module: ModuleType, name: str) -> str:
    """` line 7`, where the module defines a name; empty if that cannot be found out."""
    try:
        loader: Any = module.__loader__
        tree = ast.parse(loader.get_source(module.__name__))
    except (AttributeError, ImportError, SyntaxError, TypeError):
        return ""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [getattr(node, "name", None), *(getattr(target, "id", None) for target in targets)]
        if name in names:
            return f" line {node.lineno}"
    return ""
