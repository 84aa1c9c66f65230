"""What each part of the anchored rule is good for, on target localization: results/anchor/*.csv.

    python -m bench.anchor --out results/anchor

`ablation.csv` leaves out one part at a time. `frontier.csv` varies how readily the rule listens: more gain without
attack against more harm under one. Regrets are means over normal agents and over the last fifth of the rounds.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from varangian import attacks, rules, simulate, studies

ROUNDS, SEEDS = 500, 5
OFF = 1e6

CELLS: Mapping[str, tuple[Any, int]] = {
    "none": (None, 0),
    "blind-direction": (attacks.blind_direction(), 20),
    "variance-inflation": (attacks.variance_inflation(), 20),
    "trust-then-strike": (attacks.trust_then_strike(), 99),
}
ABLATION: Mapping[str, Any] = {
    "alone": rules.alone(),
    "loss-based": rules.loss_based(),
    "oracle": rules.oracle(),
    "anchored": rules.anchored(),
    "no leash": rules.anchored(trust=OFF),
    "leash starts at the anchor": rules.anchored(trust=0.0),
    "leash forgets faster": rules.anchored(leash=0.02),
    "no test": rules.anchored(significance=(OFF, OFF, OFF), own_significance=OFF),
    "no test against the own model": rules.anchored(own_significance=OFF),
    "one time scale": rules.anchored(scales=(0.02,), significance=(2.0,)),
    "no limit of distance": rules.anchored(reach=OFF),
    "judged on the sample just trained on": rules.anchored(judge="same"),
}
FRONTIER: Mapping[str, Any] = {
    f"z x {factor}": rules.anchored(significance=(2 * factor, 2 * factor, 1.5 * factor), own_significance=2 * factor)
    for factor in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
}


def measured(rule: Any, attack: Any, byzantine: int) -> dict[str, float]:
    """The mean regret at the end, its standard error over seeds, the worst agent, and the worst round after 50."""
    result = simulate(
        studies.target_localization(), rule=rule, attack=attack, byzantine=byzantine, seeds=SEEDS, rounds=ROUNDS
    )
    regret = result["regret"].where(~result["byzantine_agent"])
    end = regret.isel(round=slice(-ROUNDS // 5, None)).mean("round")
    seeds = end.mean("agent").values
    curve = regret.mean(("seed", "agent")).values
    return {
        "regret": float(seeds.mean()),
        "se": float(seeds.std(ddof=1) / np.sqrt(len(seeds))),
        "worst_agent": float(end.max()),
        "worst_round": float(curve[50:].max()),
    }


def table(variants: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Every variant under every attack."""
    for name, rule in variants.items():
        for attack, (value, byzantine) in CELLS.items():
            yield {"variant": name, "attack": attack, "byzantine": byzantine, **measured(rule, value, byzantine)}


def write(rows: Iterable[dict[str, Any]], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer: csv.DictWriter[str] | None = None
        for row in rows:
            if writer is None:
                writer = csv.DictWriter(file, list(row))
                writer.writeheader()
            writer.writerow({key: f"{value:.5g}" if isinstance(value, float) else value for key, value in row.items()})
            file.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/anchor"))
    out = parser.parse_args().out
    write(table(ABLATION), out / "ablation.csv")
    write(table(FRONTIER), out / "frontier.csv")


if __name__ == "__main__":
    main()
