"""Following a run while it goes on: in a browser, on a terminal, for TensorBoard."""

from __future__ import annotations

import io
import json
import re
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from rich.console import Console

from varangian import cli
from varangian.core.errors import BadInput
from varangian.engine.recorder import Recorder
from varangian.engine.state import State
from varangian.engine.world import World
from varangian.experiments.cells import Cell
from varangian.experiments.config import Plan, plan_for
from varangian.experiments.sweep import sweep
from varangian.report.live import Live
from varangian.report.terminal import Terminal


def plan(**given: Any) -> Plan:
    usual = {"rules": ["alone", "loss-based"], "byzantine": [3], "seeds": 2, "rounds": 40}
    return plan_for("target-localization", settings={"agents": 12}, **{**usual, **given})


def get(url: str, host: str | None = None) -> tuple[int, str, dict[str, str]]:
    request = urllib.request.Request(url, headers={} if host is None else {"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode(), dict(refused.headers)


class Looking:
    """A reader who asks for news after certain rounds of every cell."""

    def __init__(self, live: Live, after: tuple[int, ...]) -> None:
        self.live, self.after = live, after
        self.heard: list[Any] = []

    def begin(self, cell: Cell) -> list[Any]:
        return [self]

    def finish(self, cell: Cell, result: xr.Dataset) -> None: ...

    def start(self, world: World, state: State, rounds: int) -> None: ...

    def round(self, world: World, state: State, recorder: Recorder) -> None:
        if state.round in self.after:
            self.heard.append(json.loads(get(f"{self.live.url}data")[1])["tree"])
            self.live.due = 0.0  # however busy the machine is: another picture after the next round

    def end(self, world: World, state: State) -> None: ...


@pytest.fixture
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that has asked once stays open, however slow the machine is, and nobody waits for it in the end."""
    monkeypatch.setattr("varangian.report.live.OPEN", 1e9)
    monkeypatch.setattr("varangian.report.live.LINGER", 0.0)


@pytest.mark.usefixtures("no_clock")
def test_a_page_follows_the_run_and_the_server_ends_with_it() -> None:
    with Live(plan()) as live:
        status, page, headers = get(live.url)
        assert (status, headers["Cache-Control"]) == (200, "no-store")
        assert "connect-src 'self'" in page and "text/html" in headers["Content-Type"]
        looking = Looking(live, (5, 7, 30))
        sweep(plan(), None, watchers=[live, looking])
    first, second, third, *later = looking.heard
    assert "alone, 3 Byzantine: uniform: round 1 of 40" in first["progress"]["text"]
    assert "alone, 3 Byzantine: uniform: round 6 of 40; 0 of 2 cells done" in second["progress"]["text"]
    assert [cell["seeds"] for cell in second["cells"]] == [[0, 1]]
    assert [line["rule"] for line in third["lines"]] == ["alone"]
    assert third["progress"]["share"] > second["progress"]["share"]
    assert [line["rule"] for line in later[-1]["lines"]] == ["alone", "loss-based"]
    assert later[-1]["runs"][0]["network"]["size"] == 12
    with pytest.raises(urllib.error.URLError):
        get(live.url)


def test_an_open_page_gets_the_end_before_the_server_goes() -> None:
    ends: list[Any] = []

    def reader(url: str) -> None:
        picture = "0"
        while not ends or not ends[-1]["progress"]["done"]:
            status, text, headers = get(f"{url}data?after={picture}")
            if status == 200:
                picture = headers["X-Picture"]
                ends.append(json.loads(text)["tree"])
            time.sleep(0.01)

    with Live(plan()) as live:
        get(live.url)
        thread = threading.Thread(target=reader, args=(live.url,))
        thread.start()
        sweep(plan(), None, watchers=[live])
    thread.join(10)
    assert not thread.is_alive()
    assert ends[-1]["progress"] == {"done": True, "text": "The run is done.", "share": 1.0}
    assert len(ends[-1]["cells"]) == 2
    assert [cell["entries"][1]["best"] for cell in ends[-1]["cells"]].count(True) == 1


@pytest.mark.usefixtures("no_clock")
def test_seeds_played_one_after_another_are_one_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("varangian.engine.run.seeds_at_once", lambda scene: 1)
    with Live(plan(rules=["loss-based"])) as live:
        get(live.url)
        looking = Looking(live, (5, 7))
        sweep(plan(rules=["loss-based"]), None, watchers=[live, looking])
    (cell,) = looking.heard[-1]["cells"]
    assert cell["seeds"] == [0, 1]
    assert "round 6 of 40" in looking.heard[-1]["progress"]["text"]
    assert looking.heard[-1]["progress"]["share"] == pytest.approx((1 + 6 / 40) / 2)


def test_nothing_is_made_for_nobody() -> None:
    with Live(plan()) as live:
        sweep(plan(), None, watchers=[live])
        assert live.picture.number == 0


@pytest.mark.usefixtures("no_clock")
def test_only_this_machine_is_served() -> None:
    with Live(plan()) as live:
        assert live.server.host == "127.0.0.1"
        port = live.server.port
        assert get(f"http://127.0.0.1:{port}/", host="evil.example")[0] == 403
        assert get(f"http://127.0.0.1:{port}/data", host=f"evil.example:{port}")[0] == 403
        assert get(f"http://127.0.0.1:{port}/data", host=f"localhost:{port}")[0] == 200
        assert get(f"http://127.0.0.1:{port}/../etc/passwd")[0] == 404
        assert get(f"{live.url}data?after=0")[0] == 204
        assert get(f"{live.url}data?after=x")[0] == 200
        with pytest.raises(BadInput, match=f"--live-port {port} cannot be used"):
            Live(plan(), port)
    for port in (-1, 70_000):
        with pytest.raises(BadInput, match="ports are 1 to 65535"):
            Live(plan(), port)


@pytest.mark.usefixtures("no_clock")
def test_watching_changes_no_bit() -> None:
    alone = sweep(plan(), None)
    with Live(plan()) as live, Terminal(plan(), Console(file=io.StringIO(), force_terminal=True)) as terminal:
        get(live.url)
        watched = sweep(plan(), None, watchers=[live, terminal])
    xr.testing.assert_identical(alone.drop_vars("seconds"), watched.drop_vars("seconds"))


ONE = ["run", "target-localization", "--set", "agents=12", "--rounds", "10", "--rule", "average", "--byzantine", "2"]


def varangian(*args: object, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["varangian", *map(str, args)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return int(left.value.code or 0)


def test_run_live_prints_where_and_ends(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert varangian(*ONE, "--live", "--live-port", port, "-q", monkeypatch=monkeypatch) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"Follow the run at http://127.0.0.1:{port}/\n")
    with pytest.raises(urllib.error.URLError):
        get(f"http://127.0.0.1:{port}/")
    assert varangian(*ONE, "--live-port", 70_000, monkeypatch=monkeypatch) == 2
    assert "--live-port 70000 cannot be used" in capsys.readouterr().err


# The terminal.


def test_the_terminal_shows_round_rate_and_every_rule_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("varangian.report.terminal.LOOK", 0.0)
    screen = io.StringIO()
    wide = plan(byzantine=[0, 3])
    with Terminal(wide, Console(file=screen, force_terminal=True, width=150)) as terminal:
        found = sweep(wide, None, watchers=[terminal])
        terminal.live.refresh()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "rounds/s" in plain and "regret so far" in plain
    assert "loss-based, 3 Byzantine: uniform: round 40 of 40" in plain
    assert terminal.bar.tasks[0].completed == terminal.bar.tasks[0].total == 4 * 40 * 2
    normal = found["regret"].where(~found["byzantine_agent"]).sel(round=slice(33, None)).mean("round")
    for place, told in enumerate(terminal.latest.values()):
        assert float(told) == pytest.approx(float(normal.isel(cell=place).mean("agent").mean()), rel=1e-3, abs=1e-4)


def test_elsewhere_a_cell_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Terminal(plan()) as terminal:
        sweep(plan(), None, watchers=[terminal])
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "alone, 3 Byzantine: uniform …\nloss-based, 3 Byzantine: uniform …\n"


# TensorBoard.


def test_without_tensorboard_one_line_says_so_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("varangian.report.scalars.find_spec", lambda name: None)
    assert varangian(*ONE, "--tensorboard", "--out", tmp_path / "run", monkeypatch=monkeypatch) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install tensorboard" in line
    assert varangian(*ONE, "--tensorboard", monkeypatch=monkeypatch) == 2
    assert "--tensorboard needs --out" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_gets_what_the_metrics_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    import varangian as vg

    monkeypatch.setattr("varangian.report.folder.draw_figures", lambda metrics, folder: [])
    out = tmp_path / "run"
    for again in ((), ("--overwrite",)):  # a second run into the same folder leaves nothing of the first
        assert varangian(*ONE, "--seeds", 2, "--tensorboard", "--out", out, "-q", *again, monkeypatch=monkeypatch) == 0
    metrics = vg.load(out / "metrics.nc").isel(cell=0)
    assert len(list((out / "tensorboard").rglob("events.*"))) == 2
    for seed in (0, 1):
        (folder,) = (out / "tensorboard").glob(f"*/seed-{seed}")
        events = EventAccumulator(str(folder))
        events.Reload()
        normal = metrics["regret"].sel(seed=seed).where(~metrics["byzantine_agent"].sel(seed=seed))
        for tag, wanted in (("regret/mean", normal.mean("agent")), ("regret/worst", normal.max("agent"))):
            told = events.Scalars(tag)
            assert [event.step for event in told] == list(range(1, 11))
            np.testing.assert_allclose([event.value for event in told], wanted, rtol=1e-5)
