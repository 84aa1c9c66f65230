"""How much memory the machine has, and whether something fits into it."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

import torch

from varangian.core.errors import BadInput

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Two options of glibc's `mallopt`, as its header `malloc.h` has them."""


def check_fits(
    more: int,
    what: str,
    device: torch.device | str = "cpu",
    budget: int | None = None,
    hint: str = "use fewer agents or edges",
) -> None:
    """Raise an error if something does not fit into memory, together with what the process already holds.

    Args:
        more: How many bytes it needs.
        what: Its name in the error message.
        device: The device that must hold it.
        budget: How many bytes the process may hold. By default all memory of the device.
        hint: What to do.

    >>> check_fits(10**9, "a network", budget=100 * 2**20)
    Traceback (most recent call last):
    varangian.core.errors.BadInput: a network needs about ... GiB of memory, but only 0.1 GiB is available; ...
    """
    place = torch.device(device)
    needed, most = _held(place) + more, budget if budget is not None else _most(place)
    if needed > most:
        hint += ", or allow more memory" if budget is not None else ""
        raise BadInput(f"{what} needs about {_gib(needed)} of memory, but only {_gib(most)} is available; {hint}")


def give_back() -> None:
    """Give freed memory back to the operating system, where the C library can do that (glibc).

    Threads that work on blocks leave much of it behind, and what comes next would be added to it.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def keep_freed() -> None:
    """Keep freed memory for the next arrays of this process, where the C library can do that (glibc).

    By default, arrays of a few megabytes go back to the operating system as soon as they are freed. To get them again,
    one page at a time, can take as long as to compute with them.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if set_option is not None:
        set_option(_TRIM_THRESHOLD, 2**28)
        set_option(_MMAP_THRESHOLD, 2**25)


def machine_memory() -> int:
    """The bytes of memory that the machine, or the container that this process runs in, has."""
    return _most(torch.device("cpu"))


def _held(device: torch.device) -> int:
    """The bytes that the process holds now; on a GPU, those that torch holds."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):  # not Linux: unknown, count from 0
        return 0


def _most(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        machine = 2**62
    return min(machine, _of_container())


@cache
def _of_container() -> int:
    """The limit that a container or a scheduler sets, on Linux. A process that goes beyond it is killed."""
    limits = [2**62]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                limits.append(int(file.read()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return min(limits)


def _gib(number: int) -> str:
    return f"{number / 2**30:.1f} GiB"
