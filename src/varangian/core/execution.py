"""Where a run computes, and how much of the machine it may use: one value that is passed along.

Results do not depend on it, up to rounding.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeVar, cast, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

Done = TypeVar("Done")
Value = TypeVar("Value")

CPU = torch.device("cpu")
_PIECES = 64
"""A memory budget is divided by this number; the code works on one such piece at a time."""


@dataclass(frozen=True)
class Execution:
    """A device, and how much of it a run may use.

    >>> Execution(threads=2).each(lambda a, b: a + b, [1, 2], [10, 20])
    [11, 22]
    """

    device: torch.device = CPU
    threads: int | None = None
    """How many blocks to work on at once. By default as many as torch uses threads."""
    torch_threads: int | None = None
    """How many threads share one torch operation. This is 1 where each block has its own thread. Threads that share
    small operations wait for each other most of the time, above all when other programs use the same cores."""
    memory: int | None = None
    """A memory budget in bytes. By default all memory of the machine."""
    compile: bool = False
    """Whether to compile the functions of a round."""
    own_loops_only: bool = False
    """Whether to compile only what has a loop of ours, which takes seconds once, and not through torch's compiler."""

    @property
    def at_once(self) -> int:
        """How many blocks to work on at once."""
        return self.threads or torch.get_num_threads()

    def each(
        self, function: Callable[..., Done], *parts: Sequence[Any], device: torch.device | None = None
    ) -> list[Done]:
        """Like `list(map(function, *parts))`, but on a CPU with several threads at a time.

        Each call runs in one thread, so that threads do not wait for each other. On a GPU, one thread makes all calls.
        `device` says where the parts are. By default they are on the device of this execution.
        """
        threads = min(self.at_once, len(parts[0]))
        if threads < 2 or (device or self.device).type != "cpu" or _is_traced():
            return list(map(function, *parts))
        learning = torch.is_grad_enabled()

        def with_same_gradients(*part: Any) -> Done:
            with torch.set_grad_enabled(learning):  # a setting of each thread, not inherited
                return function(*part)

        return list(_pool(threads, os.getpid()).map(with_same_gradients, *parts))

    def numbers_at_once(self, usual: int) -> int:
        """How many numbers to hold at a time: `usual`, or fewer if the memory budget is small."""
        return usual if self.memory is None else max(1, min(usual, self.memory // _PIECES // 4))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Set torch's number of threads, and restore it afterwards."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.torch_threads or before)
        try:
            yield
        finally:
            torch.set_num_threads(before)


DEFAULT = Execution()
"""The CPU, with all threads that torch may use."""


@runtime_checkable
class Executable(Protocol):
    """A model or an evaluation that can use several threads, or must respect a memory budget."""

    def using(self, execution: Execution) -> Executable: ...


def using(value: Value, execution: Execution) -> Value:
    """The value with `execution` applied, or the value itself if it has no method `using`."""
    return cast(Value, value.using(execution)) if isinstance(value, Executable) else value


def thread_copy(module: nn.Module) -> nn.Module:
    """The copy of the module for this thread. Threads cannot share one: `functional_call` replaces its parameters."""
    if threading.current_thread() is threading.main_thread():
        return module
    copies: WeakKeyDictionary[nn.Module, nn.Module] = _OF_THREAD.__dict__.setdefault("copies", WeakKeyDictionary())
    if module not in copies:
        copies[module] = copy.deepcopy(module)
    return copies[module]


_OF_THREAD = threading.local()


def _is_traced() -> bool:
    """Whether the operations of this thread are traced or counted. Those of other threads would be missed."""
    return _get_current_dispatch_mode() is not None


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """The threads of this process. A forked process inherits the pool but not its threads, hence `process`."""
    return ThreadPoolExecutor(threads, "varangian", initializer=torch.set_num_threads, initargs=(1,))
