"""The log of a tournament: one line per finished cell, written at once, so that a stop loses only running cells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from varangian.core.files import whole
from varangian.core.version import __version__
from varangian.experiments.cells import Cell, count_of

FILE = "tournament.jsonl"
Key = tuple[str, ...]


@dataclass(frozen=True)
class Played:
    """The result of a cell: one row per seed as in `summary.csv`, or why there is none."""

    rows: tuple[dict[str, Any], ...] = ()
    problem: str = ""
    """`not applicable: …` if the rule cannot be used in this cell, `failed: …` after an unexpected error."""

    @property
    def failed(self) -> bool:
        return self.problem.startswith("failed")


@dataclass(frozen=True)
class Ledger:
    """The finished cells of a tournament."""

    file: Path
    played: Mapping[Key, Played]

    @staticmethod
    def open(file: Path, earlier: Path | None = None) -> Ledger:
        """Create the file, or continue it. A new file begins with the lines of an earlier one."""
        lines = _whole_lines(file if file.exists() or earlier is None else earlier)
        with whole(file) as kept:  # drops a line that a kill cut short, so that the next cell starts a new line
            kept.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return Ledger(file, dict(_read(line) for line in lines if json.loads(line)["version"] == __version__))

    def add(self, key: Key, cell: Cell, played: Played) -> None:
        """Append a finished cell."""
        about = {"rule": cell.rule, "attack": cell.attack, "byzantine": count_of(cell.byzantine)}
        kept = {"version": __version__, "key": key, "problem": played.problem, "rows": played.rows}
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(about | kept, ensure_ascii=False) + "\n")


def _whole_lines(file: Path) -> list[str]:
    lines: list[str] = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []:
        try:
            _read(line)
        except (ValueError, KeyError, TypeError):
            continue
        lines.append(line)
    return lines


def _read(line: str) -> tuple[Key, Played]:
    stored: dict[str, Any] = json.loads(line)
    stored["version"]
    return tuple(stored["key"]), Played(tuple(stored["rows"]), stored["problem"])
