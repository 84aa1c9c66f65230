"""A process of a fleet whose clock is an hour late."""

from __future__ import annotations

import time
from pathlib import Path

from varangian.agent.member import Treason, run_member

HOUR = 3600.0


def run_an_hour_late(config: Path, log_file: Path, treason: Treason | None) -> None:
    """`run_member`, with a clock that agent 0 has set back by an hour."""
    if config.stem == "agent-0":
        right, right_ns = time.time, time.time_ns
        time.time = lambda: right() - HOUR
        time.time_ns = lambda: right_ns() - int(HOUR * 1e9)
    run_member(config, log_file, treason)
