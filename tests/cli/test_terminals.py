"""What the command line prints: in ASCII, for one seed, for small networks, without an attack."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from commands import ONE, SMALL, assert_refused, in_process_of_its_own, rows_of, varangian_
from own_files import STUDY, forgotten

from varangian import cli
from varangian.report.plain_text import plain

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    with forgotten(tmp_path):
        yield tmp_path


TINY = ("target-localization", "--set", "agents=8", "--rounds", "2", "--seeds", "2", "--byzantine", "2")
COMMANDS: dict[str, Sequence[str]] = {
    "run": ("run", *TINY, "--rule", "alone"),
    "tournament": ("tournament", *TINY, "--rules", "average", "--attacks", "alie", "--jobs", "1"),
    "rules": ("rules",),
    "attacks": ("attacks", "alie"),
    "studies": ("studies", "target-localization"),
    "json": ("rules", "loss-based", "--json"),
    "help": ("run", "--help"),
    "error": ("run", "target-localization", "--attack", "uniform:low=2,high=1"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_terminals_without_unicode_get_everything_in_ascii(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    monkeypatch.setattr(sys, "argv", ["varangian", *COMMANDS[command]])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert (ended.value.code or 0) == (2 if command == "error" else 0)
    for stream in streams:
        stream.flush()
    text = b"".join(stream.buffer.getvalue() for stream in streams).decode("ascii")  # type: ignore[attr-defined]
    assert "Traceback" not in text
    assert {"run": "+- ", "tournament": "x  ", "attacks": "mu_k", "error": "low <= high"}.get(command, "") in text


def test_a_process_without_unicode(here: Path) -> None:
    plainly = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    said = in_process_of_its_own("rules", "loss-based", **plainly)
    assert said.status == 0 and said.err == "" and said.out.isascii()


def test_tables_keep_their_columns_in_ascii() -> None:
    assert plain("0.5 ± 0.1", "ascii") == "0.5 +- 0.1" and plain("0.5 ± 0.1", "latin-1") == "0.5 ± 0.1"


def test_one_seed_has_no_error(here: Path) -> None:
    said = varangian_("run", *ONE, "--out", "run")
    assert said.status == 0 and "±" not in said.out and "1 seed " in said.out
    assert (
        "±"
        not in varangian_(
            "tournament", *SMALL, *("--rules", "average", "--attacks", "silent", "--jobs", 1), "--seeds", 1
        ).out
    )


def test_a_small_network_has_fewer_byzantine_agents(here: Path) -> None:
    for agents, counts in ((1, {"0"}), (10, {"0", "2", "9"})):
        args = ("--set", f"agents={agents}", "--rounds", 2, "--rule", "alone", "--out", f"run{agents}")
        said = varangian_("run", "target-localization", *args)
        assert said.status == 0, said.err
        assert {row["byzantine"] for row in rows_of(here / f"run{agents}")} == counts
    said = varangian_("run", "target-localization", "--set", "agents=10", "--byzantine", 20)
    assert_refused(said, ["20", "10 agents"])


def test_byzantine_agents_without_an_attack_are_said_to_be_silent(here: Path) -> None:
    (here / "calm.py").write_text(STUDY.replace("(vg.attacks.uniform(0, 5),)", "()"), encoding="utf-8")
    said = varangian_("run", "calm.py", "--rule", "alone")
    assert said.status == 0 and "2 Byzantine: silent" in said.out
    assert said.err.startswith("varangian: landmines names no attack, so Byzantine agents are silent")
    assert "names no attack" not in varangian_("run", "calm.py", "--rule", "alone", "--byzantine", 0).err


def test_a_tournament_compares_by_the_metric_of_the_study(here: Path) -> None:
    (here / "own.py").write_text(STUDY.replace('= "test_loss"', '= "loss"'), encoding="utf-8")
    args = ("own.py", "--byzantine", 0, "--seeds", 1)
    assert (
        "landmines, No Byzantine agents: loss at"
        in varangian_("tournament", *args, "--rules", "average", "--jobs", 1).out
    )
    assert "landmines: loss at" in varangian_("run", *args, "--rule", "average").out


def test_a_report_does_not_replace_other_files(here: Path) -> None:
    assert varangian_("run", *ONE, "--out", "run", "-q").status == 0
    (here / "notes.txt").write_text("precious", encoding="utf-8")
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    for name in ("run/metrics.nc", "run/summary.csv", "run/config.toml", "run/tournament.csv", "notes.txt"):
        assert_refused(varangian_("report", "run", "--out", name), [name, "is not a report"])
    assert before == {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    for _ in range(2):  # a report may replace a report
        assert varangian_("report", "run", "--out", "page.html").status == 0
