"""The whole command, from typing to report, for networks of several sizes: `python -m bench.whole [--agents N …]`.

Each command runs in a process of its own. Writes `whole.csv`: time, CPU time and memory of the command, and the CPU
time of its phases. On a busy machine only CPU time tells something.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.timing import Row, show
from varangian.core.stopwatch import PHASES

PROGRAM = (
    "import sys, time; from varangian.core.stopwatch import Stopwatch; Stopwatch.clock = time.process_time; "
    "from varangian.cli import main; sys.argv = ['varangian', *sys.argv[1:]]; main()"
)
"""The command line, with phases measured in CPU time of all threads."""


def measured(agents: int, rounds: int) -> Row:
    """One command: seconds, CPU seconds, GiB, and the CPU seconds of every phase."""
    with tempfile.TemporaryDirectory() as place:
        asked = ["run", "target-localization", "--rule", "loss-based", "--byzantine", "0", "--set", f"agents={agents}"]
        words = [sys.executable, "-c", PROGRAM, *asked, "--rounds", str(rounds), "--out", f"{place}/run", "--timings"]
        began = time.perf_counter()
        child = os.posix_spawn(sys.executable, [*words, "-q"], os.environ)
        _, status, used = os.wait4(child, 0)
        seconds = time.perf_counter() - began
        if status:
            raise SystemExit(f"the command for {agents:,} agents ended with {os.waitstatus_to_exitcode(status)}")
        with open(f"{place}/run/timings.csv", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    spent = {phase: sum(float(row["seconds"]) for row in rows if row["phase"] == phase) for phase in PHASES}
    cpu = used.ru_utime + used.ru_stime
    return {
        "agents": agents,
        "played": rounds,
        "seconds": seconds,
        "CPU seconds": cpu,
        "GiB": used.ru_maxrss / 2**20,
        **spent,
        "start and end": max(0.0, cpu - sum(spent.values())),
    }


def exponent(rows: Sequence[Row], name: str) -> float:
    """The exponent b of value = a · agentsᵇ."""
    sizes, values = (np.log([float(row[column]) for row in rows]) for column in ("agents", name))
    return float(np.polyfit(sizes, values, 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.whole", description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, nargs="+", default=[10**4, 10**5, 10**6])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    asked = parser.parse_args()
    rows = [measured(agents, asked.rounds) for agents in asked.agents]
    show(rows, "From command to picture", asked.out / "cpu" / "whole.csv")
    if len(rows) > 1:
        print(f"exponents: CPU seconds {exponent(rows, 'CPU seconds'):.2f}, GiB {exponent(rows, 'GiB'):.2f}")


if __name__ == "__main__":
    main()
