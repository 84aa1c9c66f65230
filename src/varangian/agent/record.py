"""What the processes of a fleet have measured, as the result of a run: read from their logs, round by round."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import xarray as xr
from jaxtyping import Bool
from torch import Tensor

from varangian.agent.logs import ROUND
from varangian.core.graph import Graph
from varangian.core.scene import Scene
from varangian.core.wiring import Wiring
from varangian.engine import results
from varangian.engine.recorder import Recorder, is_snapshot

SNAPSHOTS = 20
UNKNOWN = float("nan")


@dataclass
class Tail:
    """The new lines of a log that another process writes. A line that is not complete yet is read later."""

    path: Path
    _read: int = 0

    def lines(self) -> Iterator[dict[str, Any]]:
        """Every line since the last call that is a JSON object."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        complete = text[: text.rfind(b"\n") + 1]
        self._read += len(complete)
        for line in complete.splitlines():
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                yield found


@dataclass
class FleetRecord:
    """The status of every agent after every round."""

    names: Sequence[str]
    """The name of each agent, in the order of their numbers."""
    scene: Scene
    byzantine: Bool[Tensor, " agent"]
    seed: int
    rounds: int
    of: dict[str, dict[int, Mapping[str, Any]]] = field(default_factory=dict[str, dict[int, Mapping[str, Any]]])
    """The status by agent and round."""

    def add(self, line: Mapping[str, Any]) -> None:
        """Take over a line of a log, if it is about a round."""
        if line.get("event") == ROUND:
            status = line["status"]
            self.of.setdefault(status["agent"], {})[status["round"]] = status

    def latest(self, name: str) -> Mapping[str, Any] | None:
        """The last status of an agent."""
        rounds = self.of.get(name)
        return rounds[max(rounds)] if rounds else None

    def dataset(self, seconds: float) -> xr.Dataset:
        """The result of the run. What an agent did not measure, because it was down, is missing (nan)."""
        recorder = Recorder()
        done = sorted({round for rounds in self.of.values() for round in rounds})
        for round in done:
            now = [self.of.get(name, {}).get(round) for name in self.names]
            recorder.rounds.append(round)
            columns = {metric: _column(now, "measured", metric) for metric in _metrics(now, "measured")}
            if "kept" in columns:  # in the order of a simulation
                kept = columns.pop("kept")
                columns |= {"byzantine_weight": self._byzantine_weight(now), "kept": kept}
            for metric, column in columns.items():
                recorder.streaming.setdefault(metric, []).append(column)
        self._add_held_out(recorder, done)
        senders = self._add_weights(recorder, done)
        return results.dataset([self.scene], [self.seed], self.byzantine, recorder, senders, seconds)

    def _add_held_out(self, recorder: Recorder, done: Sequence[int]) -> None:
        epoch = self.scene.task.epoch
        for round in done:
            now = [self.of.get(name, {}).get(round) for name in self.names]
            now = [status if status and status["evaluated_at"] == round else None for status in now]
            if epoch and any(now):
                recorder.evaluated.append(round)
                recorder.epochs.append(-(-round // epoch))
                for metric in _metrics(now, "evaluated"):
                    recorder.held_out.setdefault(metric, []).append(_column(now, "evaluated", metric))

    def _add_weights(self, recorder: Recorder, done: Sequence[int]) -> Tensor | None:
        """Snapshots of all weights, and the sender in each slot; None if the rule has no weights."""
        assert isinstance(self.scene.graph, Graph)
        wiring = Wiring.of(self.scene.graph, self.byzantine, torch.device("cpu"))
        if not wiring.uniform:
            return None
        senders = wiring.join_tables([table.senders for table in wiring.tables])
        for round in done:
            now = [self.of.get(name, {}).get(round) for name in self.names]
            if is_snapshot(round, self.rounds, SNAPSHOTS) and any(status and status["weights"] for status in now):
                weights = [
                    [(status["weights"] or {}).get(self.names[sender], 0.0) if status else 0.0 for sender in row]
                    for status, row in zip(now, senders.tolist(), strict=True)
                ]
                recorder.weight_rounds.append(round)
                recorder.weights.append(torch.tensor(weights))
        return senders if recorder.weights else None

    def _byzantine_weight(self, now: Sequence[Mapping[str, Any] | None]) -> Tensor:
        """How much weight each agent gives to Byzantine neighbours. Only whoever made the fleet knows who they are."""
        bad = {name for name, is_bad in zip(self.names, self.byzantine.tolist(), strict=True) if is_bad}
        return torch.tensor(
            [
                sum(weight for name, weight in status["weights"].items() if name in bad and name != status["agent"])
                if status and status["weights"]
                else UNKNOWN
                for status in now
            ]
        )


def _metrics(now: Sequence[Mapping[str, Any] | None], kind: str) -> list[str]:
    return list(dict.fromkeys(metric for status in now if status for metric in status[kind]))


def _column(now: Sequence[Mapping[str, Any] | None], kind: str, metric: str) -> Tensor:
    return torch.tensor([status[kind].get(metric, UNKNOWN) if status else UNKNOWN for status in now])
