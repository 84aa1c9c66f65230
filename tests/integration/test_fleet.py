"""A fleet of real processes with real sockets: it is the simulation, and it leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import assert_refused, rows_of, varangian_

from varangian import load
from varangian.experiments.config import plan_for
from varangian.experiments.sweep import sweep

pytest.importorskip("zenoh", reason="needs eclipse-zenoh")
from varangian.agent.fleet import FleetOptions, fly

SMALL: dict[str, Any] = {"settings": {"agents": 4, "radius": 5.0}, "rounds": 12}
"""Four agents that all hear each other."""
WORDS = ("--study", "target-localization", "--agents", 4, "--set", "radius=5", "--rounds", 12)
MARK = "VARANGIAN_TEST_MARK"


@pytest.mark.parametrize(("rule", "byzantine"), [("loss-based", 1), ("trimmed-mean", 0)])
def test_a_fleet_in_lockstep_is_the_simulation_also_under_attack(rule: str, byzantine: int) -> None:
    plan = plan_for("target-localization", rules=[rule], attacks=["uniform"], byzantine=[byzantine], **SMALL)
    expected = sweep(plan, None)
    normal = ~expected["byzantine_agent"].values[0, 0]
    found = fly(plan, FleetOptions(deadline=300.0))
    assert list(found["round"].values) == list(expected["round"].values)
    for name in ("loss", "regret", "msd"):
        found_now, expected_now = (one[name].values[..., normal] for one in (found, expected))
        np.testing.assert_allclose(found_now, expected_now, rtol=1e-4, atol=1e-5, err_msg=name)
    assert ("weight" in found) == (rule == "loss-based")
    if "weight" in found:
        weights = found["weight"].values[..., normal, :]
        np.testing.assert_allclose(weights, expected["weight"].values[..., normal, :], atol=1e-5)
        assert found["byzantine_weight"].values[..., normal].shape == (1, 1, 12, 3)


def test_the_command_writes_the_usual_run_folder(tmp_path: Path) -> None:
    out = tmp_path / "run"
    said = varangian_("fleet", "up", *WORDS, "--byzantine", 1, "--deadline", 300, "--out", out)
    assert said.status == 0, said.err
    assert f"Written to {out}" in said.out
    (row,) = rows_of(out)
    about = ("target-localization", "loss-based", "uniform", "1", "0", "12")
    assert tuple(row[name] for name in ("study", "rule", "attack", "byzantine", "seed", "rounds")) == about
    assert 0 <= float(row["byzantine_weight"]) <= 1 and float(row["regret_worst"]) >= float(row["regret_mean"])
    assert (out / "report.html").exists() and list((out / "figures").glob("*.png"))
    assert load(out / "metrics.nc").sizes["round"] == 12
    again = varangian_("run", out / "config.toml", "--out", tmp_path / "again", "--quiet")
    assert again.status == 0, again.err
    (simulated,) = rows_of(tmp_path / "again")
    assert float(simulated["loss_mean"]) == pytest.approx(float(row["loss_mean"]), rel=1e-4)
    assert_refused(varangian_("fleet", "up", *WORDS, "--byzantine", 1, "--out", out), ["holds this run, finished"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--attack", "best-response"), "which a process of a fleet cannot know"),
        (("--hostile", "zip-bom"), "did you mean 'zip-bomb'"),
        (("--hostile", "replay", "--attack", "uniform"), "either an --attack or what is --hostile"),
        (("--pace", "fast"), "unknown value of fleet: pace, 'fast'"),
        (("--rule", "los-based"), "did you mean 'loss-based'"),
        (("--byzantine", "5"), "byzantine must be between 0 and 4"),
        (("--seed", "-1"), "a seed is 0 or a larger number"),
    ],
)
def test_what_a_fleet_cannot_do_is_said_before_anything_is_written(
    words: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    assert_refused(varangian_("fleet", "up", *WORDS, *words, "--out", tmp_path / "run"), [says])
    assert not (tmp_path / "run").exists()


def test_a_temporary_folder_with_too_long_a_name_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (long := tmp_path / ("x" * 90)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    says = ["get too long a name; set TMPDIR to a shorter one"]
    assert_refused(varangian_("fleet", "up", *WORDS, "--out", tmp_path / "run"), says)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_command(how: signal.Signals, tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    temporary = Path(tempfile.mkdtemp())  # not in `tmp_path`: the name of a socket may have about a hundred letters
    command = [sys.executable, "-m", "varangian", "fleet", "up", *map(str, WORDS), "--pace", "free", "--period", "600"]
    environment = {**os.environ, MARK: mark, "TMPDIR": str(temporary)}
    parent = subprocess.Popen([*command, "--out", str(tmp_path / "run")], env=environment)
    while len(marked(mark)) < 6:  # the command, the server that forks, and four agents
        assert parent.poll() is None
        time.sleep(0.2)
    assert len(list(temporary.glob("varangian-fleet-*/authority/ca.key"))) == 1
    parent.send_signal(how)
    assert parent.wait(300) == (-signal.SIGKILL if how is signal.SIGKILL else 130)
    last = time.monotonic() + 300
    while marked(mark):
        assert time.monotonic() < last, "processes are left"
        time.sleep(0.2)
    assert not list(temporary.glob("varangian-fleet-*")), "keys are left"
    shutil.rmtree(temporary)
    if how is not signal.SIGKILL:
        assert [path.name for path in (tmp_path / "run").iterdir()] == []


def marked(mark: str) -> list[int]:
    """The processes that were started with this mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}".encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # it has just ended
            continue
    return found
