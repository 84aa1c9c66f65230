"""Ray from the command line: interrupts, addresses, one line for what cannot work, and what the terminal shows."""

from __future__ import annotations

import csv
import io
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray_clusters import workers
from rich.console import Console
from small_plans import small

from varangian import BadInput, RayCluster, cli
from varangian.engine.options import RunOptions
from varangian.experiments import sweep
from varangian.experiments.cells import cells, play
from varangian.experiments.config import as_toml
from varangian.experiments.folder_state import UNFINISHED
from varangian.experiments.summary import write_summary
from varangian.report.terminal import Terminal

ray = pytest.importorskip("ray", reason="needs Ray")
HERE = RayCluster()
LONG = 1200
"""Seconds after which a busy machine is given up on."""


def command(*options: str, address: str = "local") -> list[str]:
    return [sys.executable, "-m", "varangian", "run", *options, "--engine", "ray", "--address", address]


def read(folder: Path) -> list[dict[str, str]]:
    with (folder / "summary.csv").open(encoding="utf-8", newline="") as file:
        return [{**row, "seconds": ""} for row in csv.DictReader(file)]


@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_a_folder_to_go_on_with(kill: signal.Signals, cluster: Any, tmp_path: Path) -> None:
    """A cluster of its own at first, which ends with it; the one of this process when it goes on."""
    out = tmp_path / "run"
    plan = small(rules=["alone", "loss-based", "loss-based:keep=all"], byzantine=[3], rounds=2500)
    last = cells(plan)[-1]
    out.mkdir()
    (tmp_path / "config.toml").write_text(as_toml(plan), encoding="utf-8")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # What Ray has put into the environment of this process is about this process's cluster.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    asked = command(str(tmp_path / "config.toml"), "--out", str(out))
    with subprocess.Popen(asked, start_new_session=True, env=clean, **pipes) as running:
        until = time.monotonic() + LONG
        while not (list((out / UNFINISHED).glob("*/cells/*.result")) and workers(str(last), running.pid)):
            assert running.poll() is None and time.monotonic() < until, "it ended, or did not begin"
            time.sleep(0.05)
        time.sleep(0.5)  # the last cell has begun, and is far from its end
        if kill == signal.SIGINT:
            os.killpg(running.pid, kill)  # as a terminal does: everybody hears it
        else:
            running.send_signal(kill)
        told, warned = running.communicate(timeout=LONG)
    assert running.returncode == 130, warned
    assert told == ""
    lines = warned.strip().splitlines()
    assert lines[:-1] == [f"{cell} …" for cell in cells(plan)], "no word of Ray's own"
    assert lines[-1].startswith("varangian: interrupted; go on with: varangian run")
    assert lines[-1].endswith("--engine ray --address local")
    finished = list((out / UNFINISHED).glob("*/cells/*.result"))
    assert 1 <= len(finished) < 3
    assert list((out / UNFINISHED).glob("*/cells/*/*.checkpoint")), "also of cells that were running"
    if kill == signal.SIGTERM:
        return  # what lies there is the same as after an interrupt
    again = command(str(out / "config.toml"), "--resume", "--out", str(out), "--quiet", address=cluster.address)
    done = subprocess.run(again, **pipes, timeout=LONG, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    write_summary(sweep.sweep(plan, None), tmp_path / "summary.csv")
    assert read(out) == read(tmp_path)
    assert not (out / UNFINISHED).exists()


def refused(*arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that the command says before it ends with status 2."""
    monkeypatch.setattr(sys, "argv", ["varangian", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    return told.err.strip()


LINES = {
    "--shards 2": "--shards is for a cluster; add --engine ray, or leave it out",
    "--address auto": "--address is for a cluster; add --engine ray, or leave it out",
    "--engine local --gpus-per-shard 1": "--gpus-per-shard is for a cluster; add --engine ray, or leave it out",
    "--engine rya": "unknown engine 'rya'; did you mean 'ray'? (known: local, ray)",
    "--engine ray --shards 0": "at least one shard, but shards is 0",
    "--engine ray --gpus-per-shard -1": "gpus_per_shard must be finite and 0 or more, but is -1",
    "--engine ray --gpus-per-shard 1.5": "above 1, gpus_per_shard must be a whole number",
    "--engine ray --gpus-per-shard 0.5": "0.5 GPUs are needed (0.5 per cell), but the cluster at local has 0",
    "--engine ray --gpus-per-shard 1 --shards 2": "2 GPUs are needed (1 per shard), but the cluster at local has 0",
}


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("options", LINES)
@pytest.mark.parametrize("verb", ["run", "tournament", "reproduce"])
def test_what_cannot_work_is_said_before_anything_is_written(
    verb: str, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [verb, "target-localization", *options.split(), "--out", str(tmp_path / "out")]
    assert LINES[options] in refused(*asked, monkeypatch=monkeypatch, capsys=capsys)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("run target-localization --tensorboard --out out", "--tensorboard works only in this process"),
        ("run target-localization --threads 2 --out out", "--threads works only in this process"),
        ("tournament target-localization --jobs 2", "--jobs counts processes on this machine"),
    ],
)
def test_what_does_not_go_together_is_said(
    asked: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(*asked.split(), "--engine", "ray", monkeypatch=monkeypatch, capsys=capsys)


def test_without_ray_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadInput, match=re.escape("needs the package ray; install it: pip install varangian[ray]")):
        sweep.sweep(small(), None, engine=HERE)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1 .*start one there with: ray start --head"),
        ("nowhere.invalid:6379", "no Ray cluster answers at nowhere.invalid:6379"),
        ("ray://there:10001", "local, auto, or HOST:PORT"),
        ("6379", "local, auto, or HOST:PORT"),
    ],
)
def test_an_address_without_a_cluster_is_one_line(address: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(BadInput, match=said), RayCluster(address).connected():
        pass
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(BadInput, match=said), RayCluster("auto").connected():
        pass


def test_a_connection_that_was_there_is_left(cluster: Any) -> None:
    with RayCluster("127.0.0.1:1").connected():
        assert ray.get_runtime_context().gcs_address == cluster.address
    assert ray.is_initialized()
    assert HERE.tasks_at_once() == 2


def test_a_gpu_is_for_those_who_asked_for_one() -> None:
    with pytest.raises(BadInput, match="device cuda takes GPUs of the cluster; add --gpus-per-shard"):
        sweep.sweep(replace(small(), options=RunOptions(device="cuda")), None, engine=HERE)


def test_one_display_for_the_whole_grid() -> None:
    plan = small()
    first, second, third, _ = cells(plan)
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=110)
    with Terminal(plan, console) as terminal:
        terminal.begin(first)
        terminal.follow({first: 20, second: 10})
        assert terminal.bar.tasks[0].completed == 30
        console.print(terminal.shown())
        terminal.finish(first, play(plan, first, None, False, []))
        assert terminal.bar.tasks[0].completed == 40 + 10
        terminal.follow({second: 30, third: 0})
        assert terminal.bar.tasks[0].completed == 40 + 30
        console.print(terminal.shown())
    told = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    assert "0 of 4 cells done, 2 running" in told
    assert "1 of 4 cells done, 2 running" in told
    assert f" 50%  {first}" in told
    assert f" 75%  {second}" in told
    assert f"  0%  {third}" in told
