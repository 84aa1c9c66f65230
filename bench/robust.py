"""Our robust functions against those of ByzFL and ByzPy, in one run: `python -m bench.robust [--quick] [--csv FILE]`.

Times are milliseconds per call, the best of several, on the same number of threads. Each library gets its preferred
input: ours and ByzFL a stacked tensor, ByzPy a list of vectors. Memory is the peak of the process above what it held
before the call, as a multiple of the input; it is measured for large inputs only. A ratio above one means that our
function is faster.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import math
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from varangian import robust

sys.path.append(str(Path(__file__).parents[1] / "tests" / "helpers"))
import robust_peers

Call = Callable[[Tensor, list[Tensor]], object]
"""A function of the same vectors as a stack and as a list."""

LARGEST = 8 * 2**30
"""The most bytes that a call of another library may need. ByzFL's mixing holds n (n − f) d numbers at once."""
TELLING = 8 * 2**20
"""The size of the input, in bytes, from which the peak memory of the process is meaningful."""


def calls(n: int, d: int) -> Iterator[tuple[str, Call, dict[str, Call]]]:
    """Each of our functions, and the corresponding functions of the other libraries."""
    fl = robust_peers.byzfl()
    column = robust_peers.byzpy("aggregators.coordinate_wise")
    geometric = robust_peers.byzpy("aggregators.geometric_wise")
    norm = robust_peers.byzpy("aggregators.norm_wise")
    before = robust_peers.byzpy("pre_aggregators")
    f, radius = n // 5, math.sqrt(d) / 2
    zero = torch.zeros(d)

    def both(theirs: Any, other: Any) -> dict[str, Call]:
        return {"byzfl": lambda x, _: theirs(x), "byzpy": lambda _, rows: other.aggregate(rows)}

    yield "mean", lambda x, _: robust.mean(x), {"byzfl": lambda x, _: fl.Average()(x)}
    yield "median", lambda x, _: robust.median(x), both(fl.Median(), column.CoordinateWiseMedian())
    yield (
        "trimmed_mean",
        lambda x, _: robust.trimmed_mean(x, f),
        both(fl.TrMean(f), column.CoordinateWiseTrimmedMean(f)),
    )
    yield "mean_around_median", lambda x, _: robust.mean_around_median(x, f), {"byzfl": lambda x, _: fl.Meamed(f)(x)}
    yield "krum", lambda x, _: robust.krum(x, f), both(fl.Krum(f), geometric.Krum(f))
    yield (
        "multi_krum",
        lambda x, _: robust.multi_krum(x, f),
        both(fl.MultiKrum(f), geometric.MultiKrum(f, n - f)),
    )
    yield (
        "geometric_median",
        lambda x, _: robust.geometric_median(x),
        both(fl.GeometricMedian(), geometric.GeometricMedian()),
    )
    yield "monna", lambda x, _: robust.monna(x, f), both(fl.MoNNA(f), geometric.MoNNA(f))
    yield (
        "centred_clipping",
        lambda x, _: robust.centred_clipping(x, radius, zero),
        {
            # ByzFL's object remembers its last result; a new object starts from zero.
            "byzfl": lambda x, _: fl.CenteredClipping(tau=radius)(x),
            "byzpy": lambda _, rows: norm.CenteredClipping(c_tau=radius, M=1, init="zero").aggregate(rows),
        },
    )
    mixing: dict[str, Call] = {"byzpy": lambda _, rows: before.NearestNeighborMixing(f).pre_aggregate(rows)}
    if n * (n - f) * d * 4 < LARGEST:
        mixing["byzfl"] = lambda x, _: fl.NNM(f)(x)
    yield "nearest_neighbour_mixing", lambda x, _: robust.nearest_neighbour_mixing(x, f), mixing
    if math.comb(n, f) < 1000:
        yield (
            "minimum_diameter_average",
            lambda x, _: robust.minimum_diameter_average(x, f),
            both(fl.MDA(f), geometric.MinimumDiameterAveraging(f)),
        )


def measure(call: Callable[[], object], size: int, enough: float = 0.4) -> tuple[float, float]:
    """The best time of several calls in milliseconds, and the memory of the first call.

    There are at least three calls, and more while they take less than `enough` seconds in all. The first call is a
    warm-up. If it takes too long, it is the only one, and counts.
    """
    spans: list[float] = []
    memory = peak(lambda: spans.append(_seconds(call)), size)
    if spans[0] > 2 * enough:
        return 1e3 * spans[0], memory
    del spans[0]
    while len(spans) < 3 or sum(spans) < enough:
        spans.append(_seconds(call))
    return 1e3 * min(spans), memory


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def peak(call: Callable[[], object], size: int) -> float:
    """The peak memory during a call above that before the call, as a multiple of `size`; nan if unknown."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if size < TELLING or not reset.exists():
        call()
        return math.nan
    ctypes.CDLL(None).malloc_trim(0)
    reset.write_text("5")
    before = _kilobytes(status, "VmRSS")
    call()
    return 1024 * (_kilobytes(status, "VmHWM") - before) / size


def _kilobytes(status: Path, name: str) -> int:
    return int(next(line for line in status.read_text().splitlines() if line.startswith(name)).split()[1])


def rows(ns: list[int], ds: list[int]) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    for n in ns:
        for d in ds:
            yield from cells(torch.randn(n, d, generator=generator))


def cells(x: Tensor) -> Iterator[dict[str, Any]]:
    """The rows for every function and every library, on the same vectors."""
    vectors = [row.clone() for row in x]
    size = x.numel() * x.element_size()

    for name, ours, peers in calls(*x.shape):
        mine, memory = measure(partial(ours, x, vectors), size)
        for peer, theirs in peers.items():
            took, needed = measure(partial(theirs, x, vectors), size)
            yield {
                "function": name,
                "n": x.shape[0],
                "d": x.shape[1],
                "peer": peer,
                "ours ms": mine,
                "theirs ms": took,
                "ratio": took / mine,
                "our memory ×": memory,
                "their memory ×": needed,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="skip the largest sizes")
    parser.add_argument("--csv", type=Path, default=Path("runs/robust.csv"), help="where to write the table")
    parser.add_argument("--threads", type=int, default=1, help="the number of threads, for all libraries")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    ns, ds = ([10, 30], [10**4, 10**5]) if chosen.quick else ([10, 30, 100], [10**4, 10**5, 10**6])
    measured: list[dict[str, Any]] = []
    for row in rows(ns, ds):
        measured.append(row)
        print("{function} {n}×{d} against {peer}: {ratio:.1f}×".format(**row), file=sys.stderr, flush=True)
    table = Table(title=f"Robust functions, {chosen.threads} thread(s)")
    for column in measured[0]:
        table.add_column(column, justify="left" if column in ("function", "peer") else "right", no_wrap=True)
    for row in measured:
        table.add_row(*(f"{value:,.2f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console().print(table)
    ratios = [row["ratio"] for row in measured]
    typical = math.exp(sum(map(math.log, ratios)) / len(ratios))
    least = min(measured, key=lambda row: row["ratio"])
    most = max((row["our memory ×"] for row in measured if not math.isnan(row["our memory ×"])), default=math.nan)
    print(f"Geometric mean of {len(ratios)} ratios: {typical:.2f}; our largest memory: {most:.2f}× the input")
    print("Smallest ratio: {ratio:.2f} ({function}, n={n}, d={d}, {peer})".format(**least))
    chosen.csv.parent.mkdir(parents=True, exist_ok=True)
    with chosen.csv.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(measured[0]))
        writer.writeheader()
        writer.writerows(measured)
    print(f"Written to {chosen.csv}")


if __name__ == "__main__":
    main()
