"""The folder of a run: who may write to it, and how new results take the place of old ones.

The folder itself holds finished results. Everything that is not finished lies in `.unfinished`, one subfolder for each
plan: the configuration, finished cells and checkpoints (`cells`) and, in the end, the new results (`result`). When
these are complete, a journal says so, and only then they are moved to their places, over the old ones. Whoever opens
a folder in which a journal was left finishes the move. So a kill at any moment leaves the old results or the new.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from varangian.core.files import whole
from varangian.errors import BadInput
from varangian.experiments.config import Plan, as_toml
from varangian.experiments.folder_state import (
    CONFIG,
    FINISHED,
    UNFINISHED,
    Kind,
    Step,
    decided,
    fingerprint,
    held,
    plan_text,
)
from varangian.experiments.lock import check_free, locked

CELLS, RESULT = "cells", "result"
JOURNAL = "complete.json"
OVERWRITE = "overwrite"


@dataclass(frozen=True)
class RunFolder:
    """A folder that is open for one plan."""

    folder: Path
    staging: Path
    """Where everything goes until it is finished."""
    text: str
    """The configuration of the plan."""
    resumed: bool
    """Whether finished cells and checkpoints of an earlier try may be used."""
    finished: bool
    """Whether the folder holds the results already, and there is nothing to do."""

    @property
    def cells(self) -> Path:
        return self.staging / CELLS

    @property
    def result(self) -> Path:
        """Where to write results; `commit` puts them in place."""
        return self.staging / RESULT

    @property
    def tensorboard(self) -> Path:
        """Where to log. The log of a run that is to be replaced stays until then."""
        return (self.result if (self.staging / OVERWRITE).exists() else self.folder) / "tensorboard"

    def commit(self, written: Iterable[Path], earlier: Iterable[str]) -> None:
        """Put complete results in place, and remove what is left of the earlier ones.

        Args:
            written: The files, below `result`. The configuration is there already.
            earlier: The files of the earlier results, as paths relative to the folder. All other files stay.
        """
        new = [CONFIG, *(path.relative_to(self.result).as_posix() for path in written)]
        new += ["tensorboard"] if (self.result / "tensorboard").is_dir() else []
        for name in new:
            _check_writable((self.folder / name).parent)
            _flush(self.result / name)
        kept = {"tensorboard"} if self.tensorboard.parent == self.folder else set()
        stale = sorted({*earlier} - {*new} - kept)
        with whole(self.staging / JOURNAL) as file:
            file.write_text(json.dumps({"new": new, "stale": stale}), encoding="utf-8")
        _put_in_place(self.folder, self.staging)

    def discard(self) -> None:
        """Nothing has changed: leave the folder as it was."""
        _remove_staging(self.staging)


@contextmanager
def opened(
    folder: Path, plan: Plan, *, kind: Kind = "run", resume: bool = False, overwrite: bool = False
) -> Iterator[RunFolder]:
    """Open a folder for a plan, or refuse it and change nothing; nobody else may write there meanwhile.

    Args:
        folder: The run folder. It may be new or empty.
        plan: What is to be run.
        kind: A run and a tournament with the same plan are not the same.
        resume: Go on with this plan. Without it, a folder that holds this plan is refused.
        overwrite: Replace what the folder holds, once the new results are complete.
    """
    text = as_toml(plan)
    try:
        check_free(folder)
        recover(folder)
        step = decided(folder, text, kind, resume, overwrite)
        if step != "done":
            _check_all_writable(folder)
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _refuse(folder, error)
    if step == "done":
        yield _place(folder, text, kind, step)
        return
    with locked(folder):
        try:
            # Another process may have been here between the first look and the lock.
            step = decided(folder, text, kind, resume, overwrite)
            place = _place(folder, text, kind, step)
            if step != "done":
                _prepare(place, kind, anew=step == "begin", overwrite=overwrite)
        except OSError as error:
            _refuse(folder, error)
        yield place


def check(folder: Path, plan: Plan, *, resume: bool = False, overwrite: bool = False) -> None:
    """Refuse what `opened` would refuse; nothing is opened."""
    try:
        check_free(folder)
        recover(folder)
        decided(folder, as_toml(plan), "run", resume, overwrite)
        _check_all_writable(folder)
    except OSError as error:
        _refuse(folder, error)


def config_to_resume(folder: Path, plan: Plan) -> Path:
    """The configuration file to go on with after an interrupt."""
    place = _place(folder, as_toml(plan), "run", "go on")
    return folder / CONFIG if plan_text(folder) == place.text else place.staging / CONFIG


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Change files of a folder that may hold a run, such as its report, while nobody else does."""
    check_free(folder)
    recover(folder)
    with locked(folder) if os.access(folder, os.W_OK) else nullcontext():
        yield


def _place(folder: Path, text: str, kind: Kind, step: Step) -> RunFolder:
    staging = folder / UNFINISHED / f"{kind}-{fingerprint(text, kind)}"
    return RunFolder(folder, staging, text, resumed=step != "begin", finished=step == "done")


def _prepare(place: RunFolder, kind: Kind, anew: bool, overwrite: bool) -> None:
    """Make the folders, and write the configuration where people look for it, if no other is there."""
    if anew:
        _remove_staging(place.staging)
    place.result.mkdir(parents=True, exist_ok=True)
    if overwrite:
        (place.staging / OVERWRITE).touch()
    for config in (place.staging / CONFIG, place.result / CONFIG):
        with whole(config) as file:
            file.write_text(place.text, encoding="utf-8")
    top = plan_text(place.folder)
    finished = any(one.finished for one in held(place.folder))
    if top is None or (not finished and fingerprint(top, kind) == fingerprint(place.text, kind)):
        copy = place.staging / "copy.toml"
        copy.write_text(place.text, encoding="utf-8")
        os.replace(copy, place.folder / CONFIG)
    place.cells.mkdir(exist_ok=True)


def _put_in_place(folder: Path, staging: Path) -> None:
    """Do what the journal says. It can be done again from the beginning after a kill at any moment."""
    journal: dict[str, list[str]] = json.loads((staging / JOURNAL).read_text(encoding="utf-8"))
    for name in journal["new"]:
        source, target = staging / RESULT / name, folder / name
        if source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.rmtree(target, ignore_errors=True)
            os.replace(source, target)
    for name in journal["stale"]:
        _remove(folder / name)
    with suppress(OSError):  # not empty, or not there
        (folder / "figures").rmdir()
    if (staging / OVERWRITE).exists():
        for other in sorted((folder / UNFINISHED).glob("*-*")):
            if other != staging:
                os.replace(other, staging / f"replaced-{other.name}")
    _remove_staging(staging)


def _remove_staging(staging: Path) -> None:
    """The journal goes last: while it is there, everything else has been dealt with."""
    if staging.is_dir():
        for path in staging.iterdir():
            if path.name != JOURNAL:
                _remove(path)
        _remove(staging / JOURNAL)
        staging.rmdir()
    with suppress(OSError):  # others are unfinished, or it is not there
        staging.parent.rmdir()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def recover(folder: Path) -> None:
    """Finish a move that a kill has cut short, or the tidying up after it."""
    places = list((folder / UNFINISHED).glob("*"))
    if all((place / CONFIG).exists() and not (place / JOURNAL).exists() for place in places) and (
        places or not (folder / UNFINISHED).exists()
    ):
        return
    with locked(folder):
        for place in places:
            if (place / JOURNAL).exists():
                _put_in_place(folder, place)
            elif place.is_dir() and not (place / CONFIG).exists():
                _remove_staging(place)
        with suppress(OSError):  # something is unfinished
            (folder / UNFINISHED).rmdir()


def _flush(path: Path) -> None:
    """Have the system write a file to the disk, so that not even a power cut loses it after the move."""
    if path.is_file():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _check_all_writable(folder: Path) -> None:
    for place in (folder, folder / "figures", folder / UNFINISHED):
        _check_writable(place)
    for name in {CONFIG, "report.html", *(name for names in FINISHED.values() for name in names)}:
        if (folder / name).is_file() and not (folder / name).stat().st_mode & 0o222:
            raise BadInput(f"{folder / name} is read-only; make it writable, or name another folder")


def _check_writable(place: Path) -> None:
    if place.exists() and not os.access(place, os.W_OK):
        raise PermissionError(errno.EACCES, "Permission denied", str(place))


def _refuse(folder: Path, error: OSError) -> NoReturn:
    """A full disk is an error of the system, anything else means that the folder cannot be used."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise error
    raise BadInput(f"{folder} cannot be written to: {error.strerror}") from error
