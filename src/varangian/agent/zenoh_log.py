"""What Zenoh refuses before any message reaches this library: read from its log, and counted.

Zenoh tells nobody but its log when a TLS handshake fails or access control drops something, and its log goes to
standard output only. So an agent's process puts a pipe in the place of standard output, and reads it.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from dataclasses import dataclass, field
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

_HANDSHAKES = (
    ("no-certificate", re.compile(rb"peer sent no certificates")),
    ("unknown-authority", re.compile(rb"invalid peer certificate: (?:UnknownIssuer|BadSignature)")),
    ("expired-certificate", re.compile(rb"invalid peer certificate: (?:certificate )?[Ee]xpired")),
    ("invalid-certificate", re.compile(rb"invalid peer certificate")),
    ("not-tls", re.compile(rb"received corrupt message|tls handshake eof|handshake timeout")),
)
KINDS = ("forbidden-key", *(kind for kind, _ in _HANDSHAKES))
_ACCESS = re.compile(rb"ThreadId\((\d+)\).* is (un)?authorized to (Reply|Put|Delete|Declare Subscriber) \(ingress\)")
_MARKS = (b"authorized", b"certificate", b"corrupt message", b"handshake")


@dataclass
class LogReader:
    """Tells what the lines of Zenoh's log say was refused.

    >>> reader = LogReader()
    >>> reader.kind(b"WARN zenoh_link_tls::unicast: invalid peer certificate: UnknownIssuer. Hint: ...")
    'unknown-authority'
    >>> reader.kind(b"TRACE rx-0 ThreadId(08) 9e35 on CertCommonName(b) is unauthorized to Put (ingress) on x")
    'forbidden-key'
    """

    _asked: dict[bytes, bytes] = field(default_factory=dict)
    """What the last line of each thread was about."""

    def kind(self, line: bytes) -> str | None:
        """What was refused, if this line says so."""
        if not any(mark in line for mark in _MARKS):
            return None
        access = _ACCESS.search(line)
        if access is None:
            return next((kind for kind, pattern in _HANDSHAKES if pattern.search(line)), None)
        thread, denied, action = access.groups()
        before, self._asked[thread] = self._asked.get(thread), action
        # When a key is new, Zenoh looks up all permissions ahead, in the order Reply, Put, Delete: nobody has asked.
        ahead = (before, action) in ((b"Reply", b"Put"), (b"Put", b"Delete")) or action == b"Reply"
        return "forbidden-key" if denied and not (ahead and b"cached result" not in line) else None


def watch() -> CountedLog:
    """Start to read Zenoh's log; call this once, before the first session. Returns the counts of what it refused.

    From then on `sys.stdout` writes to the old standard output directly. With `RUST_LOG` in the environment, Zenoh logs
    what that says, and its lines are passed on.
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
    """Count until the process ends. The lines are not passed on unasked: strangers may have chosen their words."""
    rest, lines_of = b"", LogReader()
    while chunk := os.read(reader, 2**16):
        if "RUST_LOG" in os.environ:
            os.write(real, chunk)
        *lines, rest = (rest[-(2**16) :] + chunk).split(b"\n")
        for line in lines:
            kind = lines_of.kind(line)
            if kind is not None:
                refused.add(kind, f"Zenoh refused something: {kind.replace('-', ' ')}")
