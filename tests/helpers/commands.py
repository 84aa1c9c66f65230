"""The command line as tests use it: in this process, or in one of its own."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import varangian
from varangian import cli

SMALL = ("target-localization", "--set", "agents=12", "--rounds", "10")
ONE = (*SMALL, "--rule", "alone", "--byzantine", "2")


@dataclass
class Said:
    status: int
    out: str
    err: str


def varangian_(*args: object) -> Said:
    """Run the command line in this process."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["varangian", *map(str, args)]
    try:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as left:
            cli.main()
    finally:
        sys.argv = before
    code = left.value.code
    assert code is None or isinstance(code, int)
    return Said(code or 0, out.getvalue(), err.getvalue())


def in_process_of_its_own(*args: object, **environment: str) -> Said:
    command = [sys.executable, "-m", "varangian", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env={**os.environ, **environment})
    return Said(done.returncode, done.stdout, done.stderr)


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "summary.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def assert_same_bits(one: Path, other: Path) -> None:
    a, b = varangian.load(one / "metrics.nc"), varangian.load(other / "metrics.nc")
    assert list(a.variables) == list(b.variables), (list(a.variables), list(b.variables))
    assert a.attrs == b.attrs
    for name in a.variables:
        if name != "seconds":
            assert a[name].dtype == b[name].dtype
            assert a[name].dims == b[name].dims
            np.testing.assert_array_equal(a[name].values, b[name].values, err_msg=str(name))
    without_seconds = [[{**row, "seconds": ""} for row in rows_of(folder)] for folder in (one, other)]
    assert without_seconds[0] == without_seconds[1]


def assert_refused(said: Said, parts: Sequence[str]) -> None:
    assert said.status == 2
    assert said.out == ""
    assert said.err.endswith("\n")
    (line,) = said.err.splitlines()
    assert "Traceback" not in line
    for part in parts:
        assert part in line
