"""The record of a fleet, from logs that other processes write: as a result, and as a table on the terminal."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from small_tasks import softmax

from varangian import Graph
from varangian.agent.record import FleetRecord, Tail
from varangian.agent.terminal import table_of
from varangian.core.scene import Scene

NAMES = ["a", "b", "c"]


def line(agent: str, round: int, weights: dict[str, float], **changes: Any) -> dict[str, Any]:
    status = {
        "agent": agent,
        "round": round,
        "measured": {"loss": round / 10, "kept": 1.0},
        "evaluated": {"accuracy": 0.5},
        "evaluated_at": 5 if round >= 5 else 0,
        "weights": weights,
        "ages": {name: 0.1 for name in weights if name != agent},
        "rejected": {"c": {"size": 2}},
    }
    return {"event": "round", "status": {**status, **changes}}


def record(rounds: int = 5) -> FleetRecord:
    found = FleetRecord(
        NAMES, Scene(softmax(3), Graph.complete(3)), torch.tensor([False, False, True]), seed=2, rounds=rounds
    )
    for round in range(1, rounds + 1):
        found.add(line("a", round, {"a": 0.5, "b": 0.25, "c": 0.25}))
        if round != 3:  # b was down
            found.add(line("b", round, {"b": 1.0, "a": 0.0, "c": 0.0}))
    found.add({"event": "start", "round": 0})
    return found


def test_the_result_has_what_was_measured_and_nothing_where_an_agent_was_down() -> None:
    result = record().dataset(seconds=3.0)
    assert result["loss"].dims == ("seed", "round", "agent") and list(result["seed"].values) == [2]
    np.testing.assert_allclose(result["loss"].values[0, :, 0], [0.1, 0.2, 0.3, 0.4, 0.5])
    assert np.isnan(result["loss"].values[0, 2, 1]) and np.isnan(result["loss"].values[0, :, 2]).all()
    assert result["byzantine_weight"].values[0, 0, :2].tolist() == [0.25, 0.0]
    assert list(result["epoch"].values) == [1] and result["accuracy"].values[0, 0, 0] == 0.5
    assert result["byzantine_agent"].values.tolist() == [[False, False, True]]
    senders, weights = result["sender"].values[0, 0].tolist(), result["weight"].values[0, -1, 0].tolist()
    assert dict(zip(senders, weights, strict=True)) == {0: 0.5, 1: 0.25, 2: 0.25}


def test_a_line_that_is_not_complete_is_read_later(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    assert list(tail.lines()) == []
    whole = json.dumps({"event": "start"})
    path.write_text(f"Traceback: no JSON\n[1]\n{whole}\n{whole[:5]}")
    assert list(tail.lines()) == [{"event": "start"}]
    with path.open("a") as file:
        file.write(whole[5:] + "\n")
    assert list(tail.lines()) == [{"event": "start"}]


def test_the_table_shows_every_agent_and_whom_it_trusts() -> None:
    said = io.StringIO()
    Console(file=said, width=120).print(table_of(record()))
    rows = [row.split() for row in said.getvalue().splitlines()]
    assert rows[1] == ["a", "5", "of", "5", "0.5000", "accuracy", "0.5000", "2", "50%", "25%", "25%"]
    assert rows[2][-3:] == ["·", "100%", "·"]
    assert rows[3] == ["c", "Byzantine"]
