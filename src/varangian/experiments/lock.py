"""Allows one writer at a time in a folder: the file `.lock` names the process that writes there."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from varangian.core.errors import BadInput

try:
    import fcntl
except ImportError:  # not a Unix system
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
PATIENCE = 0.1
"""Seconds to keep trying: another process may hold the lock for a moment, to check whether it is free."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder for writing. Raises `BadInput` if another process writes to it.

    The operating system releases the lock of a process that dies, so users never have to remove it.
    """
    path = folder / LOCK
    handle = _taken(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def check_free(folder: Path) -> None:
    """Raise `BadInput` if another process writes to the folder. Changes nothing in it."""
    try:
        handle = os.open(folder / LOCK, os.O_RDWR)
    except OSError:
        return  # it is not locked; missing write permission is reported later
    try:
        if not _lock(handle):
            raise _busy(folder / LOCK)
    finally:
        os.close(handle)


def _taken(path: Path) -> int:
    last = time.monotonic() + PATIENCE
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if _lock(handle):
            if _is_still(handle, path):
                os.truncate(handle, 0)
                os.write(handle, f"{os.getpid()} {socket.gethostname()}\n".encode())
                return handle
            os.close(handle)  # the last owner removed this file after we opened it
        else:
            os.close(handle)
            if time.monotonic() > last:
                raise _busy(path)
            time.sleep(PATIENCE / 10)


def _is_still(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _lock(handle: int) -> bool:
    """Lock an open file. False if another process holds the lock."""
    if fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        except OSError:
            pass  # a file system without locks
    number, host = _owner(os.pread(handle, 300, 0))
    return not number or (host == socket.gethostname() and not _is_alive(number))


def _is_alive(process: int) -> bool:
    if os.name != "posix":
        return True  # os.kill would end the process here; the message says which file to remove
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _owner(text: bytes) -> tuple[int, str]:
    number, _, host = text.decode(errors="replace").strip().partition(" ")
    return int(number) if number.isdigit() else 0, host


def _busy(path: Path) -> BadInput:
    number, host = _owner(path.read_bytes()) if path.exists() else (0, "")
    who = f"process {number} on {host}" if number else "another process"
    return BadInput(f"{path.parent} is in use by {who}; wait until it ends, or name another folder")
