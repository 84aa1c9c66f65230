"""Snapshots of a network in parts: the last round that all parts have finished, to continue from."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from varangian.core.errors import BadInput

Snapshot = tuple[int, Sequence[bytes]]
"""The number of the round, and the state of every part after it."""


@dataclass
class Snapshots:
    """Holds the last snapshot of all parts, on disk or in memory. There are no incomplete snapshots."""

    folder: Path | None
    """Where snapshots are written. None keeps them in memory, where they survive a dead shard but not this program."""
    every: int | None = None
    """Rounds from one snapshot to the next; by default there is one about every minute."""
    _memory: Snapshot | None = None
    _last: float = field(default_factory=time.monotonic)

    def due(self, round: int) -> bool:
        """Whether it is time for a snapshot after this round."""
        return round % self.every == 0 if self.every else time.monotonic() - self._last >= 60

    def save(self, round: int, parts: Sequence[bytes]) -> None:
        """Replace the last snapshot by this one."""
        self._last = time.monotonic()
        if self.folder is None:
            self._memory = round, parts
            return
        made = self.folder / f"round-{round}.incomplete"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        for number, part in enumerate(parts):
            (made / f"part-{number}").write_bytes(part)
        whole = self.folder / f"round-{round}"
        shutil.rmtree(whole, ignore_errors=True)
        os.replace(made, whole)
        for _, older in self._found():
            if older != whole:
                shutil.rmtree(older, ignore_errors=True)

    def last(self, parts: int) -> Snapshot | None:
        """The last snapshot, if there is one. An error if it has another number of parts."""
        if self.folder is None:
            return self._memory
        found = self._found()
        if not found:
            return None
        round, folder = found[-1]
        files = [folder / f"part-{number}" for number in range(parts)]
        left = len(list(folder.glob("part-*")))
        if left != parts or not all(file.is_file() for file in files):
            raise BadInput(f"{folder} was left by {left} shards; go on with as many, or remove it")
        return round, [file.read_bytes() for file in files]

    def _found(self) -> list[tuple[int, Path]]:
        if self.folder is None or not self.folder.is_dir():
            return []
        whole = [path for path in self.folder.glob("round-*") if path.name.removeprefix("round-").isdigit()]
        return sorted((int(path.name.removeprefix("round-")), path) for path in whole)

    def discard(self) -> None:
        """Remove the snapshot: the run is over."""
        self._memory = None
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
