"""How long it takes to make the report of a large run, and how large the report is: `python -m bench.report`.

The run is made up: 100 agents with ten neighbours × 500 rounds × 5 rules × 3 scenarios × 5 seeds, five metrics, weights
at 25 rounds. Its numbers are random, so that no real run of this shape compresses worse.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import xarray as xr

from varangian.report.page import write_page
from varangian.report.source import run_of

RULES = ("alone", "average", "distance-based", "loss-based:keep=all", "loss-based")
BYZANTINE = (0, 20, 99)
AGENTS, ROUNDS, SEEDS, SLOTS = 100, 500, 5, 11
SNAPSHOTS = (1, 2, 4, 8, 16, *range(25, 501, 25))


def made_up(seed: int = 0) -> xr.Dataset:
    """Random metrics in the shape of those of a sweep."""
    draw = np.random.default_rng(seed)
    cells = [(rule, count) for count in BYZANTINE for rule in RULES]
    decay = 100 * np.exp(-np.arange(ROUNDS) / 100)[:, None]
    measured = (len(cells), SEEDS, ROUNDS, AGENTS)
    noisy = ("cell", "seed", "round", "agent")
    data = {
        name: (noisy, (draw.lognormal(0, 1, measured) * decay).astype(np.float32)) for name in ("loss", "regret", "msd")
    }
    data["byzantine_weight"] = (noisy, draw.random(measured, dtype=np.float32))
    data["kept"] = (noisy, draw.integers(0, SLOTS, measured).astype(np.float32))
    weights = draw.random((len(cells), SEEDS, len(SNAPSHOTS), AGENTS, SLOTS), dtype=np.float32)
    data["weight"] = (("cell", "seed", "snapshot", "agent", "slot"), weights / weights.sum(-1, keepdims=True))
    others = draw.integers(0, AGENTS, (SEEDS, AGENTS, SLOTS))
    others[:, :, 0] = np.arange(AGENTS)
    data["sender"] = (("seed", "agent", "slot"), others)
    byzantine = np.arange(AGENTS) < np.array([count for _, count in cells])[:, None, None]
    data["byzantine_agent"] = (("cell", "seed", "agent"), np.broadcast_to(byzantine, (len(cells), SEEDS, AGENTS)))
    data["group"] = (("seed", "agent"), np.broadcast_to(np.arange(AGENTS) % 4, (SEEDS, AGENTS)))
    data["position"] = (("seed", "agent", "axis"), draw.random((SEEDS, AGENTS, 2)))
    data["seconds"] = (("cell", "seed"), np.ones((len(cells), SEEDS)))
    coords = {
        "rule": ("cell", [rule for rule, _ in cells]),
        "attack": ("cell", ["uniform"] * len(cells)),
        "byzantine": ("cell", [count for _, count in cells]),
        "seed": np.arange(SEEDS),
        "round": np.arange(1, ROUNDS + 1),
        "agent": np.arange(AGENTS),
        "snapshot": np.array(SNAPSHOTS),
        "slot": np.arange(SLOTS),
    }
    return xr.Dataset(data, coords, {"study": "target-localization", "metric": "loss", "by_group": "0"})


def main() -> None:
    metrics = made_up()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        began = time.perf_counter()
        write_page([run_of(metrics, Path(folder))], path)
        seconds = time.perf_counter() - began
        size = path.stat().st_size
    print(f"{metrics.nbytes / 1e6:.0f} MB of metrics: report in {seconds:.1f} s, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
