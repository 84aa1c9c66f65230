"""Measures times, and the rates of the machine (arithmetic and memory); prints and writes tables."""

from __future__ import annotations

import csv
import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table

Row = dict[str, Any]


def best(play: Callable[[], object], seconds: float = 2.0, device: str = "cpu", warm: bool = True) -> float:
    """The shortest time of a call, in seconds. Calls are repeated for `seconds` seconds.

    On a busy machine, the shortest time is the most reliable.
    """
    return best_each([play], seconds, device, warm)[0]


def best_each(
    plays: Sequence[Callable[[], object]], seconds: float = 2.0, device: str = "cpu", warm: bool = True
) -> list[float]:
    """The shortest time of each of several calls. They are made in turn, so that a disturbance affects all of them."""
    for play in plays if warm else ():
        play()
    least, until = [math.inf] * len(plays), time.perf_counter() + seconds
    while math.inf in least or time.perf_counter() < until:
        for place, play in enumerate(plays):
            _wait(device)
            start = time.perf_counter()
            play()
            _wait(device)
            least[place] = min(least[place], time.perf_counter() - start)
    return least


def best_of_many(play: Callable[[], object], calls: int, seconds: float = 1.0, device: str = "cpu") -> float:
    """The shortest time of a call, in seconds, when `calls` calls are made one after another, as in a run."""

    def several() -> None:
        for _ in range(calls):
            play()

    return best(several, seconds, device) / calls


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


class Rates(NamedTuple):
    """The rates of a machine: floating-point operations and bytes per second."""

    device: str
    flops: float
    """For a large matrix product in float32, as torch computes it here."""
    fast_flops: float
    """For the same in TF32, the number type of convolutions on a GPU. Equal to `flops` on a CPU."""
    bytes: float
    """For a large copy: bytes read and written."""


def rates(device: str) -> Rates:
    """Measure the rates, with as many threads as torch uses."""
    size = 8192 if device.startswith("cuda") else 2048
    a, b = torch.rand(size, size, device=device), torch.rand(size, size, device=device)
    product = 2 * size**3 / best(lambda: a @ b, 1.5, device)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    fast = 2 * size**3 / best(lambda: a @ b, 1.5, device) if device.startswith("cuda") else product
    torch.backends.cuda.matmul.allow_tf32 = before
    copy, moved = copying(device)
    return Rates(device, product, fast, moved / best(copy, 1.5, device))


def copying(device: str) -> tuple[Callable[[], object], int]:
    """A function that makes a large copy, and how many bytes that reads and writes."""
    source = torch.rand(2**28 if device.startswith("cuda") else 2**25, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source), 2 * source.numel() * source.element_size()


def machine(device: str, found: Rates) -> Row:
    """A description of the machine."""
    name = torch.cuda.get_device_name() if device.startswith("cuda") else _processor()
    return {
        "device": name,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "matrix product, GFLOP/s": found.flops / 1e9,
        "in TF32, GFLOP/s": found.fast_flops / 1e9,
        "copy, GB/s": found.bytes / 1e9,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def show(rows: Sequence[Row], title: str, path: Path | None = None) -> None:
    """Print a table and write it as CSV."""
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
    for row in rows:
        table.add_row(*(formatted(value) for value in row.values()))
    Console(width=160).print(table)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        print(f"Written to {path}")


def formatted(value: Any) -> str:
    """A value as text for tables; numbers with three digits.

    >>> formatted(0.012345), formatted(1234567.0), formatted("text"), formatted(None)
    ('0.0123', '1,234,567', 'text', '')
    """
    if value is None:
        return ""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
