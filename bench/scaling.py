"""Time and memory of a round against agents, degree and parameters: `python -m bench.scaling [--quick]`.

Every point is measured in a separate process, so that its memory can be measured. Writes `scaling.csv`, `exponents.csv`
and `scaling.png`. The exponents are fitted to the upper part of each curve, where fixed costs are negligible.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.timing import Row, best, show
from bench.workloads import Workload, localization
from varangian import attacks
from varangian.core.graph import Graph
from varangian.core.models.base import Formula, Models, Sample
from varangian.core.scene import Scene
from varangian.core.task import Task
from varangian.engine.world import prepare
from varangian.studies.target_localization import target_localization

SWEEPS: dict[str, list[int]] = {
    "agents": [10**2, 10**3, 10**4, 10**5, 10**6],
    "degree": [2, 4, 10, 20, 50, 100],
    "parameters": [10**2, 10**3, 10**4, 10**5, 10**6, 10**7],
}
FITTED_FROM = {"agents": 10**4, "degree": 10, "parameters": 10**4}


class Level:
    """A stream of one number per agent, for models of any size."""

    agents = 8

    def samples(self, draws: Any, start: int, rounds: int, dtype: torch.dtype) -> Sample:
        time = torch.arange(start, start + rounds, dtype=dtype)[:, None]
        return (torch.sin(time + torch.arange(self.agents, dtype=dtype)),)

    def to(self, device: torch.device) -> Level:
        return self


def mean_square(theta: Tensor, sample: Sample) -> Tensor:
    return (theta - sample[0][..., None]).square().mean(-1)


def slope(theta: Models, sample: Sample) -> Models:
    return (theta - sample[0][:, None]) * (2 / theta.shape[1])


def load_of(sweep: str, size: int) -> Workload:
    """The network of one point."""
    if sweep == "agents":
        return localization(size)
    if sweep == "degree":
        agents = 20_000
        scene = Scene(target_localization(agents=agents).task(0), Graph.ring(agents, size // 2))
        name, attack = f"localization, degree {size}", attacks.uniform(15, 16)
    else:
        scene = Scene(Task(Formula(size, mean_square, slope), Level(), step_size=0.1), Graph.ring(Level.agents))
        name, attack = f"{size:,} parameters", attacks.uniform(0, 1)
    return Workload(name, lambda execution: prepare([scene], [0], 0.2, execution), attack, 0, 0)


def point(sweep: str, size: int) -> None:
    """Measure one point and print it. A small network runs first, so that all libraries are loaded."""
    with load_of(sweep, SWEEPS[sweep][0]).rounds() as play:
        play()
    empty = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    load = load_of(sweep, size)
    with load.rounds() as play:
        seconds = best(play, 3.0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(json.dumps({"seconds": seconds, "mib": peak - empty, "edges": load.edges}))


def measured(sweep: str, size: int) -> Row:
    program = f"from bench.scaling import point; point({sweep!r}, {size})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    print(f"{size:,} {sweep}: {1e3 * found['seconds']:.3g} ms, {found['mib']:.0f} MiB", flush=True)
    return {
        "sweep": sweep,
        "size": size,
        "edges": found["edges"],
        "round ms": 1e3 * found["seconds"],
        "MiB": found["mib"],
    }


def exponents(rows: Sequence[Row]) -> list[Row]:
    """The exponent b of time = a · sizeᵇ, and the same of memory, fitted to the sizes in `FITTED_FROM` and above."""
    out: list[Row] = []
    for sweep, least in FITTED_FROM.items():
        fitted = [row for row in rows if row["sweep"] == sweep and float(row["size"]) >= least]
        line: Row = {"sweep": sweep, "from": least}
        for name in ("round ms", "MiB"):
            x = np.log([float(row["size"]) for row in fitted])
            line[f"exponent of {name}"] = float(np.polyfit(x, np.log([float(row[name]) for row in fitted]), 1)[0])
        out.append(line)
    return out


def plot(rows: Sequence[Row], fits: Sequence[Row], path: Path) -> None:
    """A figure with two rows of three plots: time above, memory below."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure, axes = plt.subplots(2, 3, figsize=(10, 5.6), sharex="col", layout="constrained")
    for column, fit in enumerate(fits):
        some = [row for row in rows if row["sweep"] == fit["sweep"]]
        size = np.array([float(row["size"]) for row in some])
        for axis, name, unit in zip(
            axes[:, column], ("round ms", "MiB"), ("ms per round", "MiB in total"), strict=True
        ):
            value = np.array([float(row[name]) for row in some])
            power = fit[f"exponent of {name}"]
            axis.loglog(size, value, "o-", color="#1f4e79", markersize=4)
            upper = size >= fit["from"]
            anchor = math.exp(np.mean(np.log(value[upper])) - power * np.mean(np.log(size[upper])))
            axis.loglog(size[upper], anchor * size[upper] ** power, "--", color="#c55a11", label=f"∝ n^{power:.2f}")
            axis.grid(True, which="major", linewidth=0.3)
            for scale in (axis.xaxis, axis.yaxis):
                spread = np.ptp(np.log10(size if scale is axis.xaxis else value))
                scale.set_major_locator(LogLocator(subs=(1, 2, 5) if spread < 2.5 else (1,)))
                scale.set_major_formatter(
                    FuncFormatter(lambda number, _: f"{number:g}" if number < 1e4 else f"{number:.0e}")
                )
                scale.set_minor_formatter(NullFormatter())
            axis.legend(frameon=False)
            axis.set_ylabel(unit if column == 0 else "")
        axes[1, column].set_xlabel(fit["sweep"])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    print(f"Written to {path}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="skip the largest size of each sweep")
    parser.add_argument("--plot", action="store_true", help="only plot what was measured before")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    asked = parser.parse_args()
    out: Path = asked.out / "cpu"
    if asked.plot:
        with (out / "scaling.csv").open(encoding="utf-8") as file:
            rows: list[Row] = list(csv.DictReader(file))
    else:
        sizes = {sweep: all_[:-1] if asked.quick else all_ for sweep, all_ in SWEEPS.items()}
        rows = [measured(sweep, size) for sweep, some in sizes.items() for size in some]
        show(rows, "Time and memory of a round", out / "scaling.csv")
    fits = exponents(rows)
    show(fits, "Fitted exponents", out / "exponents.csv")
    plot(rows, fits, out / "scaling.png")


if __name__ == "__main__":
    main()
