"""A process of a fleet to which a third of what it is sent does not get through."""

from __future__ import annotations

import random
from pathlib import Path

from varangian.agent.mailbox import Mailbox, Payload
from varangian.agent.member import Treason, run_member


def run_with_bad_hearing(config: Path, log_file: Path, treason: Treason | None) -> None:
    """`run_member`, with a mailbox that loses messages at random."""
    lots, offer = random.Random(config.stem), Mailbox.offer

    def sometimes(self: Mailbox, sender: str, payload: Payload, now: float) -> None:
        if lots.random() >= 1 / 3:
            offer(self, sender, payload, now)

    Mailbox.offer = sometimes  # type: ignore[method-assign]
    run_member(config, log_file, treason)
