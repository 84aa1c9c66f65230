"""Ray clusters that this process starts, and their processes; other clusters on the same machine are left alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def add_machine(cluster: Any) -> Any:
    """One more machine with one core and no GPU. A busy computer may need long to start it."""
    about: dict[str, Any] = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 100 * 2**20}
    node = cluster.add_node(wait=False, include_dashboard=False, **about)
    cluster.wait_for_nodes(timeout=1200)
    return node


def workers(title: str, driver: int | None = None) -> list[int]:
    """Processes whose title begins with `ray::` and this, on a cluster that `driver` (by default this one) started."""
    return [process for process, name in _titles() if name.startswith(f"ray::{title}") and _of(driver, process)]


def _titles() -> Iterator[tuple[int, str]]:
    for place in Path("/proc").glob("[0-9]*"):
        try:
            yield int(place.name), (place / "cmdline").read_text(errors="replace")
        except OSError:  # it has just ended
            continue


def _of(driver: int | None, process: int) -> bool:
    """A worker's parent is a raylet, and a raylet's parent is the process that started the cluster."""
    return parent(parent(process)) == (os.getpid() if driver is None else driver)


def parent(process: int) -> int:
    """The parent of a process; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
