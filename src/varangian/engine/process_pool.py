"""Work spread over processes, one piece at a time each; a process that dies costs only its own piece."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pickle import PicklingError
from typing import Generic, TypeVar, cast

from varangian.core.errors import BadInput
from varangian.core.user_code import carried

Piece = TypeVar("Piece")
Done = TypeVar("Done")

TRIES = 2
"""How often a piece is given out: a process may have been killed for its neighbour's appetite."""


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Lost:
    """What came of a piece whose process died each time."""

    exit_code: int | None
    """As far as it is known: of a process on another machine it is not."""

    def __str__(self) -> str:
        if self.exit_code is None:
            return f"its process died {TRIES} times; memory may be short"
        if self.exit_code < 0:
            return f"its process was killed {TRIES} times (signal {-self.exit_code}); memory may be short"
        return f"its process ended {TRIES} times (status {self.exit_code})"


@dataclass(frozen=True, eq=False)
class _Worker:
    process: BaseProcess
    line: Connection[object, object]


def in_processes(
    work: Callable[[Piece], Done],
    pieces: Sequence[Piece],
    jobs: int,
    begin: Callable[[Piece], object] = lambda piece: None,
) -> Generator[tuple[Piece, Done | Lost]]:
    """Each piece and what came of it, as they finish, from `jobs` processes.

    `work` and its pieces must be picklable. Whoever stops asking ends the processes.

    >>> sorted(in_processes(abs, [-2, 3], jobs=1))
    [(-2, 2), (3, 3)]
    """
    waiting = deque((piece, 1) for piece in pieces)
    idle: list[_Worker] = []
    busy: dict[_Worker, tuple[Piece, int]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                worker = idle.pop() if idle else _hired(carried(work))
                piece, tries = waiting.popleft()
                busy[worker] = piece, tries
                begin(piece)
                with suppress(OSError):  # it has just died: its line will say so
                    worker.line.send(piece)
            ready = set(wait([worker.line for worker in busy]))
            for worker in [worker for worker in busy if worker.line in ready]:
                piece, tries = busy.pop(worker)
                try:
                    done = cast(Done, worker.line.recv())
                except (EOFError, OSError):
                    worker.process.join()
                    if tries < TRIES:
                        waiting.appendleft((piece, tries + 1))
                    else:
                        yield piece, Lost(worker.process.exitcode)
                else:
                    idle.append(worker)
                    yield piece, done
    finally:
        for worker in (*idle, *busy):
            worker.process.terminate()
        for worker in (*idle, *busy):
            worker.process.join()


@dataclass(frozen=True, eq=False)
class Assistant(Generic[Piece, Done]):
    """A process that works while this one goes on."""

    _worker: _Worker

    def begin(self, piece: Piece) -> None:
        """Give it a piece."""
        with suppress(OSError):  # it has died, as `end` will tell
            self._worker.line.send(piece)

    def end(self) -> Done | Lost:
        """Wait until it has done its piece."""
        try:
            return cast(Done, self._worker.line.recv())
        except (EOFError, OSError):
            self._worker.process.join()
            return Lost(self._worker.process.exitcode)


@contextmanager
def assistant(
    work: Callable[[Piece], Done], ready: Callable[[], object] | None = None
) -> Generator[Assistant[Piece, Done]]:
    """A process for `work`, which imports what it needs at once, and then calls `ready`. It ends with the context.

    >>> with assistant(abs) as helper:
    ...     helper.begin(-2)
    ...     helper.end()
    2
    """
    worker = _hired(work, ready)
    try:
        yield Assistant(worker)
    finally:
        worker.process.terminate()
        worker.process.join()


def _hired(work: Callable[[Piece], Done], ready: Callable[[], object] | None = None) -> _Worker:
    # Spawned, for a forked process cannot use CUDA, and inherits the locks of threads it does not have.
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, work, ready), daemon=True)
    try:
        with _deaf():
            process.start()
    except (PicklingError, AttributeError, TypeError) as error:
        raise BadInput(f"this cannot be sent to other processes, use one job: {error}") from error
    theirs.close()  # else the end of the process would not be the end of the line
    return _Worker(process, ours)


@contextmanager
def _deaf() -> Generator[None]:
    """Processes that start now ignore interrupts from their first moment. An interrupt is for whoever started them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(
    line: Connection[object, object], work: Callable[[object], object], ready: Callable[[], object] | None
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if ready is not None:
        ready()
    gc.freeze()  # what was imported stays, so nobody needs to look through it for garbage
    try:
        while True:
            line.send(work(line.recv()))
    except (EOFError, BrokenPipeError):
        pass  # nobody asks any more
