"""Agents as processes of their own: they end when asked, go on after a kill, and report a full disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import assert_refused, varangian_

pytest.importorskip("zenoh", reason="needs eclipse-zenoh")
from varangian import Graph
from varangian.agent.config import as_toml, read_config
from varangian.agent.fleet import FleetOptions, configurations
from varangian.agent.state import GENERATIONS, last_round
from varangian.experiments.config import plan_for

LONG = 1200.0


@pytest.fixture
def agents(tmp_path: Path) -> list[Path]:
    """The configurations of two agents of target localization, with fresh keys, and without an end."""
    plan = plan_for("target-localization", rules=["loss-based"], byzantine=[0], settings={"agents": 2, "radius": 5.0})
    options = FleetOptions(pace="free", period=0.05, save_every=0.1)
    paths = configurations(plan, options, Graph.complete(2), tmp_path)
    first, second = (replace(read_config(path), rounds=None, metrics="127.0.0.1:0") for path in paths)
    first = replace(first, listen=None)  # as behind a firewall: it reaches the other, and not the other way round
    second = replace(second, neighbours=(replace(second.neighbours[0], address=None),))
    for path, config in zip(paths, (first, second), strict=True):
        path.write_text(as_toml(config), encoding="utf-8")
    return paths


class Agent:
    """`varangian agent run` in a process of its own."""

    def __init__(self, config: Path) -> None:
        self.config, self.log, self.state = config, config.with_suffix(".log"), read_config(config).path("state")
        command = [sys.executable, "-m", "varangian", "agent", "run", str(config)]
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(command, stderr=file, env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.state = Path(read_config(config).state)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def until(self, wanted: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Wait for a line of the log."""
        last = time.monotonic() + LONG
        while time.monotonic() < last:
            for line in self.lines():
                if wanted(line):
                    return line
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        raise AssertionError(f"not in the log:\n{self.log.read_text()}")

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        return self.process.wait(LONG)


def heard(line: dict[str, Any]) -> bool:
    return bool(line.get("event") == "round" and line["status"]["ages"])


def test_an_agent_hears_its_neighbour_ends_when_asked_and_goes_on_after_a_kill(agents: list[Path]) -> None:
    first, second = map(Agent, agents)
    try:
        for agent in (first, second):
            agent.until(heard)
        while not all((first.state / name).exists() for name in GENERATIONS):
            time.sleep(0.05)
        assert first.end(signal.SIGKILL) == -signal.SIGKILL
        known, alone = last_round(first.state), len(second.lines())
        newest = max((first.state / name for name in GENERATIONS), key=lambda path: path.stat().st_mtime)
        newest.write_bytes(newest.read_bytes()[:-10])
        older = last_round(first.state)
        assert 0 < older < known

        first.log.unlink()
        first = Agent(agents[0])
        assert first.until(lambda line: line.get("event") == "damaged state")["level"] == "error"
        assert first.until(lambda line: line.get("event") == "start")["round"] == older
        first.until(heard)
        second.until(lambda line: heard(line) and second.lines().index(line) > alone)
        said = varangian_("agent", "status", agents[0])
        assert said.status == 0 and said.out.startswith("agent-0: round ") and "agent-1, weight " in said.out
        for agent in (first, second):
            assert agent.end() == 0
            stopped = agent.lines()[-1]
            assert stopped["event"] == "stop" and stopped["round"] == last_round(agent.state)
        said = varangian_("agent", "status", agents[0])
        assert said.status == 1 and said.out == f"agent-0: not running, saved at round {last_round(first.state)}\n"
    finally:
        for agent in (first, second):
            agent.process.kill()


def test_mistakes_are_one_line(agents: list[Path], tmp_path: Path) -> None:
    assert_refused(varangian_("agent", "run", tmp_path / "none.toml"), ["cannot be read: No such file"])
    other = replace(read_config(agents[0]), name="agent-1", neighbours=())
    agents[0].write_text(as_toml(other), encoding="utf-8")
    assert_refused(varangian_("agent", "run", agents[0]), ["is for agent-0, but the agent is agent-1"])
