"""What a run folder holds, finished or not, and whether a plan may be run in it."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from varangian.core.errors import BadInput
from varangian.engine.options import RunOptions, option_types
from varangian.experiments.config import from_toml
from varangian.experiments.lock import LOCK
from varangian.experiments.own_code import changed

Kind = Literal["run", "tournament"]
Step = Literal["begin", "go on", "done"]

UNFINISHED = ".unfinished"
CONFIG = "config.toml"
FINISHED: dict[Kind, tuple[str, ...]] = {
    "run": ("metrics.nc", "summary.csv"),
    "tournament": ("tournament.jsonl", "tournament.csv"),
}
"""The files that a finished folder of each kind has."""
CONTESTANTS = ("rules", "attacks", "byzantine")
"""The entries that may change when a tournament is resumed."""


def fingerprint(config: str, kind: Kind = "run") -> str:
    """Twelve characters; equal for two configurations whose results are the same up to rounding.

    >>> one, other = 'study = "school"\\nthreads = 2', 'study = "school"\\ndtype = "float64"'
    >>> fingerprint(one) == fingerprint('study = "school"'), fingerprint(one) == fingerprint(other)
    (True, False)
    """
    about = json.dumps([kind, _deciding(config, kind)], sort_keys=True, default=str)
    return hashlib.sha256(about.encode()).hexdigest()[:12]


def _deciding(config: str, kind: Kind) -> dict[str, Any]:
    """The entries of a configuration that affect results."""
    stored = tomllib.loads(config)
    options = RunOptions.of({name: stored.pop(name) for name in option_types() if name in stored})
    settings = stored.pop("settings", {})
    sources = stored.pop("sources", {})
    left_out = CONTESTANTS if kind == "tournament" else ()
    deciding = {name: value for name, value in stored.items() if name not in left_out}
    deciding |= dict(options.fingerprint)
    deciding |= settings
    # The rules and attacks of a tournament may change; their sources are compared where both plans have them.
    deciding |= _hashes(sources) if kind == "run" else {}
    return deciding


def _hashes(sources: Mapping[str, Any]) -> dict[str, str]:
    """The hash of every source. Where a file was does not affect results."""
    return {
        f"the source {file}": sha256
        for place, one in sources.items()
        for file, sha256 in {place: one.get("sha256", ""), **one.get("imports", {})}.items()
    }


@dataclass(frozen=True)
class Held:
    """One run or tournament that a folder holds."""

    place: Path
    """The folder itself, or its subfolder for unfinished results."""
    text: str
    kind: Kind | None
    """None if the folder has only a configuration."""
    finished: bool

    def is_of(self, text: str, kind: Kind) -> bool:
        return self.kind in (None, kind) and fingerprint(self.text, kind) == fingerprint(text, kind)

    def __str__(self) -> str:
        return f"{'a finished' if self.finished else 'an unfinished'} {self.kind or 'run'}"


def held(folder: Path) -> list[Held]:
    """The runs and tournaments in a folder, finished or not. Files of other programs are ignored."""
    found: list[Held] = []
    for place in sorted((folder / UNFINISHED).glob("*-*")):
        text, kind = plan_text(place), _kind_of(place)
        if text is not None and kind is not None:
            found.append(Held(place, text, kind, finished=False))
    text = plan_text(folder)
    if text is not None:
        kinds = [kind for kind, files in FINISHED.items() if all((folder / name).exists() for name in files)]
        if kinds or not found:  # otherwise it is the configuration of an unfinished run
            found.append(Held(folder, text, kinds[0] if kinds else None, finished=bool(kinds)))
    return found


def _kind_of(staging: Path) -> Kind | None:
    return next((kind for kind in FINISHED if staging.name.startswith(f"{kind}-")), None)


def plan_text(place: Path) -> str | None:
    """The configuration in a folder. None if there is none, or if its file belongs to another program."""
    try:
        from_toml(place / CONFIG)
        text = (place / CONFIG).read_text(encoding="utf-8")
        fingerprint(text)
    except (BadInput, OSError, UnicodeDecodeError):
        return None
    return text


def decided(folder: Path, text: str, kind: Kind, resume: bool, overwrite: bool) -> Step:
    """What to do with a folder. If it cannot be used, the error says what it holds and what to type instead."""
    if resume and overwrite:
        raise BadInput("--resume continues an earlier run, and --overwrite replaces it; leave one of them out")
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file; --out names a folder")
    found = held(folder)
    if not found:
        if folder.exists() and any(path.name not in (LOCK, UNFINISHED) for path in folder.iterdir()):
            raise BadInput(f"{folder} is not empty and holds no {kind}; name another folder")
        if resume:
            raise BadInput(f"{folder} holds no {kind} to resume; leave --resume out")
    if overwrite or not found:
        return "begin"
    _check_sources(found, text, kind)
    own = [one for one in found if one.is_of(text, kind)]
    if not own:
        raise BadInput(_another(folder, found, text, kind, resume))
    if resume:
        return "done" if kind == "run" and own[0].finished else "go on"
    if kind == "tournament":
        raise BadInput(f"{folder} holds this tournament; add --resume to go on with it, or --overwrite to replace it")
    if own[0].finished:
        raise BadInput(
            f"{folder} holds this run, finished; show it with `varangian report {folder}`, or add --overwrite to run "
            "it again"
        )
    raise BadInput(f"{folder} holds this run, unfinished; add --resume to go on with it, or --overwrite to start again")


def _check_sources(found: list[Held], text: str, kind: Kind) -> None:
    """Raise an error if the same plan is there, but was begun with other sources."""
    now, mine = tomllib.loads(text).get("sources", {}), _deciding(text, kind)
    for one in found:
        before, theirs = tomllib.loads(one.text).get("sources", {}), _deciding(one.text, kind)
        other = {name for name in {*mine} | {*theirs} if mine.get(name) != theirs.get(name)}
        common = _hashes({place: before[place] for place in {*before} & {*now}})
        differing = [name for name, sha256 in common.items() if _hashes(now).get(name, sha256) != sha256]
        if one.kind in (None, kind) and differing and other <= {*common}:
            raise changed(differing[0].removeprefix("the source "))


def _another(folder: Path, found: list[Held], text: str, kind: Kind, resume: bool) -> str:
    """An error message: what the folder holds instead of this plan, how it differs, and what to type."""
    there = found[-1]  # the finished one, if there is one
    before, now = _deciding(there.text, kind), _deciding(text, kind)
    other = [name for name in dict.fromkeys((*before, *now)) if before.get(name) != now.get(name)]
    differing = f" of another plan (it differs in {', '.join(other)})" if other and there.kind in (None, kind) else ""
    config = there.place / CONFIG
    again = f"go on with it: varangian {there.kind or 'run'} {config} --resume --out {folder}"
    if resume and kind == there.kind == "run":
        hint = "name another folder, or give --overwrite in place of --resume" if there.finished else again
        return f"{config} is {there}{differing}; {hint}"
    hint = "" if there.finished else f"{again}; or "
    return f"{folder} holds {there}{differing}; {hint}name another folder, or add --overwrite to replace it"
