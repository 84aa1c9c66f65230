"""Benchmarks, as ratios within one run: `python -m bench [--device cuda] [--quick] [--out DIR] [SUBJECT…]`.

Subjects: roofline (the time of a round against a lower bound), targets (performance targets of the engine), loops (the
engine against plain loops) and peers (ByzFL and ByzPy). Prints tables and writes them as CSV.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.timing import machine, rates, show

SUBJECTS = {"cpu": ("roofline", "targets", "loops", "peers"), "cuda": ("roofline", "targets")}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument("subject", nargs="*", help="what to measure; by default everything")
    parser.add_argument("--device", choices=list(SUBJECTS), default="cpu")
    parser.add_argument("--quick", action="store_true", help="smaller networks, a minute in all")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"), help="where to write the tables")
    asked = parser.parse_args()
    subjects = asked.subject or SUBJECTS[asked.device]
    for name in subjects:
        if name not in SUBJECTS[asked.device]:
            parser.error(f"{name} is not measured on {asked.device}; choose from {', '.join(SUBJECTS[asked.device])}")
    out: Path = asked.out / asked.device
    found = rates(asked.device)
    show([machine(asked.device, found)], "The machine", out / "machine.csv")
    if "roofline" in subjects:
        from bench import roofline

        show(roofline.rows(found, asked.quick), "A round of loss-based against its lower bound", out / "roofline.csv")
    if "targets" in subjects:
        from bench import targets

        found_targets = targets.on_cpu(asked.quick) if asked.device == "cpu" else targets.on_gpu(asked.quick)
        show(list(found_targets), "Performance targets", out / "targets.csv")
    if "loops" in subjects:
        from bench import loops

        show(loops.rows(), "The engine against plain loops, one thread", out / "loops.csv")
    if "peers" in subjects:
        from bench import peers

        show(peers.rows(), "A round of Varangian against a round of ByzFL and ByzPy", out / "peers.csv")


if __name__ == "__main__":
    main()
