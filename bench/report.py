"""How long the report of a large run takes to make, and how large it is: `python -m bench.report`.

The run is made up, and nothing in it repeats, so that no real one of its shape packs worse: 100 agents of ten
neighbours × 500 rounds × 5 rules × 3 scenarios × 5 seeds, five metrics, weights at 25 rounds.
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
    """Metrics of the shape of a sweep's."""
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
    lying = np.arange(AGENTS) < np.array([count for _, count in cells])[:, None, None]
    data["byzantine_agent"] = (("cell", "seed", "agent"), np.broadcast_to(lying, (len(cells), SEEDS, AGENTS)))
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
