"""Where a run computes, and with how much of the machine: one value that is passed along.

What is computed never depends on it, up to rounding.
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
"""A memory budget is cut into this many pieces, one of which is worked on at a time."""


@dataclass(frozen=True)
class Execution:
    """A device, and how much of it may be used.

    >>> Execution(threads=2).each(lambda a, b: a + b, [1, 2], [10, 20])
    [11, 22]
    """

    device: torch.device = CPU
    threads: int | None = None
    """How many blocks are worked on at once. By default as many as torch uses threads."""
    torch_threads: int | None = None
    """How many threads share one operation. One where blocks have a thread each: threads that share small operations
    wait for each other more than they compute, above all when other programs use the same cores."""
    memory: int | None = None
    """A budget in bytes. By default what the machine has."""
    compile: bool = False
    """Compile a round's functions for the CPU."""

    @property
    def at_once(self) -> int:
        """How many blocks are worked on at once."""
        return self.threads or torch.get_num_threads()

    def each(
        self, function: Callable[..., Done], *parts: Sequence[Any], device: torch.device | None = None
    ) -> list[Done]:
        """`function` of every first part, every second, …; several at a time on a CPU with several threads.

        One thread works on a whole block, so that threads need not wait for each other. A GPU gets its work from one
        thread; `device` says where the parts are, if not on the device of this execution.
        """
        threads = min(self.at_once, len(parts[0]))
        if threads < 2 or (device or self.device).type != "cpu" or _is_traced():
            return list(map(function, *parts))
        learning = torch.is_grad_enabled()

        def with_same_gradients(*part: Any) -> Done:
            with torch.set_grad_enabled(learning):  # every thread has its own setting
                return function(*part)

        return list(_pool(threads, os.getpid()).map(with_same_gradients, *parts))

    def numbers_at_once(self, usual: int) -> int:
        """How many numbers to hold at a time: as many as usual, or less where the budget is small."""
        return usual if self.memory is None else max(1, min(usual, self.memory // _PIECES // 4))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Set torch's number of threads, and put it back after."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.torch_threads or before)
        try:
            yield
        finally:
            torch.set_num_threads(before)


DEFAULT = Execution()
"""The CPU, with all that torch may use."""


@runtime_checkable
class Executable(Protocol):
    """A model or an evaluation that can use several threads, or has to keep to a memory budget."""

    def using(self, execution: Execution) -> Executable: ...


def using(value: Value, execution: Execution) -> Value:
    """The value as it computes under `execution`; unchanged where it has no `using`."""
    return cast(Value, value.using(execution)) if isinstance(value, Executable) else value


def thread_copy(module: nn.Module) -> nn.Module:
    """A copy of the module for this thread: `functional_call` swaps its parameters while it runs."""
    if threading.current_thread() is threading.main_thread():
        return module
    copies: WeakKeyDictionary[nn.Module, nn.Module] = _OF_THREAD.__dict__.setdefault("copies", WeakKeyDictionary())
    if module not in copies:
        copies[module] = copy.deepcopy(module)
    return copies[module]


_OF_THREAD = threading.local()


def _is_traced() -> bool:
    """Whether this thread's operations are traced or counted, which other threads' would not be."""
    return _get_current_dispatch_mode() is not None


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads of this process: a forked process inherits the pool but not its threads."""
    return ThreadPoolExecutor(threads, "varangian", initializer=torch.set_num_threads, initargs=(1,))
