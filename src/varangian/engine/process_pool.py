"""Work spread over processes, one piece at a time each; a process that dies costs only its own piece."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from pickle import PicklingError
from typing import Any, Generic, NamedTuple, Self, TypeVar, cast

from varangian.core.errors import BadInput
from varangian.core.user_code import carried

Piece = TypeVar("Piece")
Done = TypeVar("Done")

TRIES = 2
"""How often a piece is given out: a process may have been killed for its neighbour's appetite."""
GRACE = 10.0
"""Seconds that a process has to save its work when it is told to end."""


def cores() -> int:
    """How many cores this process may use."""
    those = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(those, _of_container()))


def _of_container(limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """How many cores' time a container or a scheduler grants, on Linux. It grants 250000 of 100000 for two and a half.

    >>> _of_container(Path("no such file")) > 1000
    True
    """
    try:
        granted, period = limit.read_text(encoding="utf-8").split()
        return round(int(granted) / int(period))
    except (OSError, ValueError, ZeroDivisionError):  # no such file, or "max": there is no limit
        return 2**31


def check_jobs(jobs: int) -> None:
    """Refuse a number of processes below 1."""
    if jobs < 1:
        raise BadInput(f"jobs must be at least 1, but is {jobs}")


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


class _Told(NamedTuple):
    """What a process says about the piece it works on."""

    value: Any


class _Finished(NamedTuple):
    """What came of a piece."""

    result: Any


Tell = Callable[[Any], object]
"""Tells the process that gave out a piece something about it, while the work goes on."""


class Workers(Generic[Piece, Done]):
    """Processes that do one piece of work each at a time, while this one goes on. They end with the context.

    A piece whose process dies is given out once more.

    Args:
        work: Computes a piece; it may `Tell` about it meanwhile. It and its pieces must be picklable.
        most: How many processes there may be. They start when there is work for them.
        begin: Called with every piece that is given out.
        told: Called with a piece and what was told about it.
    """

    def __init__(
        self,
        work: Callable[[Piece, Tell], Done],
        most: int,
        begin: Callable[[Piece], object] = lambda piece: None,
        told: Callable[[Piece, Any], object] = lambda piece, value: None,
    ) -> None:
        self._work, self._most, self._begin, self._told = work, most, begin, told
        self._idle: list[_Worker] = []
        self._busy: dict[_Worker, tuple[Piece, int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End all processes. One that saves its work when it is told to end has some seconds for that."""
        everyone = [*self._idle, *self._busy]
        for worker in everyone:
            worker.process.terminate()
        until = time.monotonic() + GRACE
        for worker in everyone:
            _end(worker, until - time.monotonic())

    @property
    def pieces(self) -> list[Piece]:
        """The pieces that are worked on."""
        return [piece for piece, _ in self._busy.values()]

    @property
    def free(self) -> bool:
        """Whether another piece can be given out."""
        return len(self._busy) < self._most

    def give(self, piece: Piece, tries: int = 1) -> None:
        """Give out a piece."""
        worker = self._idle.pop() if self._idle else _hired(carried(self._work))
        self._busy[worker] = piece, tries
        self._begin(piece)
        with suppress(OSError):  # it has just died: its line will say so
            worker.line.send(piece)

    def look(self, seconds: float | None = 0.0) -> list[tuple[Piece, Done | Lost]]:
        """The pieces that are finished. If there is nothing new, wait for up to so many seconds; None is for ever."""
        ready = set(wait([worker.line for worker in self._busy], seconds))
        found = list[tuple[Piece, Done | Lost]]()
        for worker in [worker for worker in self._busy if worker.line in ready]:
            piece, tries = self._busy[worker]
            try:
                with interrupted_later():  # half of a message would be taken for the beginning of another one
                    said = worker.line.recv()
                    while isinstance(said, _Told):
                        self._told(piece, said.value)
                        said = worker.line.recv() if worker.line.poll() else None
            except (EOFError, OSError):
                del self._busy[worker]
                _end(worker)
                if tries < TRIES:
                    self.give(piece, tries + 1)
                else:
                    found.append((piece, Lost(worker.process.exitcode)))
            else:
                if isinstance(said, _Finished):
                    del self._busy[worker]
                    self._idle.append(worker)
                    found.append((piece, cast(Done, said.result)))
        return found


def _end(worker: _Worker, seconds: float = 1.0) -> None:
    """Wait for the end of a process, which is near. Kill it if it takes longer than so many seconds."""
    worker.process.join(max(0.0, seconds))
    worker.process.kill()
    worker.process.join()


@contextmanager
def interrupted_later() -> Generator[None]:
    """Interrupts that come within this block are raised at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = list[int]()
    before = {one: handler for one in (signal.SIGINT, signal.SIGTERM) if callable(handler := signal.getsignal(one))}
    for one in before:
        signal.signal(one, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        if came:
            signal.raise_signal(came[0])


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
    waiting = deque(pieces)
    with Workers(partial(_tell_nothing, work), jobs, begin) as workers:
        while waiting or workers.pieces:
            while waiting and workers.free:
                workers.give(waiting.popleft())
            yield from workers.look(None)


def _tell_nothing(work: Callable[[Piece], Done], piece: Piece, tell: Tell) -> Done:
    return work(piece)


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
            return cast(Done, cast(_Finished, self._worker.line.recv()).result)
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
    worker = _hired(partial(_tell_nothing, work), ready)
    try:
        yield Assistant(worker)
    finally:
        worker.process.terminate()
        worker.process.join()


def _hired(work: Callable[[Piece, Tell], Done], ready: Callable[[], object] | None = None) -> _Worker:
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
    line: Connection[object, object], work: Callable[[object, Tell], object], ready: Callable[[], object] | None
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()
    if ready is not None:
        ready()
    gc.freeze()  # what was imported stays, so nobody needs to look through it for garbage
    try:
        while True:
            line.send(_Finished(work(line.recv(), lambda value: line.send(_Told(value)))))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        pass  # nobody asks any more


def _end_with_parent() -> None:
    """End this process when the one that started it dies, even if it is killed.

    Nobody would read what this one computes. And it might write to a folder in which another run goes on.
    """
    parent = parent_process()

    def wait_for_end() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait_for_end, daemon=True).start()
