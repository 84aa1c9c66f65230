"""How much memory the machine has, and whether something fits into it."""

from __future__ import annotations

import os
import re

import torch

from varangian.errors import BadInput

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def read_size(text: str | int) -> int:
    """The number of bytes that a text such as `4GiB` means; a number is taken as bytes.

    >>> read_size("4GiB"), read_size("1.5 MB"), read_size(1000)
    (4294967296, 1500000, 1000)
    """
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", str(text))
    if not found or found[2].upper() not in _UNITS or float(found[1]) <= 0:
        raise BadInput(f"memory must be a size such as 4GiB or 800MB, but is {text!r}")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def check_fits(more: int, what: str, device: torch.device | str = "cpu", budget: int | None = None) -> None:
    """Raise an error if something does not fit into memory, together with what the process already holds.

    Args:
        more: How many bytes it needs.
        what: Its name in the error message.
        device: The device that must hold it.
        budget: How many bytes the process may hold. By default all memory of the device.

    >>> check_fits(10**9, "a network", budget=100 * 2**20)
    Traceback (most recent call last):
    varangian.errors.BadInput: a network needs about ... GiB of memory, but only 0.1 GiB is available; ...
    """
    place = torch.device(device)
    needed, most = _held(place) + more, budget if budget is not None else _most(place)
    if needed > most:
        hint = "use fewer agents or edges" + (", or allow more memory" if budget is not None else "")
        raise BadInput(f"{what} needs about {_gib(needed)} of memory, but only {_gib(most)} is available; {hint}")


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
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 2**62


def _gib(number: int) -> str:
    return f"{number / 2**30:.1f} GiB"
