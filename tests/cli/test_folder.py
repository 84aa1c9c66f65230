"""`--out`, `--resume` and `--overwrite` of all commands that write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commands import ONE, Said, assert_refused, rows_of, varangian_

from varangian.experiments.config import plan_for
from varangian.experiments.folder_state import UNFINISHED

pytestmark = pytest.mark.usefixtures("no_figures")


def state_of(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in (folder, *folder.rglob("*"))}


def test_resuming_a_finished_run_does_no_work_and_prints_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    first = varangian_("run", *ONE, "--out", folder)
    before = state_of(folder)
    monkeypatch.setattr("varangian.experiments.cells.simulate", None)
    again = varangian_("run", *ONE, "--out", folder, "--resume", "--threads", 2)
    assert (again.status, again.err) == (0, "")
    assert again.out.splitlines()[:-1] == first.out.splitlines()[:-1]
    assert again.out.splitlines()[-1].startswith(f"Finished before, in {folder}")
    assert state_of(folder) == before


def test_names_may_be_separated_by_commas_under_either_spelling(tmp_path: Path) -> None:
    asked = ("--rules", "alone,loss-based:smoothing=0.1,keep=all", "--rule", "average", "--attacks", "silent,sign-flip")
    assert varangian_("run", *ONE[:5], *asked, "--byzantine", 2, "--out", tmp_path / "run", "-q").status == 0
    rows = rows_of(tmp_path / "run")
    assert {row["rule"] for row in rows} == {"alone", "loss-based:smoothing=0.1,keep=all", "average"}
    assert {row["attack"] for row in rows} == {"silent", "sign-flip"}


def test_record_every_thins_the_record(tmp_path: Path) -> None:
    assert varangian_("run", *ONE, "--record-every", 5, "--out", tmp_path / "run", "-q").status == 0
    text = (tmp_path / "run" / "config.toml").read_text()
    assert "record_every = 5" in text


@pytest.mark.parametrize("option", ["--resume", "--overwrite"])
@pytest.mark.parametrize("command", ["run", "tournament"])
def test_without_a_folder_there_is_nothing_to_go_on_with_or_to_replace(option: str, command: str) -> None:
    assert_refused(varangian_(command, "target-localization", option), [option, "--out"])


# ----------------------------------------------------------------------------------------------------- reproduce


@pytest.fixture
def short_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's studies, but all of them are small and quick."""

    def plan_of(study: str, fast: bool, **options: Any) -> Any:
        agents = {"target-localization": 12, "human-activity": 13, "digits": 14}[study]
        few: dict[str, Any] = {"rules": ["alone", "loss-based"], "byzantine": [0], "rounds": 5}
        return plan_for("target-localization", settings={"agents": agents}, **few, **options)

    monkeypatch.setattr("varangian.experiments.reproduce.plan_of", plan_of)
    monkeypatch.setattr("varangian.experiments.reproduce.PAPER", ("target-localization",))
    monkeypatch.setattr("varangian.report.paper.draw_paper_figures", lambda metrics, folder: [])


@pytest.mark.usefixtures("short_paper")
def test_a_reproduction_goes_on_only_when_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "paper"
    assert_refused(varangian_("reproduce", "--out", out, "--resume"), [str(out), "no study to resume"])
    assert not out.exists()
    first = varangian_("reproduce", "--out", out)
    assert first.status == 0, first.err
    assert {path.name for path in out.iterdir()} == {"target-localization", "table.csv", "table.md"}
    before, table = state_of(out / "target-localization"), (out / "table.md").read_text()
    assert_refused(varangian_("reproduce", "--out", out), ["holds this run, finished", "--overwrite"])
    resumed = varangian_("reproduce", "--out", out, "--resume", "-q")
    assert resumed == Said(0, "", "")
    assert state_of(out / "target-localization") == before
    assert (out / "table.md").read_text() == table
    assert varangian_("reproduce", "--out", out, "--overwrite", "-q") == Said(0, "", "")
    assert state_of(out / "target-localization") != before


@pytest.mark.usefixtures("short_paper")
def test_an_interrupted_reproduction_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **settings: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("varangian.experiments.cells.simulate", interrupted)
        said = varangian_("reproduce", "--out", tmp_path, "-q")
    assert said == Said(130, "", "varangian: interrupted; to continue, run the same command with --resume\n")
    assert (tmp_path / "target-localization" / UNFINISHED).exists()
    assert_refused(varangian_("reproduce", "--out", tmp_path), ["unfinished", "--resume"])
    assert varangian_("reproduce", "--out", tmp_path, "-q", "--resume") == Said(0, "", "")
    assert not (tmp_path / "target-localization" / UNFINISHED).exists()
