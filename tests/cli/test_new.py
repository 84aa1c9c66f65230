"""`varangian new`: what it writes runs as it is."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from commands import assert_refused, varangian_
from own_files import forgotten

from varangian.core.user_code import module_of, read_file
from varangian.testing import check_attack, check_rule

pytestmark = pytest.mark.usefixtures("no_figures")

SHORT = {"run": ("--rounds", "2", "--seeds", "1"), "tournament": ("--rounds", "2", "--seeds", "1", "--jobs", "1")}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    with forgotten(tmp_path):
        yield tmp_path


@pytest.mark.parametrize("kind", ["rule", "attack", "study"])
def test_the_file_runs_with_the_commands_that_are_printed(kind: str, here: Path) -> None:
    said = varangian_("new", kind, "two-words")
    assert (said.status, said.err) == (0, "")
    assert [path.name for path in here.iterdir()] == ["two_words.py"]
    printed = [shlex.split(line.partition(": ")[2]) for line in said.out.splitlines()]
    commands = [words[1:] for words in printed if words[0] == "varangian"]
    assert {words[0] for words in commands} >= {"run", "tournament"}
    for number, words in enumerate(commands):
        out = () if "--out" in words or words[0] == "studies" else ("--out", f"out{number}")
        done = varangian_(*words, *SHORT.get(words[0], ()), *out)
        assert done.status == 0, f"{shlex.join(words)}: {done.err}"
        if words[0] == "tournament":
            with (here / f"out{number}" / "tournament.csv").open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
            assert {row["status"] for row in rows} == {"done"}
            assert kind == "study" or "two_words.py" in {row[kind] for row in rows}


def test_the_file_passes_its_check(here: Path) -> None:
    for kind, check in (("rule", check_rule), ("attack", check_attack)):
        assert varangian_("new", kind, f"new-{kind}").status == 0
        module = module_of(read_file(here / f"new_{kind}.py"), f"new_{kind}.py")
        check(getattr(module, f"new_{kind}")())
    assert "margin = 0.0: By which share" in varangian_("rules", "new_rule.py").out


BAD: dict[str, tuple[Sequence[str], str]] = {
    "another kind": (("rul", "mine"), "did you mean 'rule'"),
    "another folder": (("rule", "../mine"), "cannot be a name"),
    "a space": (("rule", "two words"), "cannot be a name"),
    "nothing": (("rule", ""), "cannot be a name"),
    "capitals": (("rule", "Mine"), "cannot be a name"),
    "a digit first": (("rule", "2nd"), "cannot be a name"),
    "a word of Python": (("rule", "lambda"), "cannot be a name"),
    "too long": (("rule", "x" * 61), "cannot be a name"),
    "built in": (("study", "loss-based"), "built-in"),
    "a package": (("attack", "torch"), "hide"),
    "a module of Python": (("attack", "random"), "hide"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_names_are_refused(case: str, here: Path) -> None:
    args, part = BAD[case]
    assert_refused(varangian_("new", *args), [part])
    assert not list(here.iterdir())


def test_nothing_is_overwritten(here: Path) -> None:
    (here / "mine.py").write_text("precious", encoding="utf-8")
    assert_refused(varangian_("new", "rule", "mine"), ["mine.py is there already"])
    assert (here / "mine.py").read_text(encoding="utf-8") == "precious"
