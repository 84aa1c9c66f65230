"""What there is, help and version."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any

import pytest
from commands import varangian_

import varangian
from varangian import attacks, rules, studies
from varangian.cli import listing
from varangian.experiments.spec import catalogue


@pytest.mark.parametrize(("command", "room"), [("rules", rules), ("attacks", attacks), ("studies", studies)])
def test_listings_name_everything_in_one_line_each(command: str, room: Any) -> None:
    names = sorted(catalogue(room))
    assert {"rules": 4, "attacks": 9, "studies": 4}[command] <= len(names)
    plain = varangian_(command)
    assert (plain.status, plain.err) == (0, "")
    told = [re.split(r"\s{2,}", line, maxsplit=2 if command == "attacks" else 1) for line in plain.out.splitlines()]
    assert [row[0] for row in told] == names
    as_json = varangian_(command, "--json")
    assert (as_json.status, as_json.err) == (0, "")
    listed = json.loads(as_json.out)
    assert [(row["name"], row["description"]) for row in listed] == [(row[0], row[-1]) for row in told]
    if command == "attacks":
        assert [", ".join(row["knows"]) or "nothing" for row in listed] == [row[1] for row in told]
        assert {"nothing", "messages"} <= {row[1] for row in told}
    assert all(len(row[-1]) > 20 and "\n" not in row[-1] for row in told)


def test_listings_on_a_terminal_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Square brackets are rich's markup: `[bold]` once vanished."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(listing, "first_line", lambda value: f"U[low, high] of {value.__name__}")
    with redirect_stdout(screen):
        listing.attacks()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
    assert plain.count("U[low, high] of ") == len(catalogue(attacks))
    assert all(name in plain for name in catalogue(attacks))


@pytest.mark.parametrize("args", [("--version",), ("--help",), ("run", "--help"), ("-h",)])
def test_help_and_version_do_not_wait_for_torch(args: Sequence[str]) -> None:
    code = """
import sys
from varangian.cli import main
try:
    main()
finally:
    heavy = {"torch", "xarray", "matplotlib", "scipy", "networkx", "pandas"} & sys.modules.keys()
    print("LOADED", *heavy)
"""
    command = [sys.executable, "-c", code, *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env={**os.environ, "COLUMNS": "160"})
    *shown, loaded = done.stdout.splitlines()
    assert (done.returncode, done.stderr, loaded) == (0, "", "LOADED")
    if args == ("--version",):
        assert shown == [f"varangian {varangian.__version__}"]
    elif args == ("run", "--help"):
        promised = ["rule", "attack", "byzantine", "seeds", "rounds", "set", "device", "out", "quiet", "resume"]
        assert all(f"--{option}" in done.stdout for option in promised)
    else:
        assert all(name in done.stdout for name in ("run", "rules", "attacks", "studies", "data"))


def test_no_arguments_show_the_help_and_nothing_else() -> None:
    said = varangian_()
    assert said.status == 2
    assert "Usage" in said.out + said.err
    assert "varangian:" not in said.err
