"""The time of a round of the paper's rule against a lower bound: its operations and bytes at measured rates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from bench.timing import Rates, Row, best
from bench.workloads import Workload, convolutional, localization, softmax

Make = Callable[[], Workload]


def workloads(device: str, quick: bool) -> Iterator[tuple[Make, float]]:
    """The networks, each with the seconds to measure it."""
    for agents in (100, 10_000) if quick else (100, 10_000, 1_000_000):
        yield partial(localization, agents, device), 3.0
    yield lambda: softmax(30, None, device), 2.0
    yield lambda: softmax(1000, 20, device), 3.0
    for agents in (10,) if quick else (10, 30, 100):
        yield partial(convolutional, agents, device), 4.0
    if device.startswith("cuda"):
        for agents in (10,) if quick else (10, 30, 100):
            yield partial(convolutional, agents, device, "bfloat16"), 4.0


def row(load: Workload, rates: Rates, seconds: float) -> Row:
    """One line of the table."""
    slow = load.convolves and rates.device == "cpu" and load.world.agents > 30  # takes minutes: no warm-up
    with load.rounds() as play:
        time = best(play, seconds, rates.device, warm=not slow)
    arithmetic = load.flops / (rates.fast_flops if load.convolves else rates.flops)
    traffic = load.bytes / rates.bytes
    return {
        "workload": load.name,
        "edges": load.edges,
        "GFLOP": load.flops / 1e9,
        "MB": load.bytes / 1e6,
        "bound by": "arithmetic" if arithmetic > traffic else "memory",
        "least ms": 1e3 * max(arithmetic, traffic),
        "round ms": 1e3 * time,
        "times the least": time / max(arithmetic, traffic),
        "fraction reached": max(arithmetic, traffic) / time,
        "ns per edge": 1e9 * time / load.edges,
    }


def rows(rates: Rates, quick: bool) -> list[Row]:
    out: list[Row] = []
    for make, seconds in workloads(rates.device, quick):
        out.append(row(make(), rates, seconds))
        print(f"{out[-1]['workload']}: {out[-1]['round ms']:.3g} ms per round", flush=True)
    return out
