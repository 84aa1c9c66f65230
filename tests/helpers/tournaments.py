"""Helpers for tests of tournaments: small and made-up tournaments, and functions to read them."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from varangian import simulate
from varangian.experiments.tournament.entries import Contest, enter
from varangian.experiments.tournament.log import FILE
from varangian.experiments.tournament.standings import Outcome, Standings
from varangian.report.tournament import compete_into

room = sys.modules["varangian.experiments.tournament.run"]

RULES = ("average", "distance-based", "loss-based")
ATTACKS = ("sign-flip", "uniform", "silent")
FILES = {"config.toml", FILE, "tournament.csv", "tournament.md", "tournament.png"}


def small(**changed: Any) -> Contest:
    asked: dict[str, Any] = {
        "rules": RULES,
        "attacks": ATTACKS,
        "byzantine": [0, 3],
        "seeds": 2,
        "rounds": 30,
        "settings": {"agents": 12},
    }
    return enter("target-localization", **(asked | changed))


def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take longer than everything else and have tests of their own."""
    monkeypatch.setattr("varangian.report.tournament.draw_heatmap", lambda standings: Blank())


class Blank:
    def savefig(self, file: io.BytesIO, **how: object) -> None:
        file.write(b"picture")


def recorded_calls(monkeypatch: pytest.MonkeyPatch) -> list[xr.Dataset]:
    """The results of all calls of `simulate` by a tournament."""
    given: list[xr.Dataset] = []
    inner: Callable[..., xr.Dataset] = simulate

    def counted(*args: Any, **settings: Any) -> xr.Dataset:
        given.append(inner(*args, **settings))
        return given[-1]

    monkeypatch.setattr(room, "simulate", counted)
    return given


def first_tournament(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Standings]:
    """The folder and the standings of a small tournament."""
    folder = tmp_path_factory.mktemp("tournament") / "first"
    return folder, compete_into(small(), folder)


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "tournament.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def untimed(folder: Path) -> list[dict[str, str]]:
    return [{**row, "seconds": ""} for row in rows_of(folder)]


def values_of(found: Standings) -> list[Outcome]:
    key = lambda outcome: (outcome.rule, outcome.attack, outcome.byzantine)  # noqa: E731
    return sorted((replace(outcome, seconds=0.0) for outcome in found.outcomes), key=key)


def outcome(values: Sequence[float], alone: Sequence[float], rule: str = "average", attack: str = "x") -> Outcome:
    return Outcome(rule, attack, 3, tuple(values), tuple(alone))


def made_up(outcomes: Sequence[Outcome], metric: str = "regret", seeds: int = 2) -> Standings:
    alone = Outcome("alone", "", 3, outcomes[0].alone, outcomes[0].alone)
    return Standings("made-up", metric, 10, 30, seeds, (alone, *outcomes))


def large() -> Standings:
    draws = np.random.default_rng(0)
    parts: list[Outcome] = []
    alone = (0.02, 0.021, 0.019)
    for rule in range(29):
        name = f"a-rule-with-a-long-name:and=parameters,number={rule}"
        parts.append(Outcome(name, "", 0, tuple(0.015 * draws.uniform(0.9, 1.1, 3)), alone))
        for attack in range(28):
            if rule == 3:
                parts.append(Outcome(name, f"attack-{attack}", 20, (), alone, problem="not applicable: no"))
                continue
            values = 0.014 * 10 ** (draws.gamma(0.3) * rule / 10) * draws.uniform(0.95, 1.05, 3)
            parts.append(Outcome(name, f"attack-{attack}", 20, tuple(values), alone))
    reference = [Outcome("alone", "", count, alone, alone) for count in (0, 20)]
    return Standings("made-up", "regret", 100, 500, 3, (*reference, *parts))
