"""A page about a fleet while it runs, served on this machine. It shows a local fleet, or agents that it asks."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from varangian.agent.metrics import finite, read_status
from varangian.agent.record import FleetRecord
from varangian.core.errors import BadInput
from varangian.experiments.summary import PREFERRED
from varangian.report.fleet_page import fleet_page
from varangian.report.local_server import NOTHING, Answer, LocalServer

POINTS = 400
"""The most points of a curve; beyond that every second one is left out."""
EVERY = 1.0
"""Seconds between two questions to an agent."""

Line = list[tuple[int, float]]


@dataclass
class FleetView:
    """What is known of a fleet: the last status of every agent, and curves."""

    title: str
    names: list[str]
    byzantine: frozenset[str] = frozenset()
    """Who is Byzantine, as far as it is known here."""
    text: str = "Waiting for the first round …"
    done: bool = False
    latest: dict[str, Mapping[str, Any] | None] = field(default_factory=dict[str, Mapping[str, Any] | None])
    curves: dict[str, dict[str, Line]] = field(default_factory=dict[str, dict[str, Line]])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, status: Mapping[str, Any]) -> None:
        """Take over the status of an agent."""
        name, metric = status["agent"], _metric(status)
        with self._lock:
            self.latest[name] = status
            self._point("loss", name, status["round"], status["measured"].get("loss"))
            if metric:
                self._point(metric, name, status["evaluated_at"], status["evaluated"][metric])

    def lose(self, name: str) -> None:
        """An agent does not answer."""
        with self._lock:
            self.latest[name] = None

    def tree(self) -> dict[str, Any]:
        """Everything that the page shows."""
        with self._lock:
            known = [status for status in self.latest.values() if status]
            return {
                "text": self.text,
                "done": self.done,
                "metric": next(filter(None, map(_metric, known)), ""),
                "agents": [self._agent(name) for name in self.names],
                "curves": {metric: dict(lines) for metric, lines in self.curves.items() if any(lines.values())},
            }

    def _agent(self, name: str) -> dict[str, Any]:
        status = self.latest.get(name)
        about: dict[str, Any] = {"name": name, "byzantine": name in self.byzantine, "round": None}
        if status:
            metric = _metric(status)
            about |= {key: status[key] for key in ("round", "weights", "ages", "rejected", "muted")}
            about |= {"loss": status["measured"].get("loss"), "value": status["evaluated"].get(metric)}
        return about

    def _point(self, metric: str, name: str, round: int, value: float | None) -> None:
        line = self.curves.setdefault(metric, {}).setdefault(name, [])
        if value is None or not abs(value) < float("inf") or (line and line[-1][0] >= round):
            return
        line.append((round, value))
        if len(line) > POINTS:
            del line[1:-1:2]


def page_server(view: FleetView, port: int = 0) -> LocalServer:
    """Serves the page and what it shows on 127.0.0.1. Port 0 takes a free one."""

    def answer(path: str, query: Mapping[str, list[str]]) -> Answer:
        if path == "/":
            return Answer(200, "text/html", fleet_page(view.title))
        if path == "/data":
            return Answer(200, "application/json", json.dumps(finite(view.tree())))
        return NOTHING

    try:
        return LocalServer(answer, port)
    except (OSError, OverflowError) as error:
        raise BadInput(f"port {port} cannot be used: {error}; leave it out to take a free one") from error


def followed(view: FleetView) -> Callable[[FleetRecord], None]:
    """A watcher of a local fleet that keeps a view up to date."""
    seen: dict[str, int] = {}

    def watch(record: FleetRecord) -> None:
        for name in record.names:
            for round in sorted(round for round in record.of.get(name, {}) if round > seen.get(name, 0)):
                view.add(record.of[name][round])
                seen[name] = round
        slowest = min((seen.get(name, 0) for name in record.names if name not in view.byzantine), default=0)
        view.text = f"Round {slowest} of {record.rounds}."
        view.done = slowest >= record.rounds

    return watch


def ask(view: FleetView, addresses: Sequence[str], stop: threading.Event, every: float = EVERY) -> None:
    """Ask agents how they are, again and again, until `stop` is set. Their names become known when they answer.

    Args:
        view: Is kept up to date.
        addresses: Where the agents serve their metrics.
        stop: Ends it.
        every: Seconds between two questions.
    """
    names = dict(zip(addresses, view.names, strict=True))
    with ThreadPoolExecutor(min(32, len(addresses))) as pool:
        while not stop.is_set():
            began = time.monotonic()
            for address, status in zip(addresses, pool.map(read_status, addresses), strict=True):
                if status is None:
                    view.lose(names[address])
                    continue
                if status["agent"] != names[address]:
                    view.names[view.names.index(names[address])] = names[address] = status["agent"]
                view.add(status)
            answered = sum(status is not None for status in view.latest.values())
            view.text = f"{answered} of {len(addresses)} agents answer."
            stop.wait(max(0.0, began + every - time.monotonic()))


def _metric(status: Mapping[str, Any]) -> str:
    """The metric on held-out data that people look at first."""
    return next((metric for metric in PREFERRED if metric in status["evaluated"]), "")
