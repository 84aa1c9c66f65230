"""One process of a fleet: an agent, or a Byzantine agent. It ends when the process that started it ends."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import threading
from dataclasses import dataclass
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import wait
from pathlib import Path

import torch

from varangian.agent.byzantine import ByzantineNode
from varangian.agent.config import AgentConfig, read_config, share_of, study_of
from varangian.agent.flood import start_flood
from varangian.agent.logs import start_logging
from varangian.agent.message import Schema
from varangian.agent.start import connected, identity_of, run_agent, state_folder
from varangian.agent.state import next_session
from varangian.agent.transport import Addresses
from varangian.core.errors import BadInput
from varangian.experiments.config import Plan

FOLDER = "varangian-fleet-"
"""How the name of a fleet's temporary folder begins."""
GRACE = 3.0
"""Seconds that a process has to finish after the process that started it has gone."""

log = logging.getLogger("varangian.agent")


@dataclass(frozen=True)
class Treason:
    """What makes a member Byzantine."""

    attack: str
    byzantine: tuple[int, ...]
    """The numbers of all Byzantine agents."""
    hostile: str | None


def run_member(config: Path, log_file: Path, treason: Treason | None) -> None:
    """The whole life of the process.

    Args:
        config: The file `agent.toml`.
        log_file: Where standard output and error go.
        treason: What a Byzantine member does. None for an agent.
    """
    handle = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    stop = threading.Event()
    # An interrupt from the terminal reaches the whole group; whoever started us decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=_leave_with_parent, args=(stop, config.parent), daemon=True).start()
    try:
        found = read_config(config)
        start_logging(found.name, as_json=True)
        if treason is None:
            run_agent(found, stop)
        else:
            _run_byzantine(found, treason, stop)
    except BadInput as error:
        log.error("%s", error, extra={"event": "bad input"})
        sys.exit(2)
    finally:
        parent = parent_process()
        if parent is not None and not parent.is_alive():
            _clean_up(config.parent)


def _run_byzantine(config: AgentConfig, treason: Treason, stop: threading.Event) -> None:
    torch.set_num_threads(1)
    identity, model = identity_of(config), share_of(config).task.model
    schema = Schema.of(model, config.wire_dtype)
    with state_folder(config) as folder:
        mailbox, transport, seal = connected(config, identity, schema)
        try:
            attack = Plan(study_of(config)).attack(treason.attack)
            session = next_session(folder)
            addresses = Addresses(None, {one.name: one.address for one in config.neighbours})
            node = ByzantineNode(
                config,
                attack,
                treason.byzantine,
                mailbox,
                transport,
                schema,
                seal,
                session,
                treason.hostile,
                stop,
                partial(start_flood, identity, config.fleet, addresses, stop),
            )
            node.run()
        finally:
            transport.close()


def _leave_with_parent(stop: threading.Event, folder: Path) -> None:
    """End the process some seconds after its parent has gone, whatever it is doing."""
    parent = parent_process()
    if parent is None:
        return
    wait([parent.sentinel])
    stop.set()
    threading.Event().wait(GRACE)
    _clean_up(folder)
    os._exit(1)


def _clean_up(folder: Path) -> None:
    """Remove the folder of the fleet, which holds keys. Whoever started the fleet would do so, but has gone."""
    if folder.name.startswith(FOLDER):
        shutil.rmtree(folder, ignore_errors=True)
