"""A fleet in lockstep is the simulation; absent, stale and late neighbours; every fault costs only what it must."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fleets import models_of, name_of, node_of, play_together
from loopback import Hub, Lossy
from small_tasks import softmax

from varangian import Graph, rules
from varangian.agent.sender import Resend
from varangian.agent.state import Saver
from varangian.attacks.simple import silent
from varangian.core.scene import Scene
from varangian.engine.round import play_round
from varangian.engine.state import begin
from varangian.engine.world import prepare
from varangian.rules.cross_fitted import cross_fitted

AGENTS, ROUNDS = 5, 50
GRAPH = Graph.ring(AGENTS)


def simulated(rule: Any, rounds: int = ROUNDS, graph: Graph = GRAPH) -> torch.Tensor:
    world = prepare([Scene(softmax(AGENTS), graph)], [0], 0)
    state = begin(world, rule, silent())
    with torch.no_grad():
        for _ in range(rounds):
            state, _ = play_round(world, rule, silent(), state)
    return state.models


@pytest.mark.parametrize("rule", [rules.loss_based(), rules.trimmed_mean(), rules.anchored(), cross_fitted()], ids=repr)
def test_a_fleet_in_lockstep_gives_the_models_of_the_simulation(rule: Any, tmp_path: Path) -> None:
    hub = Hub()
    nodes = [node_of(softmax(AGENTS), GRAPH, rule, number, hub, tmp_path) for number in range(AGENTS)]
    play_together(nodes, ROUNDS)
    torch.testing.assert_close(models_of(nodes), simulated(rule), rtol=0, atol=1e-6)


@pytest.mark.parametrize("loss", [0.1, 0.6])
def test_messages_that_get_lost_change_nothing_in_lockstep(loss: float, tmp_path: Path) -> None:
    """Every sender repeats its last two messages until its neighbours have gone on. Nobody goes on without one."""
    rule, hub, graph = rules.loss_based(), Hub(), Graph.complete(AGENTS)
    nodes = [node_of(softmax(AGENTS), graph, rule, number, hub, tmp_path) for number in range(AGENTS)]
    names = [name_of(number) for number in range(AGENTS)]
    for node in nodes:
        others = [name for name in names if name != node.config.name]
        node.transport = Lossy(hub, node.config.name, others, loss, Resend(2, first=0.002, longest=0.01))
    try:
        play_together(nodes, ROUNDS)
    finally:
        for node in nodes:
            node.transport.close()
    for node in nodes:
        assert all(len(status.ages) == AGENTS - 1 for status in node.seen)  # type: ignore[attr-defined]
        assert not node.mailbox.rejected, "a repeat is no replay"
    torch.testing.assert_close(models_of(nodes), simulated(rule, ROUNDS, graph), rtol=0, atol=1e-6)


def test_bfloat16_on_the_wire_halves_the_bytes_and_changes_models_a_little(tmp_path: Path) -> None:
    rule, found = rules.average(), {}
    for wire in ("float32", "bfloat16"):
        hub = Hub()
        nodes = [node_of(softmax(AGENTS), GRAPH, rule, k, hub, tmp_path / wire, wire_dtype=wire) for k in range(AGENTS)]
        play_together(nodes, 10)
        sizes = nodes[0].mailbox.received_bytes[name_of(1)]
        found[wire] = models_of(nodes), sizes
    difference = (found["float32"][0] - found["bfloat16"][0]).abs().max()
    assert 0 < difference < 0.02
    numbers = nodes[0].schema.numbers
    saved = found["float32"][1] - found["bfloat16"][1]
    assert abs(saved - 10 * 2 * numbers) <= 10 * 8  # headers are padded to eight bytes


def test_a_neighbour_that_was_not_heard_is_one_that_sent_nothing(tmp_path: Path) -> None:
    """The link between agents 0 and 1 is cut, as if they were no neighbours."""
    rule, hub = rules.loss_based(), Hub(cut={(name_of(1), name_of(0)), (name_of(0), name_of(1))})
    nodes = [node_of(softmax(AGENTS), GRAPH, rule, number, hub, tmp_path) for number in range(AGENTS)]
    for node, lost in ((nodes[0], 1), (nodes[1], 0)):
        node.lockstep.missed[name_of(lost)] = 0
    play_together(nodes, 20)
    path = Graph.from_edges(AGENTS, [edge for a in range(1, AGENTS) for edge in ((a, (a + 1) % 5), ((a + 1) % 5, a))])
    torch.testing.assert_close(models_of(nodes), simulated(rule, 20, path), rtol=0, atol=1e-6)


def test_a_stale_model_is_judged_like_any_other(tmp_path: Path) -> None:
    """At a free pace, the last message of a neighbour that has stopped counts until it is too old."""
    hub = Hub()
    nodes = [node_of(softmax(2), Graph.complete(2), rules.average(), k, hub, tmp_path, pace="free") for k in (0, 1)]
    nodes[1].play()
    for _ in range(3):
        nodes[0].play()
    statuses = nodes[0].seen  # type: ignore[attr-defined]
    assert all(status.weights == {name_of(0): 0.5, name_of(1): 0.5} for status in statuses)
    ages = [status.ages[name_of(1)] for status in statuses]
    assert ages == sorted(ages)
    assert statuses[-1].accepted == {name_of(1): 1}


def test_a_full_disk_is_reported_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = node_of(softmax(2), Graph.complete(2), rules.average(), 0, Hub(), tmp_path, pace="free", period=0.0)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Saver, "save", full)
    node.config = replace(node.config, rounds=5, save_every=0.0)
    assert node.run().round == 5
    assert node.unsaved == 6
    assert "round 1 was not saved, training goes on: the disk is full" in caplog.text


def test_an_agent_that_comes_back_joins_the_round_of_the_others(tmp_path: Path) -> None:
    """Agent 0 is down for some rounds of the others. When it is back, it is heard in their round, and hears them."""
    hub, task, graph = Hub(), softmax(3), Graph.complete(3)
    nodes = [node_of(task, graph, rules.average(), k, hub, tmp_path, deadline=1.0) for k in range(3)]
    play_together(nodes, 2)
    play_together(nodes[1:], 6)  # the first of these rounds waits for agent 0, the others do not
    late = nodes[0]
    late.play()  # hears that the others are elsewhere, and waits for nobody
    late._catch_up()
    assert late.state.round == nodes[1].state.round - 2
    for node in nodes:
        node.lockstep.deadline = 600.0
    late.play()  # the others have finished this round without it, and it has heard them
    assert len(late.seen[-1].ages) == 2  # type: ignore[attr-defined]
    late.play()
    play_together(nodes, 3)
    for node in nodes:
        assert node.seen[-1].round == nodes[0].state.round == 11  # type: ignore[attr-defined]
        assert len(node.seen[-1].ages) == 2  # type: ignore[attr-defined]
