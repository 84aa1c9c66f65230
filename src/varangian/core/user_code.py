"""A Python file of the user as a module, in this process and in the processes that it sends work to.

Naming a file means: run it. Nothing here looks for files by itself. Work that is sent to other processes brings the
text of the files along, because a machine of a cluster may not have them.
"""

from __future__ import annotations

import ast
import hashlib
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from varangian.core.errors import BadInput

Value = TypeVar("Value")
PREFIX = "varangian_file_"
"""The names of modules that are made from files begin with this."""


@dataclass(frozen=True)
class UserFile:
    """A Python file, and the files beside it that it imports."""

    path: str
    content: bytes
    beside: tuple[UserFile, ...] = ()
    """The files of the same folder that it imports, also through each other."""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def imports(self) -> dict[str, str]:
        """The SHA-256 of each file beside it, by name."""
        return {Path(file.path).name: file.sha256 for file in self.beside}

    @property
    def module(self) -> str:
        """The name of the module. It changes with the content, so that changed files are not taken from memory."""
        about = repr((self.path, self.sha256, self.imports))
        stem = "".join(c if c.isidentifier() or c.isdigit() else "_" for c in Path(self.path).stem)
        return f"{PREFIX}{stem}_{hashlib.sha256(about.encode()).hexdigest()[:12]}"


_FILES: dict[str, UserFile] = {}
"""The files that are modules of this process, by the name of the module."""


def read_file(path: Path) -> UserFile:
    """The file and what it imports from its own folder."""
    where = path.resolve()
    files = {where: _content(path)}
    waiting = [where]
    while waiting:
        for other in _imported_beside(waiting.pop(), files):
            files[other] = _content(other)
            waiting.append(other)
    others = [UserFile(str(other), content) for other, content in files.items() if other != where]
    return UserFile(str(where), files[where], tuple(sorted(others, key=lambda file: file.path)))


def _content(path: Path) -> bytes:
    if path.exists() and not path.is_file():
        raise BadInput(f"{path} is not a file")
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error


def _imported_beside(path: Path, files: Mapping[Path, bytes]) -> Iterator[Path]:
    """The files in the folder of `path` that it imports and that are not among `files`."""
    try:
        tree = ast.parse(files[path])
    except (SyntaxError, ValueError):  # running the file will say what is wrong
        return
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
        for name in names:
            other = path.parent / f"{name.partition('.')[0]}.py"
            if other not in files and other.is_file():
                yield other


def module_of(file: UserFile, shown: str) -> ModuleType:
    """The module of a file; the file is run once. `shown` is the file's name in error messages."""
    if file.module in sys.modules:
        return sys.modules[file.module]
    _check_beside(file, shown)
    _import_from_folder_of(file)
    spec = spec_from_loader(file.module, _Text(file))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[file.module] = module  # dataclasses look their module up while they are made
    _FILES[file.module] = file
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[file.module], _FILES[file.module]
        if isinstance(error, KeyboardInterrupt | MemoryError):
            raise
        raise BadInput(said(error, file.path, shown)) from error
    return module


def kept_file(path: str, sha256: str, imports: Mapping[str, str]) -> UserFile | None:
    """A file of this content that is a module of this process already."""
    same = (file for file in _FILES.values() if (file.path, file.sha256, file.imports) == (path, sha256, {**imports}))
    return next(same, None)


def said(error: BaseException, path: str, shown: str) -> str:
    """One line: the file, the line where it failed, and the error.

    >>> said(SyntaxError("invalid syntax", ("/home/mine.py", 3, 1, "")), "/home/mine.py", "mine.py")
    'mine.py line 3: SyntaxError: invalid syntax'
    """
    line: int | None = None
    if isinstance(error, SyntaxError):
        message = error.msg
        shown, line = shown if error.filename in (None, path) else str(error.filename), error.lineno
    else:
        message = " ".join(str(error).split())
        steps = [step for step in traceback.extract_tb(error.__traceback__) if step.filename == path]
        line = steps[-1].lineno if steps else None
    where = "" if not shown else f"{shown}: " if line is None else f"{shown} line {line}: "
    return f"{where}{type(error).__name__}: {message}".rstrip(": ")


def _check_beside(file: UserFile, shown: str) -> None:
    """Two folders cannot both have a `helpers.py`: Python has one module of each name."""
    folders = {Path(one.path).parent for one in _FILES.values()}
    for other in map(Path, (one.path for one in file.beside)):
        there = getattr(sys.modules.get(other.stem), "__file__", None)
        if there is not None and Path(there).resolve() != other and Path(there).resolve().parent in folders:
            raise BadInput(f"{shown} imports {other}, but {there} has the same name; give one of them another name")


def _import_from_folder_of(file: UserFile) -> None:
    """Let a file import what stands beside it. Installed packages come first."""
    folder = Path(file.path).parent
    if str(folder) not in sys.path and folder.is_dir():
        sys.path.append(str(folder))


class _Text(SourceLoader):
    """Loads a module from a text in memory."""

    def __init__(self, file: UserFile) -> None:
        self.file = file

    def get_filename(self, fullname: str) -> str:
        return self.file.path

    def get_data(self, path: str) -> bytes:
        return self.file.content


class _Beside(MetaPathFinder):
    """Finds the files beside a user's file on a machine that does not have them."""

    def __init__(self, file: UserFile) -> None:
        self.file = file

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        for other in self.file.beside:
            if fullname == Path(other.path).stem:
                return spec_from_loader(fullname, _Text(other))
        return None


def carried(value: Value) -> Value:
    """The same value. When it is pickled, the user's files go before it, so that another process can read it."""
    return cast(Value, _Carried(value)) if _FILES else value


class _Carried:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return _second, (_Files(tuple(_FILES.values())), self.value)


class _Files:
    def __init__(self, files: tuple[UserFile, ...]) -> None:
        self.files = files

    def __reduce__(self) -> tuple[Any, ...]:
        return _install, (self.files,)


def _install(files: tuple[UserFile, ...]) -> None:
    for file in files:
        if file.module not in sys.modules:
            sys.meta_path.append(_Beside(file))
            module_of(file, Path(file.path).name)


def _second(first: None, second: Value) -> Value:
    """Python reads the first argument, and so installs the files, before it reads the second."""
    return second
