"""Sizes of memory as people type them."""

from __future__ import annotations

import re

from varangian.core.errors import BadInput

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def read_size(text: str | int) -> int:
    """Bytes from text such as `4GiB`, or from a number of bytes.

    >>> read_size("4GiB"), read_size("1.5 MB"), read_size(1000)
    (4294967296, 1500000, 1000)
    """
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", str(text))
    if not found or found[2].upper() not in _UNITS or float(found[1]) <= 0:
        raise BadInput(f"memory takes a size such as 4GiB or 800MB, but got {text!r}")
    return int(float(found[1]) * _UNITS[found[2].upper()])
