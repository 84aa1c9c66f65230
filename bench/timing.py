"""How long something takes, how fast the machine is at the two things everything is made of, and tables of both."""

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
    """Seconds a call takes at best, of as many as fit into some seconds: on a busy machine the best tells."""
    return best_each([play], seconds, device, warm)[0]


def best_each(
    plays: Sequence[Callable[[], object]], seconds: float = 2.0, device: str = "cpu", warm: bool = True
) -> list[float]:
    """The best of each of several calls, made in turn, so that what disturbs one disturbs the others too."""
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
    """Seconds a call takes at best when many are made one after another, as rounds are."""

    def several() -> None:
        for _ in range(calls):
            play()

    return best(several, seconds, device) / calls


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


class Rates(NamedTuple):
    """What a machine can do: floating-point operations and bytes a second."""

    device: str
    flops: float
    """Of a large matrix product in float32, as torch does it here."""
    fast_flops: float
    """Of one in the coarser numbers that convolutions use on a GPU (TF32); the same on a CPU."""
    bytes: float
    """Of a large copy, read and written."""


def rates(device: str) -> Rates:
    """Measured now, with as many threads as torch uses."""
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
    """A large copy, and how many bytes it reads and writes."""
    source = torch.rand(2**28 if device.startswith("cuda") else 2**25, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source), 2 * source.numel() * source.element_size()


def machine(device: str, found: Rates) -> Row:
    """What was measured on."""
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
    """A number with three digits, as tables have it.

    >>> formatted(0.012345), formatted(1234567.0), formatted("text"), formatted(None)
    ('0.0123', '1,234,567', 'text', '')
    """
    if value is None:
        return ""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
