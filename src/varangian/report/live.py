"""The live report of a run in progress, served only to browsers on this machine."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import xarray as xr

from varangian.core.errors import BadInput
from varangian.engine import results
from varangian.engine.callbacks import Callback
from varangian.engine.recorder import Recorder
from varangian.engine.state import State
from varangian.engine.world import World
from varangian.experiments.cells import Cell, cells
from varangian.experiments.config import Plan, as_toml
from varangian.report.cells import Detail, cell_tree, listed_agents, network_tree
from varangian.report.command import command_of
from varangian.report.local_server import NOTHING, Answer, LocalServer
from varangian.report.pack import packed
from varangian.report.page import page
from varangian.report.payload import Progress, Tree, assembled, measured_metrics
from varangian.report.source import Run
from varangian.report.table import Row, Scenario, scenario_of

PAUSE, SHARE = 1.0, 5.0
"""The shortest pause between two snapshots: in seconds, and as a multiple of the time that a snapshot takes."""
OPEN = 5.0
"""A page counts as open if it has sent a request within this number of seconds."""
LINGER = 5.0
"""Seconds that a finished run waits for open pages to fetch the final results."""


class Picture(NamedTuple):
    """A snapshot of the results of a run."""

    number: int
    tree: Tree
    packed: str


class Live:
    """Follows a sweep and serves its page on 127.0.0.1. Snapshots are made only while a page is open."""

    def __init__(self, plan: Plan, port: int = 0) -> None:
        self.plan, self.total, self.finished = plan, len(cells(plan)), 0
        self.known: dict[tuple[str, Scenario], list[xr.Dataset]] = {}
        """The metrics of each cell: one part for each batch of seeds that ran together."""
        self.trees: dict[tuple[str, Scenario], tuple[Sequence[str], Tree]] = {}
        tree = assembled([], [], [], Progress(done=False, text="The run has just begun.", share=0.0))
        self.picture = Picture(0, tree, packed(tree))
        self.asked, self.due, self.fetched = -math.inf, 0.0, threading.Event()
        try:
            self.server = LocalServer(self.answer, port)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or "ports are 1 to 65535"
            raise BadInput(f"--live-port {port} cannot be used: {reason}; leave it out to take a free one") from error

    @property
    def url(self) -> str:
        return self.server.url

    def __enter__(self) -> Self:
        self.server.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Stop the server at the end of the run, after open pages have fetched the final results."""
        if kind is None and self.is_open():
            self.fetched.clear()
            self.publish(Progress(done=True, text="The run is done.", share=1.0))
            self.fetched.wait(LINGER)
        self.server.__exit__()

    def answer(self, path: str, query: Mapping[str, list[str]]) -> Answer:
        """Two addresses: the page, and the changes since a snapshot."""
        if path == "/":
            self.asked, self.due = time.monotonic(), 0.0
            return Answer(200, "text/html", page(self.picture.tree, live=True))
        if path != "/data":
            return NOTHING
        self.asked = time.monotonic()
        picture = self.picture
        old = query.get("after") == [str(picture.number)]
        sent = self.fetched.set if picture.tree["progress"]["done"] else _nothing
        number = {"X-Picture": picture.number}
        return Answer(204 if old else 200, "application/json", "" if old else picture.packed, number, sent)

    def begin(self, cell: Cell) -> Sequence[Callback]:
        return [Rounds(self, cell)]

    def follow(self, running: Mapping[Cell, int]) -> None:
        """Show the number of cells that run in other processes. Their results are shown when they are done."""
        if self.wanted():
            share = self.finished + sum(running.values()) / self.plan.study.rounds / self.plan.seeds
            text = f"{self.finished} of {self.total} cells done, {len(running)} running"
            self.publish(Progress(done=False, text=text, share=share / self.total))

    def finish(self, cell: Cell, result: xr.Dataset) -> None:
        self.finished += 1
        self.learn(cell, [result])

    def learn(self, cell: Cell, parts: list[xr.Dataset]) -> tuple[str, Scenario]:
        """Store the metrics of a cell, under the name that tables use for it."""
        byzantine = int(parts[0]["byzantine_agent"].isel(seed=0).sum())
        key = cell.rule, scenario_of({"byzantine": byzantine, "attack": cell.attack})
        self.known[key] = parts
        self.trees.pop(key, None)
        return key

    def wanted(self) -> bool:
        """Whether a page is open and it is time for another snapshot."""
        return self.is_open() and time.monotonic() >= self.due

    def is_open(self) -> bool:
        return time.monotonic() - self.asked < OPEN

    def publish(self, progress: Progress) -> None:
        """Make another snapshot of all results."""
        began = time.monotonic()
        rows = [row for key, parts in self.known.items() for row in _rows(self.plan.study.name, key, parts)]
        config = as_toml(self.plan)
        run = Run(self.plan.study.name, rows, config=config, command=command_of(config, "runs/again"))
        metrics = measured_metrics(run)
        for key, parts in self.known.items():
            if key not in self.trees or self.trees[key][0] != metrics:
                self.trees[key] = metrics, cell_tree(self._joined(parts), metrics, _detail(parts[0]))
        of_cells = {key: tree for key, (_, tree) in self.trees.items()}
        tree = assembled([run], metrics, [of_cells], progress) if rows else assembled([], [], [], progress)
        if rows:
            # A rule without weights records no senders.
            parts = max(self.known.values(), key=lambda parts: "sender" in parts[0])
            tree["runs"][0]["network"] = network_tree(self._joined(parts), _detail(parts[0]))
        self.picture = Picture(self.picture.number + 1, tree, packed(tree, level=1))
        self.due = time.monotonic() + max(PAUSE, SHARE * (time.monotonic() - began))

    def _joined(self, parts: list[xr.Dataset]) -> xr.Dataset:
        together = results.joined(parts) if len(parts) > 1 else parts[0]
        return together.assign_attrs(by_group=str(int(self.plan.study.by_group)))


@dataclass
class Rounds:
    """Follows the rounds of one cell, and shows them on open pages."""

    live: Live
    cell: Cell
    earlier: list[xr.Dataset] = field(default_factory=list[xr.Dataset])
    """The finished seeds, if not all seeds run at once."""
    recorder: Recorder | None = None
    rounds: int = 1
    began: float = 0.0

    def start(self, world: World, state: State, rounds: int) -> None:
        self.rounds, self.began, self.recorder = rounds, time.perf_counter(), None

    def round(self, world: World, state: State, recorder: Recorder) -> None:
        self.recorder = recorder
        if not self.live.wanted() or not recorder.rounds:
            return
        key = self.live.learn(self.cell, [*self.earlier, self._measured(world, recorder)])
        seeds = sum(part.sizes["seed"] for part in self.earlier) + state.round / self.rounds * len(world.seeds)
        share = (self.live.finished + seeds / self.live.plan.seeds) / self.live.total
        text = (
            f"{self.cell}: round {state.round} of {self.rounds}; {self.live.finished} of {self.live.total} cells done"
        )
        self.live.publish(Progress(done=False, text=text, share=share, running=key))

    def end(self, world: World, state: State) -> None:
        if self.recorder is not None and self.recorder.rounds:
            self.earlier.append(self._measured(world, self.recorder))

    def _measured(self, world: World, recorder: Recorder) -> xr.Dataset:
        return results.labelled(world, recorder, time.perf_counter() - self.began)


def _rows(study: str, key: tuple[str, Scenario], parts: Sequence[xr.Dataset]) -> list[Row]:
    rule, scenario = key
    about = {"study": study, "rule": rule, "attack": scenario.attack, "byzantine": scenario.byzantine}
    return [{**about, **row} for part in parts for row in results.summary(part)]


def _detail(part: xr.Dataset) -> Detail:
    """The detail of a live page. It is not saved, so it need not be small; but one seed is enough."""
    return Detail(agents=listed_agents(part))


def _nothing() -> None: ...
