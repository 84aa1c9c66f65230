"""One agent from its configuration: keys, data, network, state; until it is told to stop."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from varangian.agent import zenoh_log
from varangian.agent.config import AgentConfig, host_and_port, learns, read_config
from varangian.agent.envelope import OVERHEAD, Verifier, seal
from varangian.agent.identity import Identity
from varangian.agent.logs import log_round
from varangian.agent.mailbox import Mailbox, Payload
from varangian.agent.message import Schema
from varangian.agent.metrics import UNUSED, Metrics, read_status
from varangian.agent.node import Node
from varangian.agent.peer_round import Peer
from varangian.agent.sender import Resend, lockstep_resend
from varangian.agent.state import Saver, fingerprint, last_round, load, next_session
from varangian.agent.status import Watcher
from varangian.agent.transport import Addresses, ZenohTransport
from varangian.core.errors import BadInput
from varangian.experiments.lock import locked

ADDRESS = "metrics-address"
"""A file in the state folder: where a running agent serves its metrics."""
HEALTHY = 30.0
"""Seconds that a healthy agent may need for a round, beyond what its pace explains."""

log = logging.getLogger("varangian.agent")


def run_agent(config: AgentConfig, stop: threading.Event, watchers: Sequence[Watcher] = ()) -> None:
    """Play rounds until `stop` is set, or until all rounds of the configuration are finished.

    Args:
        config: The agent.
        stop: Set it to end after the round.
        watchers: Called after every round.
    """
    torch.set_num_threads(1)
    network = zenoh_log.watch()  # before the first session
    identity = identity_of(config)
    peer = Peer(*learns(config))
    with ExitStack() as stack:
        folder = stack.enter_context(state_folder(config))
        mark = fingerprint(peer, config.name)
        found = load(folder, peer, mark)
        for damaged in found.damaged if found else ():
            log.error("%s is damaged: %s", damaged.path, damaged.reason, extra={"event": "damaged state"})
        if found and found.changed:
            log.warning(
                "other neighbours or data than before: the model stays, the evidence about neighbours starts anew",
                extra={"event": "changed"},
            )
        state = found.state if found else peer.first()
        log.info("starts at round %d", state.round, extra={"event": "start", "round": state.round})
        session = next_session(folder)
        watching = [*watchers, *([log_round] if config.log_rounds else [])]
        if config.metrics != UNUSED:
            watching.append(stack.enter_context(served(config, folder)))
        schema = Schema.of(peer.world.model, config.wire_dtype, peer.world.start.dtype)
        mailbox, transport, sealed = connected(config, identity, schema)
        stack.callback(transport.close)
        node = Node(
            config,
            peer,
            state,
            mailbox,
            transport,
            schema,
            sealed,
            session,
            Saver(folder, mark),
            watching,
            stop,
            refused=lambda: {**network.counts, **transport.refused.counts},
        )
        node.run()
        log.info("stops at round %d", node.state.round, extra={"event": "stop", "round": node.state.round})


@contextmanager
def served(config: AgentConfig, folder: Path) -> Iterator[Metrics]:
    """The agent's metrics. Their address is written to the state folder, for `varangian agent status`."""
    with Metrics(config.metrics, patience=HEALTHY + 10 * config.period + config.deadline) as metrics:
        log.info("serves metrics at %s", metrics.address, extra={"event": "metrics", "address": metrics.address})
        (folder / ADDRESS).write_text(metrics.address, encoding="ascii")
        try:
            yield metrics
        finally:
            (folder / ADDRESS).unlink(missing_ok=True)


def status_of(config: AgentConfig) -> dict[str, Any]:
    """What the agent says about itself, or what its state folder says if it does not answer."""
    folder = config.path(config.state)
    try:
        address = (folder / ADDRESS).read_text(encoding="ascii")
    except OSError:
        address = config.metrics
    answered = None if address == UNUSED else read_status(address)
    if answered is not None and answered.get("agent") == config.name:
        return {"running": True, **answered}
    round = last_round(folder)
    return {"running": False, "agent": config.name, "round": None if round < 0 else round}


def metrics_address(text: str) -> str:
    """Where an agent serves its metrics, from that address itself or from the agent's configuration."""
    if not text.endswith(".toml"):
        host_and_port(text, "the address of an agent's metrics")
        return text
    config = read_config(Path(text))
    try:
        return (config.path(config.state) / ADDRESS).read_text(encoding="ascii")
    except OSError:
        if config.metrics == UNUSED:
            raise BadInput(f'{text} serves no metrics; give it a line such as metrics = "127.0.0.1:9464"') from None
        return config.metrics


def identity_of(config: AgentConfig) -> Identity:
    """The agent's keys. Their name must be the agent's."""
    identity = Identity.load(config.path(config.keys))
    if identity.name != config.name:
        raise BadInput(f"the certificate in {config.keys} is for {identity.name}, but the agent is {config.name}")
    return identity


def connected(
    config: AgentConfig, identity: Identity, schema: Schema
) -> tuple[Mailbox, ZenohTransport, Callable[[bytes], bytes]]:
    """A mailbox that the network fills, the transport, and what puts messages into envelopes."""
    names = [one.name for one in config.neighbours]
    mailbox = Mailbox(names, schema, Verifier(identity, config.fleet), config.limits)
    addresses = Addresses(config.listen, {one.name: one.address for one in config.neighbours})

    def deliver(sender: str, payload: Payload) -> None:
        mailbox.offer(sender, payload, time.monotonic())

    resend = lockstep_resend(config.deadline) if config.pace == "lockstep" else Resend()
    transport = ZenohTransport(identity, config.fleet, addresses, deliver, schema.longest + OVERHEAD, resend)
    return mailbox, transport, partial(seal, identity=identity, fleet=config.fleet)


@contextmanager
def state_folder(config: AgentConfig) -> Iterator[Path]:
    """The state folder, locked: two processes with one state would overwrite each other."""
    folder = config.path(config.state)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"the state folder {folder} cannot be made: {error.strerror}") from error
    with locked(folder):
        yield folder


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set within this block, for a process that finishes its round first."""
    stop = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: stop.set()) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
