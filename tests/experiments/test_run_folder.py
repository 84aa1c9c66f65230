"""A run folder: who may write to it, what it refuses, and how new results take the place of old ones."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from varangian import BadInput
from varangian.experiments import lock
from varangian.experiments.config import Plan, as_toml, plan_for
from varangian.experiments.folder_state import UNFINISHED, fingerprint, held
from varangian.experiments.run_folder import JOURNAL, RunFolder, config_to_resume, opened, recover, writing


def small(**changed: Any) -> Plan:
    asked: dict[str, Any] = {"rules": ["alone"], "byzantine": [3], "seeds": 2, "rounds": 8, "settings": {"agents": 10}}
    return plan_for("target-localization", **(asked | changed))


def files_in(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


RESULTS = ("metrics.nc", "summary.csv", "figures/regret.png")


def write(place: RunFolder, text: str, names: tuple[str, ...] = RESULTS, earlier: tuple[str, ...] = ()) -> None:
    for name in names:
        (place.result / name).parent.mkdir(parents=True, exist_ok=True)
        (place.result / name).write_text(text)
    place.commit([place.result / name for name in names], earlier)


def finished(folder: Path, plan: Plan, text: str = "old") -> Path:
    with opened(folder, plan) as place:
        write(place, text)
    return folder


def unfinished(folder: Path, plan: Plan) -> Path:
    with opened(folder, plan) as place:
        (place.cells / "first.nc").write_text("a cell")
    return folder


# ------------------------------------------------------------------------------------------------- what is refused


def test_a_new_folder_holds_the_plan_and_then_the_results(tmp_path: Path) -> None:
    folder, plan = tmp_path / "a" / "b", small()
    with opened(folder, plan) as place:
        assert (folder / "config.toml").read_text(encoding="utf-8") == as_toml(plan)
        assert (place.resumed, place.finished) == (False, False)
        write(place, "new")
    assert files_in(folder) == {"config.toml": as_toml(plan), **dict.fromkeys(RESULTS, "new")}


def test_an_empty_folder_may_be_used(tmp_path: Path) -> None:
    assert files_in(finished(tmp_path, small())).keys() == {"config.toml", *RESULTS}


@pytest.mark.parametrize(
    ("file", "text"), [("notes.txt", "mine"), ("config.toml", "x = 1"), ("config.toml", "="), (".hidden", "")]
)
@pytest.mark.parametrize("how", [{}, {"resume": True}, {"overwrite": True}])
def test_a_folder_of_something_else_is_refused(file: str, text: str, how: dict[str, bool], tmp_path: Path) -> None:
    (tmp_path / file).write_text(text)
    with pytest.raises(BadInput, match="not empty and holds no run"), opened(tmp_path, small(), **how):
        pass
    assert files_in(tmp_path) == {file: text}


def test_what_a_kill_left_of_the_very_beginning_is_no_run(tmp_path: Path) -> None:
    (tmp_path / lock.LOCK).write_text("1 elsewhere")
    (tmp_path / UNFINISHED / "run-0123").mkdir(parents=True)
    finished(tmp_path, small())


CHANGED: list[dict[str, Any]] = [
    {"seeds": 3},
    {"rounds": 9},
    {"rules": ["average"]},
    {"dtype": "float64"},
    {"record_every": 2},
    {"settings": {"agents": 11}},
]


@pytest.mark.parametrize("changed", CHANGED, ids=lambda changed: next(iter(changed)))
@pytest.mark.parametrize("made", [finished, unfinished])
@pytest.mark.parametrize("resume", [False, True])
def test_another_plan_is_refused_and_named(changed: dict[str, Any], made: Any, resume: bool, tmp_path: Path) -> None:
    made(tmp_path, small())
    before = files_in(tmp_path)
    name = "agents" if "settings" in changed else next(iter(changed))
    said = rf"^{tmp_path}.* {'a finished' if made is finished else 'an unfinished'} run of another plan .* {name}\); "
    with pytest.raises(BadInput, match=said) as error, opened(tmp_path, small(**changed), resume=resume):
        pass
    assert files_in(tmp_path) == before
    assert ("--overwrite" if made is finished or not resume else "--resume --out") in str(error.value)


def test_the_same_plan_says_what_to_type(tmp_path: Path) -> None:
    said = r"holds this run, finished; show it with `varangian report .*`, or add --overwrite"
    with pytest.raises(BadInput, match=said), opened(finished(tmp_path / "one", small()), small()):
        pass
    said = r"holds this run, unfinished; add --resume .*, or --overwrite"
    with pytest.raises(BadInput, match=said), opened(unfinished(tmp_path / "two", small()), small()):
        pass
    with pytest.raises(BadInput, match="leave one of them out"), opened(tmp_path, small(), resume=True, overwrite=True):
        pass


def test_a_run_is_no_tournament(tmp_path: Path) -> None:
    for made in (finished, unfinished):
        folder = made(tmp_path / made.__name__, small())
        for resume in (False, True):
            with (
                pytest.raises(BadInput, match=rf"holds .* {made.__name__} run; .*--overwrite"),
                opened(folder, small(), kind="tournament", resume=resume),
            ):
                pass


def test_nothing_cannot_be_resumed(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "new"):
        with pytest.raises(BadInput, match="holds no run to resume"), opened(folder, small(), resume=True):
            pass
    assert not list(tmp_path.iterdir())


# --------------------------------------------------------------------------------------------------- going on


def test_what_does_not_change_results_may_change(tmp_path: Path) -> None:
    unfinished(tmp_path, small())
    with opened(tmp_path, small(threads=2, memory="64GiB", compile=True, device="cpu"), resume=True) as place:
        assert (place.resumed, place.finished) == (True, False)
        assert (place.cells / "first.nc").exists()
        write(place, "new")
    assert "threads = 2" in (tmp_path / "config.toml").read_text()
    with opened(tmp_path, small(threads=1), resume=True) as place:
        assert place.finished


def test_a_finished_run_is_not_touched_by_resuming(tmp_path: Path) -> None:
    finished(tmp_path, small())
    inodes = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in (tmp_path, *tmp_path.rglob("*"))}
    with opened(tmp_path, small(), resume=True) as place:
        assert place.finished
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in (tmp_path, *tmp_path.rglob("*"))} == inodes


def test_overwriting_replaces_all_of_ours_and_nothing_else_in_the_end(tmp_path: Path) -> None:
    finished(tmp_path, small())
    (tmp_path / "figures" / "mine.png").write_text("mine")
    (tmp_path / "notes.txt").write_text("mine")
    before, other = files_in(tmp_path), small(rules=["average"])
    with opened(tmp_path, other, overwrite=True) as place:
        (place.cells / "a.nc").write_text("a cell")
        assert {name: text for name, text in files_in(tmp_path).items() if not name.startswith(".")} == before
        assert config_to_resume(tmp_path, other) == place.staging / "config.toml"
        write(place, "new", ("metrics.nc", "summary.csv"), ("metrics.nc", "figures/regret.png"))
    mine = {"figures/mine.png": "mine", "notes.txt": "mine"}
    new = {"config.toml": as_toml(other), "metrics.nc": "new", "summary.csv": "new"}
    assert files_in(tmp_path) == new | mine


def test_two_unfinished_plans_do_not_touch_each_other(tmp_path: Path) -> None:
    """The second was to replace the first; until it is complete, both can be gone on with."""
    first, second = small(), small(rules=["average"])
    unfinished(tmp_path, first)
    with opened(tmp_path, second, overwrite=True) as place:
        (place.cells / "second.nc").write_text("a cell")
    for plan, cell in ((first, "first.nc"), (second, "second.nc")):
        with opened(tmp_path, plan, resume=True) as place:
            assert [path.name for path in place.cells.iterdir()] == [cell]
        assert config_to_resume(tmp_path, plan).read_text() == as_toml(plan)
    with opened(tmp_path, first, resume=True) as place:
        write(place, "first")
    assert [one.finished for one in held(tmp_path)] == [False, True], "nobody asked to replace the second"
    with opened(tmp_path, second, resume=True) as place:
        write(place, "second")
    assert files_in(tmp_path) == {"config.toml": as_toml(second), **dict.fromkeys(RESULTS, "second")}


def test_a_finished_plan_begun_again_goes_on(tmp_path: Path) -> None:
    finished(tmp_path, small())
    with opened(tmp_path, small(), overwrite=True) as place:
        (place.cells / "a.nc").write_text("a cell")
    with opened(tmp_path, small(), resume=True) as place:
        assert not place.finished and (place.cells / "a.nc").exists()
        write(place, "new")
    assert files_in(tmp_path) == {"config.toml": as_toml(small()), **dict.fromkeys(RESULTS, "new")}


# ------------------------------------------------------------------------------------------- cut short at any step


class Killed(BaseException):
    pass


@contextmanager
def killed_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop at a certain change of the disk, and write nothing more."""
    left = [steps]

    def counted(really: Any) -> Any:
        def change(*args: Any, **how: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return really(*args, **how)

        return change

    with monkeypatch.context() as patch:
        for owner, name in ((os, "replace"), (shutil, "rmtree"), (Path, "unlink"), (Path, "rmdir"), (os, "fsync")):
            patch.setattr(owner, name, counted(getattr(owner, name)))
        yield


@pytest.mark.parametrize("steps", range(26))
def test_a_kill_at_any_step_leaves_the_old_or_the_new(
    steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(tmp_path, small())
    unfinished_too, other = small(rules=["median"]), small(rules=["average"])
    with opened(tmp_path, unfinished_too, overwrite=True):
        pass
    (tmp_path / "figures" / "mine.png").write_text("mine")
    done = True
    with opened(tmp_path, other, overwrite=True) as place:
        (place.cells / "a.nc").write_text("a cell")
        with killed_after(steps, monkeypatch):
            try:
                write(place, "new", earlier=RESULTS)
            except Killed:
                done = False
    journal = place.staging / JOURNAL
    complete = done or journal.exists() or not place.staging.exists() or not (place.staging / "config.toml").exists()
    recover(tmp_path)
    text, plan = ("new", other) if complete else ("old", small())
    seen = {name: text for name, text in files_in(tmp_path).items() if not name.startswith(".")}
    assert seen == {"config.toml": as_toml(plan), **dict.fromkeys(RESULTS, text), "figures/mine.png": "mine"}
    if steps < 3:
        assert not complete
    if not complete:
        with opened(tmp_path, other, resume=True) as place:
            assert (place.cells / "a.nc").exists()
            write(place, "new", earlier=RESULTS)
    with opened(tmp_path, other, resume=True) as place:
        assert place.finished
    assert not (tmp_path / UNFINISHED).exists()
    if steps == 25:
        assert done, "more steps than this test tries"


# ------------------------------------------------------------------------------------------------------ the lock


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path, small()):
        for how in ({}, {"resume": True}, {"overwrite": True}):
            with (
                pytest.raises(BadInput, match=rf"is in use by process {os.getpid()} on .*; wait until it ends"),
                opened(tmp_path, small(), **how),
            ):
                pass
        with pytest.raises(BadInput, match="in use"), writing(tmp_path):
            pass
    assert not (tmp_path / lock.LOCK).exists()
    with opened(tmp_path, small(), resume=True):
        pass


def test_a_read_only_file_is_refused_before_anything_is_run(tmp_path: Path) -> None:
    finished(tmp_path, small())
    (tmp_path / "summary.csv").chmod(0o444)
    before = files_in(tmp_path)
    with (
        pytest.raises(BadInput, match=r"summary\.csv is read-only; make it writable"),
        opened(tmp_path, small(rules=["average"]), overwrite=True),
    ):
        pass
    assert files_in(tmp_path) == before


def test_fingerprints_tell_results_apart() -> None:
    text = as_toml(small())
    assert fingerprint(text) == fingerprint(as_toml(small(threads=3, memory="1GiB", compile=True, device="cpu")))
    others = {fingerprint(as_toml(small(**changed))) for changed in CHANGED}
    assert len(others | {fingerprint(text)}) == len(CHANGED) + 1
    assert fingerprint(text, "tournament") == fingerprint(as_toml(small(rules=["average"])), "tournament")
    assert fingerprint(text) != fingerprint(text, "tournament")
