"""From C++ text to a library that is loaded into this process. Libraries are kept in the user's cache folder.

A library is found again by the text, the compiler, its options and the processor. Two processes may build the same one
at a time: each writes a file of its own, which takes its place in one step. Nobody but the user may be able to write to
the cache, since its files are run.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from varangian.core.files import cache_folder

OPTIONS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-shared", "-Wno-psabi")


class NotBuilt(Exception):
    """There is no library, for the reason that the text says."""


def compiler() -> str:
    """The C++ compiler; torch uses the same one."""
    return os.environ.get("CXX") or {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")


def has_compiler() -> bool:
    """Whether there is a C++ compiler."""
    return shutil.which(compiler()) is not None


def built(text: str, *options: str) -> ctypes.CDLL:
    """Compile and load, once per process. Raises `NotBuilt` if that fails.

    Args:
        text: The whole program.
        options: Further options for the compiler.
    """
    return _built(text, compiler(), (*OPTIONS, *options), cache_folder() / "compiled")


@cache
def _built(text: str, compiler: str, options: tuple[str, ...], kept: Path) -> ctypes.CDLL:
    try:
        folder = _private(kept)
        file = None if folder is None else folder / f"{_key(text, compiler, options)}.so"
        if file is not None and _is_ours(file):
            try:
                return ctypes.CDLL(str(file))
            except OSError:  # damaged, or of another system: it is built again
                file.unlink()
        # Built in the cache itself, so that it takes its place in one step. Without a cache the file goes once loaded.
        with tempfile.TemporaryDirectory(dir=folder) as place:
            source, library = Path(place) / "loop.cpp", Path(place) / "loop.so"
            source.write_text(text, encoding="utf-8")
            subprocess.run([compiler, *options, source, "-o", library], check=True, capture_output=True, text=True)
            loaded = ctypes.CDLL(str(library))
            if file is not None:
                os.replace(library, file)
            return loaded
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if "error" in line] or ["no reason given"]
        raise NotBuilt(f"{compiler} failed: {said[0][-150:]}") from error
    except OSError as error:
        raise NotBuilt(str(error)) from error


def _key(text: str, compiler: str, options: tuple[str, ...]) -> str:
    """What a library is found by: everything that decides its instructions."""
    made_with = text, compiler, _version(compiler), options, _processor()
    return hashlib.sha256(repr(made_with).encode()).hexdigest()[:40]


@cache
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout


@cache
def _processor() -> str:
    """The kind of processor, with all instructions that it knows: `-march=native` uses them."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = {line.partition(":")[0].strip(): line for line in file.read().partition("\n\n")[0].splitlines()}
        about = [lines.get(name, "") for name in ("model name", "flags", "CPU part", "Features")]
    except OSError:  # not Linux
        about = [platform.processor()]
    return " ".join((platform.system(), platform.machine(), *about))


def _private(folder: Path) -> Path | None:
    """The folder, made if it is not there. None if it cannot be used, or if others could write to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return None
    return folder if _is_ours(folder) and os.access(folder, os.W_OK) else None


def _is_ours(path: Path) -> bool:
    """Whether only this user can write to a file or a folder, which is not a link."""
    try:
        about = path.lstat()
    except OSError:
        return False
    if stat.S_ISLNK(about.st_mode):
        return False
    return not hasattr(os, "getuid") or (about.st_uid == os.getuid() and not about.st_mode & 0o022)
