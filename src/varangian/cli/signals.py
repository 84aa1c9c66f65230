"""Ctrl-C and SIGTERM, which schedulers send to end a program, do the same: save a checkpoint, and end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

from varangian.engine.cluster import RayCluster

RETRY = 0.05
"""After how many seconds an interrupt that came at a bad moment is sent again."""
_HDF5 = f"{os.sep}h5py{os.sep}"
_WAITING: list[threading.Timer] = []
"""The signal that waits to be sent again, if there is one. Signals belong to the process, and so does this."""


@contextmanager
def terminate_is_interrupt() -> Iterator[None]:
    """Within this block, SIGINT and SIGTERM raise KeyboardInterrupt. At a bad moment they wait until it is over.

    Python drops an exception that is raised in a destructor. There, too, the signal is sent again.
    """
    # Only the main thread may set a signal handler.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A signal that the parent process ignores stays ignored.
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    before = {one: handler for one, handler in before.items() if handler is not signal.SIG_IGN}
    for one in before:
        signal.signal(one, interrupt)
    dropped = sys.unraisablehook

    def not_dropped(what: sys.UnraisableHookArgs) -> None:
        if what.exc_type is KeyboardInterrupt and before:
            _send_again(next(iter(before)))
        else:
            dropped(what)

    sys.unraisablehook = not_dropped
    try:
        yield
    finally:
        sys.unraisablehook = dropped
        for one, handler in before.items():
            signal.signal(one, handler if handler is not None else signal.SIG_DFL)
        waiting = _withdrawn()
    if waiting:
        raise KeyboardInterrupt


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, or send the signal again a little later if this is a bad moment.

    Compiled modules are not made to be interrupted while they load: some turn the interrupt into another error, and
    some end the whole process when it exits. HDF5 turns it into another error where it calls Python.
    """
    if not _is_bad_moment(frame):
        raise KeyboardInterrupt
    _send_again(number)


def _send_again(number: int) -> None:
    if not _WAITING:  # a second signal at a bad moment says nothing new
        later = threading.Timer(RETRY, _send, (number,))
        later.daemon = True
        _WAITING.append(later)
        later.start()


def _send(number: int) -> None:
    _WAITING.clear()
    os.kill(os.getpid(), number)


def _withdrawn() -> bool:
    """Cancel the signal that waits to be sent again. Whether there was one."""
    waiting = [*_WAITING]
    _WAITING.clear()
    for later in waiting:
        later.cancel()
    return bool(waiting)


def _is_bad_moment(frame: FrameType | None) -> bool:
    """Whether the code that runs now was called by an import, or by HDF5."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file == "<frozen importlib._bootstrap>" or _HDF5 in file:
            return True
        frame = frame.f_back
    return False


@contextmanager
def connected(cluster: RayCluster | None) -> Iterator[None]:
    """Connect to a cluster, if one is given. Ray replaces the SIGTERM handler, so we set ours again."""
    with nullcontext() if cluster is None else cluster.connected(), terminate_is_interrupt():
        yield
