"""Run folders and real processes: two writers, signals and kills at random moments, read-only files, full disks.

Whatever happens, the old results or the new ones are complete afterwards, and what was interrupted can be gone on with.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import SMALL, Said, assert_refused, assert_same_bits, rows_of, varangian_
from forked import Command

import varangian
from varangian.experiments.folder_state import UNFINISHED, held
from varangian.experiments.lock import LOCK
from varangian.experiments.run_folder import recover

OLD = ("run", *SMALL, "--rule", "alone", "--byzantine", "2")
NEW = ("run", *SMALL, "--rule", "average", "--byzantine", "2", "--rounds", "300", "--seeds", "2")
FILES = {"config.toml", "metrics.nc", "summary.csv", "report.html"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Both runs, complete, each in a folder of its own. Only the old one has figures: they take longest."""
    folder = tmp_path_factory.mktemp("runs")
    assert varangian_(*OLD, "--out", folder / "old", "-q") == Said(0, "", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("varangian.report.folder.draw_figures", lambda metrics, folder: [])
        assert varangian_(*NEW, "--out", folder / "new", "-q") == Said(0, "", "")
        yield {name: folder / name for name in ("old", "new")}


@pytest.fixture
def folder(runs: dict[str, Path], tmp_path: Path) -> Path:
    """A folder with the old results and files of somebody else."""
    copy = tmp_path / "run"
    shutil.copytree(runs["old"], copy)
    (copy / "figures" / "mine.png").write_bytes(b"mine")
    (copy / "notes.txt").write_text("mine")
    return copy


def which(folder: Path, runs: dict[str, Path]) -> str:
    """Which of both results is complete in a folder; anything else is an error."""
    assert (folder / "notes.txt").read_text() == "mine" and (folder / "figures" / "mine.png").read_bytes() == b"mine"
    name = {"alone": "old", "average": "new"}[rows_of(folder)[0]["rule"]]
    assert_same_bits(folder, runs[name])
    assert (folder / "config.toml").read_text() == (runs[name] / "config.toml").read_text()
    assert all((folder / file).exists() for file in FILES)
    return name


# ------------------------------------------------------------------------------------------------ killed at any time

MOMENTS = {"begun": "*", "a cell": "*/cells/*.result", "results": "*/result/metrics.nc", "page": "*/result/report.html"}
TRIES = [(kill, moment) for kill in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL) for moment in MOMENTS]


@pytest.mark.parametrize(("kill", "moment"), TRIES, ids=lambda value: getattr(value, "name", value))
def test_a_kill_while_overwriting_never_loses_both(
    kill: signal.Signals, moment: str, folder: Path, runs: dict[str, Path], tmp_path: Path
) -> None:
    draws = random.Random(f"{kill} {moment}")
    process = Command(*NEW, "--out", folder, "--overwrite", "-q", said=tmp_path / "said")
    process.wait_for(lambda: any((folder / UNFINISHED).glob(MOMENTS[moment])))
    time.sleep(draws.random() * 0.2)
    process.send_signal(kill)
    status, _, said = process.end()
    assert status in (0, 130, -kill), said
    if status == 130:
        assert kill != signal.SIGKILL and said.startswith("varangian: interrupted; go on with: varangian run")
        again = said.partition("varangian run ")[2].split()
        assert again[1:] == ["--resume", "--out", str(folder)]
    recover(folder)
    found = which(folder, runs)
    assert found == "new" or status != -signal.SIGTERM, "only on its way out a signal just ends it"
    if found == "new":
        assert not (folder / UNFINISHED).exists()
        return
    assert status != 0
    begun = [one for one in held(folder) if not one.finished]
    said_again = varangian_(*NEW, "--out", folder, "-q", "--resume" if begun else "--overwrite")
    assert said_again == Said(0, "", "")
    assert which(folder, runs) == "new"
    assert {path.name for path in folder.iterdir()} == {*FILES, "figures", "notes.txt"}


@pytest.mark.parametrize("kill", [signal.SIGTERM, signal.SIGKILL], ids=lambda kill: kill.name)
def test_a_killed_run_goes_on_to_the_same_bits(kill: signal.Signals, tmp_path: Path, runs: dict[str, Path]) -> None:
    """A process as users start it: also when Python ends, nothing is said after the command's last line."""
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "varangian", *NEW, "--out", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while not any((folder / UNFINISHED).glob("*/cells")) and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(kill)
        _, said = process.communicate(timeout=1200)
    assert process.returncode == (130 if kill == signal.SIGTERM else -9)
    if kill == signal.SIGTERM:
        assert said.splitlines()[-1].endswith(f"varangian run {folder}/config.toml --resume --out {folder}")
    assert varangian_("run", folder / "config.toml", "--resume", "--out", folder, "-q") == Said(0, "", "")
    assert_same_bits(folder, runs["new"])
    assert {path.name for path in folder.iterdir()} == FILES


# --------------------------------------------------------------------------------------------- what is in the folder


def test_another_plan_and_the_same_plan_are_refused(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    said = varangian_(*NEW, "--out", folder)
    assert_refused(said, [str(folder), "a finished run of another plan", "rules, seeds, rounds", "--overwrite"])
    said = varangian_(*OLD, "--out", folder)
    assert_refused(said, [str(folder), "holds this run, finished", f"varangian report {folder}", "--overwrite"])
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_two_writers_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    stop_at = ("varangian.engine.recorder", "measure")
    process = Command(*NEW, "--rounds", "100000", "--out", folder, said=tmp_path / "said", stop_at=stop_at)
    try:
        process.wait_for(lambda: process.said()[0] == "now\n")
        assert process.said() == ("now\n", "average, 2 Byzantine: uniform …\n")
        for more in ((), ("--resume",), ("--overwrite",)):
            said = varangian_(*NEW, "--rounds", "100000", "--out", folder, *more)
            assert_refused(said, [str(folder), f"in use by process {process.pid} on"])
        assert_refused(varangian_("report", folder), ["no results"])
    finally:
        process.send_signal(signal.SIGTERM)
        status, _, _ = process.end()
    assert status == 130
    assert not (folder / LOCK).exists()
    assert list((folder / UNFINISHED).glob("*/cells/*/*.checkpoint")), "SIGTERM saves a checkpoint"


def test_a_read_only_file_inside_is_one_line(folder: Path, runs: dict[str, Path]) -> None:
    (folder / "metrics.nc").chmod(0o444)
    assert_refused(varangian_(*NEW, "--out", folder, "--overwrite"), ["metrics.nc is read-only"])
    assert which(folder, runs) == "old"
    assert not (folder / UNFINISHED).exists()


# -------------------------------------------------------------------------------------------------------- full disks


@pytest.mark.parametrize("most", [5_000, 200_000])
def test_files_that_cannot_be_written_cost_nothing(
    most: int, folder: Path, runs: dict[str, Path], tmp_path: Path
) -> None:
    """The first limit stops the first finished cell, the second one the report."""
    process = Command(*NEW, "--out", folder, "--overwrite", "-q", said=tmp_path / "said", largest_file=most)
    status, _, said = process.end()
    assert status == 1, said
    assert said.count("\n") == 1 and "could not read or write" in said and "--resume" in said
    assert which(folder, runs) == "old"
    assert varangian_(*NEW, "--out", folder, "-q", "--resume") == Said(0, "", "")
    assert which(folder, runs) == "new"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only who may mount can make a small disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_costs_nothing(small_disk: Path, folder: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    place = small_disk / "run"
    shutil.copytree(folder, place)
    free = os.statvfs(small_disk)
    (small_disk / "filler").write_bytes(b"0" * (free.f_bavail * free.f_frsize - 60_000))
    status, _, said = Command(*NEW, "--out", place, "--overwrite", "-q", said=tmp_path / "said").end()
    assert status == 1 and "No space left" in said and said.count("\n") == 1
    assert which(place, runs) == "old"
    (small_disk / "filler").unlink()
    assert varangian_(*NEW, "--out", place, "-q", "--resume") == Said(0, "", "")
    assert which(place, runs) == "new"
    assert varangian.load(place / "metrics.nc").sizes["seed"] == 2
