"""What Zenoh's log says was refused. The lines are Zenoh's own, of version 1.10.2."""

from __future__ import annotations

import pytest

from varangian.agent.zenoh_log import KINDS, LogReader

TLS = "\x1b[2m2026-11-16T08:04:10.6Z\x1b[0m \x1b[33m WARN\x1b[0m acc-0 ThreadId(04) \x1b[2mzenoh_link_tls\x1b[0m: "
HINT = ". Hint: increase the system open file limit."
ACL = "2026-11-16T08:04:43.7Z TRACE rx-1 ThreadId({}) zenoh::net::routing::interceptor::access_control: "
WHO = "3c11517e on Interface(lo)+CertCommonName(c)+Transport(Tls)+3c11517e is "


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (TLS + "received corrupt message of type InvalidContentType" + HINT, "not-tls"),
        (TLS + "tls handshake eof" + HINT, "not-tls"),
        (TLS + "peer sent no certificates" + HINT, "no-certificate"),
        (TLS + "invalid peer certificate: UnknownIssuer" + HINT, "unknown-authority"),
        (
            TLS + "invalid peer certificate: certificate expired: verification time 17 (UNIX), but" + HINT,
            "expired-certificate",
        ),
        (TLS + "invalid peer certificate: NotValidForName" + HINT, "invalid-certificate"),
        (TLS + "something else" + HINT, None),
        (ACL.format("11") + WHO + "unauthorized to Put (ingress) on varangian/f/b/a", "forbidden-key"),
        (ACL.format("11") + WHO + "authorized to Put (ingress) on varangian/f/c/a", None),
        (ACL.format("11") + WHO + "unauthorized to Declare Subscriber (ingress) on **", "forbidden-key"),
        (ACL.format("11") + WHO + "unauthorized to Declare/Undeclare Subscriber (ingress) on **", None),
        (ACL.format("11") + WHO + "unauthorized to Put (egress) on varangian/f/b/a", None),
        (ACL.format("11") + "Using cached result: 3c11 is unauthorized to Put (ingress) on x", "forbidden-key"),
        (ACL.format("11") + "ACL (ingress): caching permissions for `varangian/f` ...", None),
    ],
)
def test_each_line_has_its_kind(line: str, kind: str | None) -> None:
    assert LogReader().kind(line.encode()) == kind
    assert kind is None or kind in KINDS


def test_permissions_that_zenoh_looks_up_ahead_are_not_counted() -> None:
    reader, counted = LogReader(), 0
    for action in ("Query", "Reply", "Put", "Delete", "Declare/Undeclare Subscriber"):
        for thread in ("11", "12"):  # two threads write at the same time
            line = ACL.format(thread) + WHO + f"unauthorized to {action} (ingress) on varangian/f/b/a"
            counted += reader.kind(line.encode()) is not None
    assert counted == 0
    line = ACL.format("11") + WHO + "unauthorized to Put (ingress) on varangian/f/b/a"
    assert [reader.kind(line.encode()) for _ in range(3)] == ["forbidden-key"] * 3
