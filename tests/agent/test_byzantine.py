"""What Byzantine processes send: the attack of a simulation, to all or to each, and garbage that receivers refuse."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fleets import config_of, name_of

from varangian import BadInput, attacks, studies
from varangian.agent.byzantine import ByzantineNode, check_attack
from varangian.agent.config import share_of
from varangian.agent.hostile import EVERY, MODES, Workshop, check_mode, hostile_payloads
from varangian.agent.mailbox import Limits, Mailbox
from varangian.agent.message import Header, Message, Schema, decode, encode
from varangian.core.draws import Draws

AGENTS, ME = 4, 3
STUDY = {"agents": AGENTS, "radius": 5.0}


class Recorded:
    """A transport that only remembers what was sent, and to whom."""

    def __init__(self) -> None:
        self.sent: list[tuple[str | None, bytes]] = []

    def publish(self, payload: bytes, to: str | None = None) -> None:
        self.sent.append((to, payload))

    def connected(self) -> frozenset[str]:
        return frozenset(map(name_of, range(AGENTS)))

    def close(self) -> None: ...


def sent_by(attack: Any, folder: Path, rounds: int = 2, hostile: str | None = None) -> tuple[Recorded, Schema]:
    config = config_of(ME, [0, 1, 2], folder, pace="free", period=0.0, rounds=rounds)
    config = replace(config, task=replace(config.task, settings=STUDY))
    schema = Schema.of(share_of(config).task.model)
    mailbox = Mailbox([name_of(other) for other in range(ME)], schema, lambda sender, body: body)
    for other in range(ME):
        header = Header(name_of(other), 1, 0, 0.0, schema.fingerprint)
        vector = torch.full((schema.numbers,), float(other))
        mailbox.offer(name_of(other), encode(Message(header, vector), schema), time.monotonic())
    transport = Recorded()
    ByzantineNode(config, attack, (ME,), mailbox, transport, schema, bytes, 1, hostile).run()
    return transport, schema


def test_the_papers_attack_is_that_of_the_simulation(tmp_path: Path) -> None:
    transport, schema = sent_by(attacks.uniform(15, 16), tmp_path, rounds=3)
    assert [to for to, _ in transport.sent] == [None] * 3
    for round, (_, payload) in enumerate(transport.sent):
        message = decode(payload, schema, name_of(ME))
        drawn = Draws.of(0, AGENTS).take(torch.tensor([ME])).uniform("uniform attack", round, schema.numbers)
        torch.testing.assert_close(message.vector, drawn[0] + 15)
        assert message.header.round == round


def test_a_two_faced_process_sends_every_neighbour_its_own_message(tmp_path: Path) -> None:
    """`pulling` sends each victim a point between the victim's model and the target of the attack."""
    transport, schema = sent_by(attacks.pulling(point=(0.0, 0.0), step=0.5), tmp_path)
    first = {to: decode(payload, schema, name_of(ME)).vector for to, payload in transport.sent[-3:]}
    assert set(first) == {name_of(other) for other in range(ME)}
    assert len({tuple(vector.tolist()) for vector in first.values()}) == 3


def test_a_silent_process_sends_nothing(tmp_path: Path) -> None:
    assert not sent_by(attacks.silent(), tmp_path)[0].sent


def test_an_attack_that_knows_too_much_is_refused() -> None:
    check_attack(attacks.alie())
    with pytest.raises(BadInput, match="best-response knows rule, sample, truth, which a process"):
        check_attack(attacks.best_response())


@pytest.mark.parametrize("mode", MODES)
def test_receivers_refuse_everything_that_a_hostile_sender_makes(mode: str) -> None:
    schema = Schema.of(studies.target_localization(agents=2).scene(0).task.model)
    header = Header("bad", 5, 3, 0.0, schema.fingerprint)

    def valid(session: int, round: int) -> bytes:
        about = replace(header, session=session, round=round)
        return encode(Message(about, torch.zeros(schema.numbers)), schema)

    limits = Limits(patience=10**6, pace=1.0)
    mailbox = Mailbox(["bad"], schema, lambda sender, body: body, limits)
    for earlier in (valid(5, 0), valid(5, 1), valid(5, 2)):  # what the sender had sent before it turned hostile
        mailbox.offer("bad", earlier, time.monotonic())
        mailbox.collect(time.monotonic())
    assert mailbox.accepted == {"bad": 3}
    payloads = hostile_payloads(mode, Workshop(schema, bytes, header, valid(5, 0)))
    for payload in payloads:
        mailbox.offer("bad", payload, time.monotonic())
        mailbox.collect(time.monotonic())
    assert mailbox.accepted == {"bad": 3}
    assert sum(mailbox.rejected.values()) == len(payloads)


def test_every_mode_has_something_to_send(tmp_path: Path) -> None:
    for mode in EVERY:
        assert check_mode(mode) == mode
    transport, _ = sent_by(attacks.silent(), tmp_path, rounds=len(MODES), hostile="all")
    assert len(transport.sent) > len(MODES)
    with pytest.raises(BadInput, match="did you mean 'replay'"):
        check_mode("replays")
