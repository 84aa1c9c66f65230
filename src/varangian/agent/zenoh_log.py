"""What Zenoh refuses before any message reaches this library: read from its log, and counted.

Zenoh tells nobody but its log when a TLS handshake fails or access control drops something, and its log goes to
standard output only. So an agent's process puts a pipe in the place of standard output, reads Zenoh's lines from it,
and passes on everything else.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from functools import partial

from varangian.agent.counted_log import CountedLog

log = logging.getLogger(__name__)

FILTER = (
    "zenoh_link_tls=warn,"
    "zenoh_transport=warn,"
    "zenoh::net::runtime::orchestrator=debug,"
    "zenoh::net::routing::interceptor::access_control=trace"
)
"""What Zenoh writes to its log. Only access control's finest level tells of single messages."""

_KINDS = (
    (
        "forbidden-key",
        re.compile(rb"cached result: \w+ is unauthorized to (?:Put|Delete|Declare Subscriber) \(ingress\)"),
    ),
    ("no-certificate", re.compile(rb"peer sent no certificates")),
    ("unknown-authority", re.compile(rb"invalid peer certificate: (?:UnknownIssuer|BadSignature)")),
    ("expired-certificate", re.compile(rb"invalid peer certificate: (?:certificate )?[Ee]xpired")),
    ("invalid-certificate", re.compile(rb"invalid peer certificate")),
    ("not-tls", re.compile(rb"received corrupt message|tls handshake eof|handshake timeout")),
)
KINDS = tuple(kind for kind, _ in _KINDS)
_COLOUR = rb"(?:\x1b\[\d+m)*"
_LINE = re.compile(
    _COLOUR + rb"\d{4}-\d\d-\d\dT[\d:.]+Z" + _COLOUR + rb" " + _COLOUR + rb" ?(?:TRACE|DEBUG|INFO|WARN|ERROR)"
)
_MARKS = (b"unauthorized", b"certificate", b"corrupt message", b"handshake")


def kind_of(line: bytes) -> str | None:
    """What a line of Zenoh's log says was refused, if it says so.

    >>> kind_of(b"WARN zenoh_link_tls::unicast: invalid peer certificate: UnknownIssuer. Hint: ...")
    'unknown-authority'
    """
    if not any(mark in line for mark in _MARKS):
        return None
    return next((kind for kind, pattern in _KINDS if pattern.search(line)), None)


def watch() -> CountedLog:
    """Start to read Zenoh's log; call this once, before the first session. Returns the counts of what it refused.

    From then on `sys.stdout` writes to the old standard output directly. `RUST_LOG` replaces the filter.
    """
    import zenoh

    refused = CountedLog(log)
    reader, writer = os.pipe()
    real = os.dup(1)
    sys.stdout.flush()
    os.dup2(writer, 1)
    os.close(writer)
    sys.stdout = os.fdopen(os.dup(real), "w", encoding="utf-8", errors="replace", buffering=1)
    threading.Thread(target=partial(_read, reader, real, refused), name="zenoh-log", daemon=True).start()
    zenoh.init_log_from_env_or(FILTER)
    return refused


def _read(reader: int, real: int, refused: CountedLog) -> None:
    rest = b""
    while chunk := os.read(reader, 2**16):
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[-(2**16) :]
        for line in lines:
            kind = kind_of(line)
            if kind is not None:
                refused.add(kind, f"Zenoh refused something: {kind.replace('-', ' ')}")
            elif not _LINE.match(line) or "RUST_LOG" in os.environ:
                os.write(real, line + b"\n")
