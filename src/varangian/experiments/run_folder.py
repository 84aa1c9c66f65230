"""The folder of a run: which process may write to it, and how new results replace old ones.

The folder itself holds finished results. Unfinished work is in `.unfinished`, with one subfolder per plan. It holds
the configuration, finished cells and checkpoints (`cells`) and, in the end, the new results (`result`). When the new
results are complete, a journal is written. Only then are they moved to their places, over the old ones. A process that
opens a folder with a journal finishes the move. So after a kill at any moment, either the old or the new results are
complete.
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

from varangian.core.errors import BadInput
from varangian.core.files import whole
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
    """The subfolder for unfinished work."""
    text: str
    """The configuration of the plan."""
    resumed: bool
    """Whether finished cells and checkpoints of an earlier attempt may be used."""
    finished: bool
    """Whether the folder already holds the results, so that there is nothing to run."""

    @property
    def cells(self) -> Path:
        return self.staging / CELLS

    @property
    def result(self) -> Path:
        """Where to write results; `commit` puts them in place."""
        return self.staging / RESULT

    @property
    def tensorboard(self) -> Path:
        """The folder for the TensorBoard log. The log of an earlier run stays until the run is replaced."""
        return (self.result if (self.staging / OVERWRITE).exists() else self.folder) / "tensorboard"

    def commit(self, written: Iterable[Path], earlier: Iterable[str]) -> None:
        """Move complete results to their places, and remove the other files of earlier results.

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
        """Remove the staging folder and leave the results unchanged."""
        _remove_staging(self.staging)


@contextmanager
def opened(
    folder: Path, plan: Plan, *, kind: Kind = "run", resume: bool = False, overwrite: bool = False
) -> Iterator[RunFolder]:
    """Open and lock a folder for a plan. If the folder cannot be used, raise `BadInput` and change nothing.

    Args:
        folder: The run folder. It may be new or empty.
        plan: What to run.
        kind: Whether it is a run or a tournament; they differ even if the plan is the same.
        resume: Continue this plan. Without it, a folder that holds this plan is an error.
        overwrite: Replace the contents of the folder, once the new results are complete.
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
            # Another process may have changed the folder between the first check and the lock.
            step = decided(folder, text, kind, resume, overwrite)
            place = _place(folder, text, kind, step)
            if step != "done":
                _prepare(place, kind, anew=step == "begin", overwrite=overwrite)
        except OSError as error:
            _refuse(folder, error)
        yield place


def check(folder: Path, plan: Plan, *, resume: bool = False, overwrite: bool = False) -> None:
    """Raise the errors that `opened` would raise, without opening the folder."""
    try:
        check_free(folder)
        recover(folder)
        decided(folder, as_toml(plan), "run", resume, overwrite)
        _check_all_writable(folder)
    except OSError as error:
        _refuse(folder, error)


def config_to_resume(folder: Path, plan: Plan) -> Path:
    """The configuration file with which to resume after an interrupt."""
    place = _place(folder, as_toml(plan), "run", "go on")
    return folder / CONFIG if plan_text(folder) == place.text else place.staging / CONFIG


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Lock a folder that may hold a run, in order to change files in it, such as the report."""
    check_free(folder)
    recover(folder)
    with locked(folder) if os.access(folder, os.W_OK) else nullcontext():
        yield


def _place(folder: Path, text: str, kind: Kind, step: Step) -> RunFolder:
    staging = folder / UNFINISHED / f"{kind}-{fingerprint(text, kind)}"
    return RunFolder(folder, staging, text, resumed=step != "begin", finished=step == "done")


def _prepare(place: RunFolder, kind: Kind, anew: bool, overwrite: bool) -> None:
    """Create the folders. Write the configuration to the top folder too, unless it has another one."""
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
    """Carry out the journal. After a kill at any moment, this can be repeated from the beginning."""
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
    for name in ("figures", "models"):
        with suppress(OSError):  # not empty, or not there
            (folder / name).rmdir()
    if (staging / OVERWRITE).exists():
        for other in sorted((folder / UNFINISHED).glob("*-*")):
            if other != staging:
                os.replace(other, staging / f"replaced-{other.name}")
    _remove_staging(staging)


def _remove_staging(staging: Path) -> None:
    """Remove the staging folder, the journal last: while the journal exists, the move can be finished."""
    if staging.is_dir():
        for path in staging.iterdir():
            if path.name != JOURNAL:
                _remove(path)
        _remove(staging / JOURNAL)
        staging.rmdir()
    with suppress(OSError):  # it holds other unfinished plans, or does not exist
        staging.parent.rmdir()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def recover(folder: Path) -> None:
    """Finish a move, or the cleanup after it, that was interrupted by a kill."""
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
        with suppress(OSError):  # it holds unfinished plans
            (folder / UNFINISHED).rmdir()


def _flush(path: Path) -> None:
    """Force a file to the disk, so that a power cut after the move cannot lose it."""
    if path.is_file():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _check_all_writable(folder: Path) -> None:
    for place in (folder, folder / "figures", folder / "models", folder / UNFINISHED):
        _check_writable(place)
    for name in {CONFIG, "report.html", *(name for names in FINISHED.values() for name in names)}:
        if (folder / name).is_file() and not (folder / name).stat().st_mode & 0o222:
            raise BadInput(f"{folder / name} is read-only; make it writable, or name another folder")


def _check_writable(place: Path) -> None:
    if place.exists() and not os.access(place, os.W_OK):
        raise PermissionError(errno.EACCES, "Permission denied", str(place))


def _refuse(folder: Path, error: OSError) -> NoReturn:
    """Raise a full disk as a system error, and any other error as `BadInput`: the folder cannot be used."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise error
    raise BadInput(f"{folder} cannot be written to: {error.strerror}") from error
