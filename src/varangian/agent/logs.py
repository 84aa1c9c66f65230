"""Logs for people, or as one JSON object per line for programs."""

from __future__ import annotations

import json
import logging
import sys
import time
from dataclasses import asdict
from typing import Any, TextIO

from varangian.agent.status import Status

NAME = "varangian"
ROUND = "round"
"""The event of a line that has the status of an agent after a round."""
_USUAL = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, agent, text, and what the caller added with `extra`."""

    def __init__(self, agent: str) -> None:
        super().__init__()
        self.agent = agent

    def format(self, record: logging.LogRecord) -> str:
        added = {name: value for name, value in vars(record).items() if name not in _USUAL}
        about: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "agent": self.agent,
            "text": record.getMessage(),
            **added,
        }
        if record.exc_info:
            about["exception"] = self.formatException(record.exc_info)
        return json.dumps(about, ensure_ascii=False, default=str)


class Plain(logging.Formatter):
    """Time, level and text."""

    def __init__(self) -> None:
        super().__init__("%(asctime)sZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime


def start_logging(agent: str, as_json: bool, stream: TextIO | None = None) -> None:
    """Send the logs of this package to the stream, by default standard error."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonLines(agent) if as_json else Plain())
    logger = logging.getLogger(NAME)
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def log_round(status: Status) -> None:
    """A watcher that writes one line per round."""
    logging.getLogger(f"{NAME}.agent").info(
        "round %d: loss %.4g, %d neighbours heard",
        status.round,
        status.measured.get("loss", float("nan")),
        len(status.ages),
        extra={"event": ROUND, "status": asdict(status)},
    )
