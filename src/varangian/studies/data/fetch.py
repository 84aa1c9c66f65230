"""Download the original files of a dataset. No other module of this package uses the network."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from varangian.core.errors import BadInput
from varangian.studies.data.arrays import digest, one_line, record_of, verify_record
from varangian.studies.data.catalogue import Original, dataset, how_to_get
from varangian.studies.data.locate import cache_folder

RETRIES = 3


def get(name: str, folder: Path | str | None = None) -> Path:
    """Download a dataset into ``folder`` and return that folder; by default it is the cache.

    Existing files with the right checksum are kept. If the owner offers no direct download, the error says how to
    get the dataset.
    """
    entry = dataset(name)
    target = cache_folder() if folder is None else Path(folder).expanduser()
    if not entry.originals:
        raise BadInput(f"{entry.name} has no direct download; {how_to_get(entry, str(target))}")
    try:
        download(entry.originals, target)
    except BadInput as error:
        raise BadInput(f"{error}; or take it from {entry.page} and put it in {target}") from error
    return target


def download(originals: Sequence[Original], target: Path, retries: int = RETRIES) -> None:
    """Download files into ``target``: each arrives complete and with its checksum, or not at all.

    The SHA-256 of each file is written beside it, and every later read is checked against it. Where no checksum is
    published, this record of the first download is the only check.
    """
    # By name, because pooch has no type hints; and here, because reading must not need it.
    pooch: Any = import_module("pooch")
    pooch.get_logger().setLevel("WARNING")
    store = pooch.create(
        path=target,
        base_url="",
        registry={original.name: original.checksum for original in originals},
        urls={original.name: original.url for original in originals},
        retry_if_failed=retries,
    )
    for original in originals:
        bar = _Bar(original.name)
        path = target / original.name
        try:
            store.fetch(original.name, downloader=pooch.HTTPDownloader(progressbar=bar, chunk_size=65536))
            if original.checksum is None and record_of(path).is_file():
                verify_record(path)
            else:
                record_of(path).write_text(f"{digest(path)}  {path.name}\n", "utf-8")
        except BadInput:
            raise
        except (OSError, ValueError) as error:
            raise BadInput(
                f"{original.name}: could not be downloaded from {original.url} ({one_line(error)})"
            ) from error
        finally:
            bar.close()


class _Bar:
    """A progress bar with the four names that pooch needs."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self.total = 0
        self._progress = Progress(console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task(title, total=None)
        self._progress.start()

    def update(self, count: int) -> None:
        self._progress.update(self._task, advance=count, total=self.total or None)

    def reset(self) -> None:
        self._progress.reset(self._task)

    def close(self) -> None:
        self._progress.stop()
