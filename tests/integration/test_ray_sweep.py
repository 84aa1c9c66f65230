"""Sweeps and tournaments on a Ray cluster: the same numbers, whatever dies, and folders that can be left."""

from __future__ import annotations

import csv
import io
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import xarray as xr
from rich.console import Console
from tournaments import values_of, without_pictures

import varangian
from varangian import BadInput, RayCluster, cli, rules
from varangian.engine import results
from varangian.engine.callbacks import Callback
from varangian.engine.cluster.task_pool import in_tasks
from varangian.engine.options import RunOptions
from varangian.engine.process_pool import Lost
from varangian.experiments import sweep
from varangian.experiments.cells import Cell, cells, play
from varangian.experiments.config import Plan, as_toml, plan_for
from varangian.experiments.folder_state import UNFINISHED
from varangian.experiments.summary import write_summary
from varangian.experiments.tournament.entries import Contest, enter
from varangian.experiments.tournament.run import compete
from varangian.report.terminal import Terminal
from varangian.report.tournament import compete_into

ray = pytest.importorskip("ray")
torch.set_num_threads(1)
no_picture = pytest.fixture(without_pictures)

HERE = RayCluster()


def small(**changed: Any) -> Plan:
    asked: dict[str, Any] = {
        "rules": ["alone", "loss-based"],
        "attacks": ["uniform"],
        "byzantine": [0, 3],
        "seeds": 2,
        "rounds": 20,
        "settings": {"agents": 10},
    }
    return plan_for("target-localization", **(asked | changed))


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A cluster of two cores on this machine, which this process is connected to; its address."""
    about: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    ray.init(address="local", num_cpus=2, num_gpus=0, object_store_memory=200 * 2**20, **about)
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@dataclass
class Watching:
    """Notes what a watcher hears, and may do something when it hears how far cells are."""

    heard: list[str]
    at: Any = None

    def begin(self, cell: Cell) -> Sequence[Callback]:
        self.heard.append(f"begin {cell}")
        return []

    def follow(self, running: Mapping[Cell, int]) -> None:
        if self.at is not None:
            self.at(running)

    def finish(self, cell: Cell, result: xr.Dataset) -> None:
        self.heard.append(f"finish {cell}")


def untimed(found: xr.Dataset) -> xr.Dataset:
    return found.drop_vars("seconds")


def own_worker(cell: Cell) -> int:
    """The process that a cluster which this process started has given a cell to."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if place.joinpath("cmdline").read_bytes().startswith(f"ray::{cell}".encode()):
                raylet = _parent(int(place.name))
                if _parent(raylet) == os.getpid():
                    return int(place.name)
        except OSError:
            continue
    return 0


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


# --------------------------------------------------------------------------------------------- the same numbers


@pytest.mark.usefixtures("cluster")
def test_a_sweep_on_ray_is_the_sweep_here(tmp_path: Path) -> None:
    plan = small(attacks=["uniform", "silent"])
    here, rounds, watching = sweep.sweep(plan, None), list[int](), Watching([])
    there = sweep.sweep(plan, tmp_path, advance=rounds.append, watchers=[watching], engine=HERE)
    xr.testing.assert_identical(untimed(there), untimed(here))
    assert all(there[name].dtype == here[name].dtype for name in here.variables)
    assert sum(rounds) == len(cells(plan)) * plan.study.rounds * plan.seeds
    assert sorted(watching.heard) == sorted(f"{what} {cell}" for what in ("begin", "finish") for cell in cells(plan))
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == sorted({f"{cell.key}.nc" for cell in cells(plan)}), "each once, and no checkpoint"


@pytest.mark.usefixtures("cluster")
def test_what_was_begun_here_goes_on_there_and_nothing_finished_is_run_again(tmp_path: Path) -> None:
    plan = small()
    whole = sweep.sweep(plan, tmp_path)
    first, *others = (tmp_path / f"{cell.key}.nc" for cell in cells(plan))
    results.save(results.load(first).assign(seconds=("seed", [1234.5, 1234.5])), first)
    for other in others:
        other.unlink()
    found = sweep.sweep(plan, tmp_path, resume=True, engine=HERE)
    assert found["seconds"][0].values.tolist() == [1234.5, 1234.5], "as it was found"
    xr.testing.assert_identical(untimed(found), untimed(whole))
    again = sweep.sweep(plan, tmp_path, resume=True)
    xr.testing.assert_identical(again, found)


@pytest.mark.usefixtures("cluster", "no_picture")
def test_a_tournament_on_ray_is_the_tournament_here(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class stubborn:
        """A rule of one's own, which no other process can import."""

        broken: bool = False

        def init(self, table: Any) -> Any:
            return rules.alone().init(table)

        def combine(self, inbox: Any, state: Any) -> Any:
            if self.broken:
                raise ZeroDivisionError("oh")
            return rules.alone().combine(inbox, state)

    def contest(*own: Any) -> Contest:
        asked: dict[str, Any] = {"byzantine": [3], "seeds": 2, "rounds": 20, "settings": {"agents": 10}}
        return enter(
            "target-localization", rules=["average", *own], attacks=["uniform", "pulling:point=1/2/3"], **asked
        )

    rounds: list[int] = []
    entered = contest(stubborn(), stubborn(broken=True))
    there = compete_into(entered, tmp_path / "there", advance=rounds.append, engine=HERE)
    assert repr(values_of(there)) == repr(values_of(compete(entered)))  # nan is not itself
    assert sum(rounds) == len(entered.cells) * 20 * 2
    problems = {outcome.problem.partition(":")[0] for outcome in there.outcomes}
    assert problems == {"", "not applicable", "failed"}
    some: dict[str, Any] = {"attacks": ["silent"], "byzantine": [3], "seeds": 1, "settings": {"agents": 10}}
    asked = varangian.tournament("target-localization", rules=["average"], rounds=9, engine=HERE, **some)
    assert values_of(asked) == values_of(
        varangian.tournament("target-localization", rules=["average"], rounds=9, **some)
    )


# ------------------------------------------------------------------------------------------------ what may die


@pytest.mark.usefixtures("cluster")
def test_a_cell_whose_process_is_killed_is_run_again() -> None:
    plan = small(rules=["loss-based"], byzantine=[3], rounds=3000)
    killed, far = list[int](), list[int]()

    def kill(running: Mapping[Cell, int]) -> None:
        far.extend(running.values())
        if not killed and any(running.values()) and (process := own_worker(cells(plan)[0])):
            os.kill(process, signal.SIGKILL)
            killed.append(process)

    watching, rounds = Watching([], kill), list[int]()
    found = sweep.sweep(plan, None, watchers=[watching], advance=rounds.append, engine=HERE)
    assert len(killed) == 1
    assert 0 < max(far) < 6000, "in the middle of the cell"
    assert watching.heard == [f"begin {cells(plan)[0]}"] * 2 + [f"finish {cells(plan)[0]}"]
    assert sum(rounds) == 6000
    xr.testing.assert_identical(untimed(found), untimed(sweep.sweep(plan, None)))


@pytest.mark.usefixtures("cluster")
def test_a_piece_of_a_killed_process_is_tried_once_more(tmp_path: Path) -> None:
    once = f"test -e {tmp_path}/trace || {{ touch {tmp_path}/trace; kill -9 $PPID; }}"
    pieces, begun = [once, "kill -9 $PPID", "true"], list[str]()
    found = dict(in_tasks(partial(subprocess.call, shell=True), pieces, HERE, begun.append))
    assert found == {once: 0, "kill -9 $PPID": Lost(None), "true": 0}
    assert sorted(begun) == sorted([once, once, "kill -9 $PPID", "kill -9 $PPID", "true"])
    assert "died 2 times" in str(Lost(None))


@pytest.mark.usefixtures("cluster")
def test_whoever_stops_asking_ends_what_is_running(tmp_path: Path) -> None:
    def write(number: int) -> int:
        for _ in range(600 if number else 1):  # in short sleeps, between which an interrupt is heard
            (tmp_path / f"{number}").write_text(str(time.time()))
            time.sleep(0.05)
        return number

    with closing(in_tasks(write, [0, 1, 2, 3], HERE)) as finishing:
        assert next(finishing) == (0, 0)
    last = {path.name: path.read_text() for path in tmp_path.iterdir()}
    time.sleep(0.5)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == last


@pytest.mark.usefixtures("cluster")
def test_a_cell_that_cannot_be_computed_ends_the_sweep_with_one_line(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class faulty(Plan):
        def rule(self, name: str) -> Any:
            if name == "average":
                raise BadInput("an average of\nnothing")
            return super().rule(name)

    usual = small(rules=["alone", "loss-based", "average"], byzantine=[0])
    plan = faulty(**{name: getattr(usual, name) for name in usual.__dataclass_fields__})
    with pytest.raises(BadInput, match=r"^average, 0 Byzantine: an average of nothing$"):
        sweep.sweep(plan, tmp_path, engine=HERE)
    finished = {path.name for path in tmp_path.glob("*.nc")}
    assert finished <= {f"{cell.key}.nc" for cell in cells(plan)[:2]}
    found = sweep.sweep(usual, tmp_path, resume=True, engine=HERE)
    xr.testing.assert_identical(untimed(found), untimed(sweep.sweep(usual, None)))


@pytest.mark.usefixtures("cluster")
def test_what_a_machine_cannot_import_and_what_fails_there_is_one_line() -> None:
    class Elsewhere:
        def __reduce__(self) -> Any:
            return __import__, ("a_module_of_this_machine_only",)

        def __call__(self, piece: int) -> int:
            return piece

    with pytest.raises(BadInput, match=r"^3: a machine of the cluster lacks something .*install it there too$"):
        list(in_tasks(Elsewhere(), [3], HERE))
    with pytest.raises(BadInput, match=r"^3: failed: ZeroDivisionError: .* by zero$"):
        list(in_tasks(lambda piece: piece // 0, [3], HERE))
    with pytest.raises(BadInput, match="cannot be sent to other processes"):
        list(in_tasks(partial(lambda lock, piece: piece, threading.Lock()), [3], HERE))


# ---------------------------------------------------------------------------------------------- the command line


def command(*options: str, address: str = "local") -> list[str]:
    return [sys.executable, "-m", "varangian", "run", *options, "--engine", "ray", "--address", address]


def read(folder: Path) -> list[dict[str, str]]:
    with (folder / "summary.csv").open(encoding="utf-8", newline="") as file:
        return [{**row, "seconds": ""} for row in csv.DictReader(file)]


@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_a_folder_to_go_on_with(kill: signal.Signals, cluster: str, tmp_path: Path) -> None:
    """A cluster of its own at first, which ends with it; the one of this process when it goes on."""
    out = tmp_path / "run"
    plan = small(rules=["alone", "loss-based", "loss-based:keep=all"], byzantine=[3], rounds=3000)
    out.mkdir()
    (tmp_path / "config.toml").write_text(as_toml(plan), encoding="utf-8")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # What Ray has put into the environment of this process is about this process's cluster.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    asked = command(str(tmp_path / "config.toml"), "--out", str(out))
    with subprocess.Popen(asked, start_new_session=True, env=clean, **pipes) as running:
        until = time.monotonic() + 60
        while not list((out / UNFINISHED).glob("*/cells/*.nc")) and time.monotonic() < until and running.poll() is None:
            time.sleep(0.05)
        time.sleep(0.5)  # the next cell has begun by then, and is far from its end
        if kill == signal.SIGINT:
            os.killpg(running.pid, kill)  # as a terminal does: everybody hears it
        else:
            running.send_signal(kill)
        told, warned = running.communicate(timeout=60)
    assert running.returncode == 130, warned
    assert told == ""
    lines = warned.strip().splitlines()
    assert lines[:-1] == [f"{cell} …" for cell in cells(plan)], "no word of Ray's own"
    assert lines[-1].startswith("varangian: interrupted; go on with: varangian run")
    assert lines[-1].endswith("--engine ray --address local")
    finished = list((out / UNFINISHED).glob("*/cells/*.nc"))
    assert 1 <= len(finished) < 3
    assert list((out / UNFINISHED).glob("*/cells/*/*.checkpoint")), "also of cells that were running"
    again = command(str(out / "config.toml"), "--resume", "--out", str(out), "--quiet", address=cluster)
    done = subprocess.run(again, **pipes, timeout=100, check=False)
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
    "--engine ray --gpus-per-shard -1": "but gpus_per_shard is -1",
    "--engine ray --gpus-per-shard 1.5": "more GPUs than one are whole ones",
    "--engine ray --gpus-per-shard 0.5": "0.5 GPUs are needed (0.5 a cell), but the cluster at local has 0",
    "--engine ray --gpus-per-shard 1 --shards 2": "2 GPUs are needed (1 a shard), but the cluster at local has 0",
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
        ("run target-localization --tensorboard --out out", "--tensorboard watches rounds played by this process"),
        ("run target-localization --threads 2 --out out", "--threads is for rounds played by this process"),
        ("tournament target-localization --jobs 2", "--jobs counts processes of this machine"),
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


def test_a_connection_that_was_there_is_left(cluster: str) -> None:
    with RayCluster("127.0.0.1:1").connected():
        assert ray.get_runtime_context().gcs_address == cluster
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
