"""Files that are written completely or not at all, and the folder for what can be made again."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path, mode: int = 0o644) -> Iterator[Path]:
    """A temporary file beside `path`. It replaces `path` if the block succeeds, and is deleted if it fails.

    Nobody else can read it before it has its name; then `mode` decides.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        yield Path(name)
        os.chmod(name, mode)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


def linked(source: Path, target: Path) -> None:
    """Give a file a second name; where the file system cannot do that, copy it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        with whole(target) as file:
            shutil.copyfile(source, file)


def cache_folder() -> Path:
    """The folder for downloads, drawn digits and compiled code; the same as ``pooch.os_cache("varangian")``."""
    # Not taken from pooch, because reading must not need it.
    home = Path.home()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else home / "AppData" / "Local") / "varangian" / "varangian" / "Cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "varangian"
    xdg = os.environ.get("XDG_CACHE_HOME", "").strip()
    return (Path(xdg) if xdg else home / ".cache") / "varangian"
