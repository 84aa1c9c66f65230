"""What a tournament has finished, a line a cell, written as it finishes: whoever stops it loses the cell at hand."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from varangian.core.files import whole
from varangian.core.version import __version__
from varangian.errors import BadInput
from varangian.experiments.config import Plan, as_toml
from varangian.experiments.sweep import Cell, count_of

FILE = "tournament.jsonl"
CONTESTANTS = ("rules", "attacks", "byzantine")
"""What may change in a folder from one time to the next: finished cells of others are left as they are."""

Key = tuple[str, ...]


@dataclass(frozen=True)
class Played:
    """What came of a cell: a row a seed as in `summary.csv`, or what was in the way."""

    rows: tuple[dict[str, Any], ...] = ()
    problem: str = ""
    """`not applicable: …` where it cannot work, `failed: …` where it should have and did not."""

    @property
    def failed(self) -> bool:
        return self.problem.startswith("failed")


@dataclass(frozen=True)
class Ledger:
    """The finished cells of a folder."""

    file: Path
    played: Mapping[Key, Played]

    @staticmethod
    def open(folder: Path, plan: Plan, resume: bool) -> Ledger:
        """Make the folder, or take it up; one that holds anything but a tournament of these settings is refused."""
        file, config = folder / FILE, folder / "config.toml"
        try:
            if folder.exists() and not folder.is_dir():
                raise BadInput(f"{folder} is a file; --out names a folder")
            if not file.exists():
                if folder.exists() and any(folder.iterdir()):
                    raise BadInput(f"{folder} is not empty and holds no tournament; name another folder")
                if resume:
                    raise BadInput(f"{folder} holds no tournament to resume; leave --resume out")
            elif config.exists():
                _check_same(config, plan)
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError(13, "Permission denied")
            lines = _whole_lines(file)
            with whole(file) as kept:  # a line that a kill cut short is gone, so that the next begins anew
                kept.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            with whole(config) as new:
                new.write_text(as_toml(plan), encoding="utf-8")
        except OSError as error:
            raise BadInput(f"{folder} cannot be written to: {error.strerror}") from error
        return Ledger(file, dict(_read(line) for line in lines if json.loads(line)["version"] == __version__))

    def add(self, key: Key, cell: Cell, played: Played) -> None:
        """Write a finished cell down."""
        about = {"rule": cell.rule, "attack": cell.attack, "byzantine": count_of(cell.byzantine)}
        kept = {"version": __version__, "key": key, "problem": played.problem, "rows": played.rows}
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(about | kept, ensure_ascii=False) + "\n")


def _check_same(config: Path, plan: Plan) -> None:
    try:
        stored = tomllib.loads(config.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{config} is not a configuration file: {error}") from error
    asked = tomllib.loads(as_toml(plan))
    other = [name for name in dict.fromkeys((*stored, *asked)) if stored.get(name) != asked.get(name)]
    if "settings" in other:
        before, now = stored.get("settings", {}), asked["settings"]
        other += [name for name in dict.fromkeys((*before, *now)) if before.get(name) != now.get(name)]
    other = [name for name in other if name not in (*CONTESTANTS, "settings")]
    if other:
        raise BadInput(
            f"{config.parent} holds a tournament with another {', another '.join(other)}; name another folder"
        )


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
