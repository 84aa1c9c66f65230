"""Fleets in one process: one thread per agent, and messages that are handed over without a network."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from loopback import Hub

from varangian import Graph
from varangian.agent.config import AgentConfig, Neighbour, TaskConfig
from varangian.agent.mailbox import Mailbox
from varangian.agent.message import Schema
from varangian.agent.node import Node
from varangian.agent.peer_round import Peer, Share
from varangian.agent.state import Saver, fingerprint
from varangian.agent.status import Status
from varangian.core.task import Task
from varangian.rules.base import Rule

PATIENT = 600.0
"""Seconds: a busy machine must not make a neighbour late."""


def name_of(number: int) -> str:
    return f"agent-{number}"


def config_of(number: int, neighbours: Sequence[int], folder: Path, **changes: Any) -> AgentConfig:
    usual: dict[str, Any] = {"pace": "lockstep", "deadline": PATIENT, "start_deadline": PATIENT, "metrics": "none"}
    return AgentConfig(
        name=name_of(number),
        keys="keys",
        state=str(folder / name_of(number)),
        task=TaskConfig(study="target-localization", agent=number),
        neighbours=tuple(Neighbour(name_of(other), "127.0.0.1:1", other) for other in neighbours),
        **{**usual, **changes},
    )


def node_of(task: Task, graph: Graph, rule: Rule[Any], number: int, hub: Hub, folder: Path, **changes: Any) -> Node:
    """An agent of a network with this task and graph."""
    neighbours = graph.neighbours(number)
    config = config_of(number, neighbours, folder, **changes)
    peer = Peer(Share(task.part(torch.tensor([number])), number, tuple(neighbours)), rule)
    schema = Schema.of(peer.world.model, config.wire_dtype, peer.world.start.dtype)
    mailbox = Mailbox([one.name for one in config.neighbours], schema, lambda sender, body: body, config.limits)
    transport = hub.join(config.name, partial(_offer, mailbox))
    saver = Saver(config.path(config.state), fingerprint(peer, config.name))
    seen: list[Status] = []
    node = Node(config, peer, peer.first(), mailbox, transport, schema, bytes, 1, saver, [seen.append])
    node.seen = seen  # type: ignore[attr-defined]
    return node


def _offer(mailbox: Mailbox, sender: str, payload: bytes) -> None:
    mailbox.offer(sender, payload, time.monotonic())


def play_together(nodes: Sequence[Node], rounds: int) -> None:
    """So many rounds of all agents, one thread each."""

    def play(node: Node) -> None:
        torch.set_num_threads(1)
        for _ in range(rounds):
            node.play()

    with ThreadPoolExecutor(len(nodes)) as pool:
        for done in [pool.submit(play, node) for node in nodes]:
            done.result()


def models_of(nodes: Sequence[Node]) -> torch.Tensor:
    return torch.cat([node.state.models for node in nodes])
